"""What a dialect can tell of its database beside claiming: plans, indexes, and surroundings that break a promise."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: From how many rows on a plan is taken at its word. Below, every optimiser rightly prefers to read and sort all.
LARGE = 10_000


@dataclass(frozen=True, slots=True)
class Plan:
    """How the database would run one statement, and whether that is a plan for a table of any size."""

    lines: tuple[str, ...]
    #: Whether rows are sorted although an index should give their order.
    sorts: bool
    #: Whether the whole table, or a whole index, is read.
    scans: bool


@dataclass(frozen=True, slots=True)
class Belief:
    """What the statistics of a server say of a table, without reading it."""

    rows: float
    #: The number of rows in each state that the statistics know of.
    by_state: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Fault:
    """Surroundings that break a promise, with what mends them; the id is that of the system check."""

    id: str
    message: str
    hint: str

    @property
    def serious(self) -> bool:
        """Whether claims go wrong, and not only slow or with needless errors."""
        return self.id.startswith("E")


def real_name(name: str | None) -> str:
    """Return a table's or column's name as the database knows it; Django's statements double each ``%``."""
    assert name is not None, "every field of a table has a column"
    return name.replace("%%", "%")


def option_hint(alias: str, name: str, value: Any) -> str:
    """Return the line that sets one of the OPTIONS of a database."""
    return f'DATABASES["{alias}"]["OPTIONS"]["{name}"] = {value}'
