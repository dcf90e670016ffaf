"""Real text to review: the language reference that Python itself ships, under the PSF licence, for ``help()``."""

import re
from collections.abc import Iterator
from pydoc_data.topics import topics
from typing import NamedTuple

#: Articles that an editor reads in a few minutes.
SHORTEST, LONGEST = 700, 6000


class Text(NamedTuple):
    """One article as it was found."""

    source: str
    title: str
    text: str


def texts() -> Iterator[Text]:
    """Yield the articles in the order of their titles."""
    found = (_text(source, topic) for source, topic in topics.items())
    fit = (text for text in found if SHORTEST <= len(text.text) <= LONGEST)
    yield from sorted(fit, key=lambda text: text.title.lower())


def _text(source: str, topic: str) -> Text:
    """Part the heading, which is underlined, from what follows."""
    heading, _, rest = topic.strip().partition("\n")
    body = re.sub(r"^[*=~-]{3,}\n", "", rest, flags=re.M)
    # Lines that were broken for a terminal, but neither code nor lists.
    whole = re.sub(r"(?<=\w-)\n(?=\w)", "", body.strip())
    joined = re.sub(r"(?<=[^\s=~*-])\n(?=[^\s=~*-])", " ", whole)
    return Text(source, heading.strip().replace('"', ""), joined)
