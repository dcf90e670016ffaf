"""What a person wrote beside what is stored by now, so that a form that came too late costs nobody a word."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from re import findall
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

#: Beyond this many characters the two texts stand side by side and are not compared word by word.
COMPARED_AT_MOST = 20_000

#: Words of context around a change.
CONTEXT = 12


@dataclass(frozen=True, slots=True)
class Written:
    """One field of the form: what was sent, and what is stored now; None where the row is gone."""

    label: str
    mine: str
    theirs: str | None
    differs: bool

    @property
    def is_long(self) -> bool:
        return len(self.mine) > 60 or "\n" in self.mine

    @property
    def lines(self) -> int:
        """How many lines to show of it."""
        return max(2, min(14, sum(1 + len(line) // 80 for line in self.mine.splitlines())))

    @property
    def compared(self) -> SafeString:
        """Return the stored text with what was sent struck out where it differs."""
        return compared(self.mine, self.theirs or "")


def written(form: Any, stored: Any) -> list[Written]:
    """Return each visible field of the bound *form* beside that of *stored*, a form of the row as it is, or None."""
    return [_written(field, stored) for field in form.visible_fields() if not _is_secret(field)]


def _is_secret(field: Any) -> bool:
    return isinstance(field.field.widget, forms.PasswordInput)


def _written(field: Any, stored: Any) -> Written:
    mine = _told(field.field, field.data)
    if stored is None:
        return Written(str(field.label), mine, None, differs=bool(mine))
    there = stored[field.name]
    differs = there.field.has_changed(there.initial, field.data)
    return Written(str(field.label), mine, _told(field.field, there.value()), differs=differs)


def _told(field: Any, value: Any) -> str:
    """Return a value of a form as people read it: the label of a choice, the name of a file."""
    if value is None or value == "":
        return ""
    if isinstance(field, forms.BooleanField):
        return _("yes") if field.to_python(value) else _("no")
    if isinstance(field, forms.ModelChoiceField):
        return _told_rows(field, value)
    if isinstance(field, forms.ChoiceField):
        labels = {str(key): str(label) for key, label in _flat(field.choices)}
        values = value if isinstance(value, (list, tuple)) else [value]
        return ", ".join(labels.get(str(one), str(one)) for one in values)
    if isinstance(field, forms.FileField):
        return str(getattr(value, "name", value))
    shown = field.prepare_value(value)
    return ", ".join(map(str, shown)) if isinstance(shown, (list, tuple)) else str(shown)


def _told_rows(field: Any, value: Any) -> str:
    try:
        found = field.clean(value)
    except ValidationError:
        return str(value)
    many = isinstance(field, forms.ModelMultipleChoiceField)
    return ", ".join(map(str, found)) if many else str(found)


def _flat(choices: Any) -> Iterator[tuple[Any, Any]]:
    for key, label in choices:
        if isinstance(label, (list, tuple)):
            yield from _flat(label)
        else:
            yield key, label


# Word by word


def compared(mine: str, theirs: str) -> SafeString:
    """Return *theirs* as HTML: what only they have marked as inserted, what only *mine* has as deleted."""
    if len(mine) + len(theirs) > COMPARED_AT_MOST:
        return format_html("{}", theirs)
    return format_html_join("", "{}", ((piece,) for piece in _pieces(_words(mine), _words(theirs))))


def _words(text: str) -> list[str]:
    """Cut a text into words and what is between them; browsers send line ends as two characters."""
    return findall(r"\s+|[^\s]+", text.replace("\r\n", "\n"))


def _pieces(mine: list[str], theirs: list[str]) -> Iterator[SafeString]:
    matcher = SequenceMatcher(None, mine, theirs, autojunk=False)
    for kind, start, end, from_, to in matcher.get_opcodes():
        if kind == "equal":
            yield format_html("{}", _shortened(mine[start:end], start == 0, end == len(mine)))
            continue
        if end > start:
            yield format_html("<del>{}</del>", "".join(mine[start:end]))
        if to > from_:
            yield format_html("<ins>{}</ins>", "".join(theirs[from_:to]))


def _shortened(words: list[str], first: bool, last: bool) -> str:
    """Leave out the middle of a long stretch that both have, or its far end."""
    if len(words) <= 3 * CONTEXT:
        return "".join(words)
    before = [] if first else words[:CONTEXT]
    after = [] if last else words[-CONTEXT:]
    return "".join([*before, " … ", *after])
