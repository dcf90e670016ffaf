"""A language in which every text of a catalogue comes back between ⟦ and ⟧, to see which words of a page have none."""

import gettext
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any

from django.utils import translation
from django.utils.translation import trans_real

#: German by its formats, so that a number or a date that follows no locale shows as well.
LANGUAGE = "de-marked"

#: What is put into a text: it stands between marks, not within, so that it has to be a translated text itself.
_PLACE = re.compile(r"(%\(\w+\)[-#0-9.]*[sdif]|%[sdif]|\{[^{}]*\})")

#: Attributes that people read or are told.
_TOLD = {"title", "aria-label", "placeholder", "alt"}
_TOLD |= {f"data-{name}" for name in ("told", "old", "out", "th", "lost", "unheard", "done")}
_TOLD |= {f"data-left-{unit}" for unit in ("h", "min", "s")}


class _Catalogue(gettext.NullTranslations):
    """Has a translation of everything."""

    def gettext(self, message: str) -> str:
        return marked(message)

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        return marked(msgid1 if n == 1 else msgid2)

    def to_language(self) -> str:
        return LANGUAGE


def marked(message: str) -> str:
    """Return a message without its context, each part between two places in marks."""
    text = message.rpartition(trans_real.CONTEXT_SEPARATOR)[2]
    parts = _PLACE.split(text)
    return "".join(
        f"⟦{part}⟧" if number % 2 == 0 and part else part for number, part in enumerate(parts)
    )


@contextmanager
def reading_marks() -> Iterator[None]:
    """Have whoever reads within read the marked language."""
    catalogues: dict[str, Any] = trans_real._translations  # type: ignore[attr-defined]
    catalogues[LANGUAGE] = _Catalogue()
    try:
        with translation.override(LANGUAGE):
            yield
    finally:
        del catalogues[LANGUAGE]


class _Reader(HTMLParser):
    """Collects what there is to read: text, and the attributes that are told; no scripts, styles or code."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.attributes: list[str] = []
        self._skipping = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {"script", "style", "code", "textarea"}:
            self._skipping = tag
        told = {name: value or "" for name, value in attrs}
        names = _TOLD | ({"value"} if tag == "input" and told.get("type") == "submit" else set())
        self.attributes += [told[name] for name in sorted(names & told.keys())]

    def handle_endtag(self, tag: str) -> None:
        if tag == self._skipping:
            self._skipping = ""

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self.texts.append(data)


def unmarked(html: str, theirs: Iterable[str] = ()) -> list[str]:
    """Return what is to be read on a page, has letters, and no catalogue was asked for; without what is *theirs*.

    *theirs* are patterns of what the users of the site or of the package have named.
    """
    reader = _Reader()
    reader.feed(html)
    wholes = ["\n".join(reader.texts), *reader.attributes]
    texts = [text for whole in wholes for text in _outside(whole)]
    names = re.compile("|".join([*theirs, _PLACE.pattern]))
    left = [" ".join(names.sub(" ", text).split()) for text in texts]
    return sorted({text for text in left if re.search(r"[^\W\d_]", text)})


def _outside(text: str) -> list[str]:
    before = None
    while text != before:
        before, text = text, re.sub(r"⟦[^⟦⟧]*⟧", "\n", text)
    return text.split("\n")
