"""What a person wrote beside what is stored by now, so that a form that came too late costs nobody a word."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _


@dataclass(frozen=True, slots=True)
class Written:
    """One field of the form: what was sent, and what is stored now; None where the row is gone."""

    label: str
    mine: str
    theirs: str | None
    differs: bool

    @property
    def lines(self) -> int:
        """How many lines to show of it."""
        return max(2, min(14, sum(1 + len(line) // 80 for line in self.mine.splitlines())))


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
    differs = there.field.has_changed(_bare(there.initial), _bare(field.data))
    return Written(str(field.label), mine, _told(field.field, there.value()), differs=differs)


def _bare(value: Any) -> Any:
    """Return a text without what a browser and a form change of it by themselves: line ends, and space around it."""
    return value.replace("\r\n", "\n").strip() if isinstance(value, str) else value


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
