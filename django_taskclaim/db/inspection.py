"""What a dialect can tell of its database beside claiming: plans, indexes, and surroundings that break a promise."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django_taskclaim.db.keyed import KeyedTables
from django_taskclaim.db.sql import SQL, Table

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


class Inspection(KeyedTables):
    """The part of a dialect that people ask about the database, and no claim; where nothing is known, it is silent."""

    #: What to add to the advice to create an index.
    on_a_busy_table: ClassVar[str] = ""

    def explain(self, statement: SQL, table: Table, *, may_sort: bool) -> Plan:
        """Return how the statement would run on the table as it is now.

        With *may_sort* the rows it sorts are few: only reading the whole table counts against it.
        """
        raise NotImplementedError

    def believed(self, table: Table) -> Belief | None:
        """Return about how many rows are in each state, by the server's statistics; None where it keeps none."""
        return None

    def indexes(self, table: Table) -> list[list[tuple[str, str]]]:
        """Return the columns of each index that statements can use, each with ``ASC`` or ``DESC``."""
        name = real_name(table.columns.owner._meta.db_table)
        with self.connection.cursor() as cursor:
            found = self.connection.introspection.get_constraints(cursor, name)
            ignored = self.ignored_indexes(name)
        usable = [one for key, one in found.items() if one["index"] and key not in ignored]
        return [
            list(
                zip(one["columns"], one.get("orders") or ["ASC"] * len(one["columns"]), strict=True)
            )
            for one in usable
        ]

    def ignored_indexes(self, table_name: str) -> set[str]:
        """Return the names of indexes that exist but that no statement uses."""
        return set()

    def refresh_statistics(self, table: Table) -> str:
        """Return the statement that lets the optimiser look at the table again."""
        return f"ANALYZE {real_name(table.name)}"

    def configured_faults(self) -> Iterator[Fault]:
        """Yield what the settings of this database break; nothing is asked of the server."""
        return iter(())

    def server_faults(self, tables: Sequence[Table]) -> Iterator[Fault]:
        """Yield what the server, its settings or these tables break."""
        return iter(())
