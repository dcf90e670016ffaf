"""What a database reports about itself: statistics, indexes, lag, and settings that break a promise.

What a system check finds is written here, too: a sentence, and a hint that says what to do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from time import monotonic
from typing import Any, ClassVar, NamedTuple

from django.core.checks import CheckMessage, Error, Warning
from django.db import NotSupportedError, OperationalError

from django_taskclaim.db.base import Dialect
from django_taskclaim.db.sql import SQL, Table, sql
from django_taskclaim.states import Status


class Estimate(NamedTuple):
    """About how many rows a table has, without reading it."""

    rows: float
    #: The number of rows in each state that is known.
    by_state: Mapping[str, float]


#: What the ids of the system checks begin with.
TAG = "taskclaim"


def message(number: str, text: str, hint: str, obj: object = None) -> CheckMessage:
    """Return an error for ``E…``, a warning for ``W…``."""
    kind = Error if number.startswith("E") else Warning
    return kind(text, hint=hint, obj=obj, id=f"{TAG}.{number}")


class Server:
    """What can be asked of the database behind one connection; where nothing is known, the answer is empty."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.connection = dialect.connection
        self.alias = dialect.connection.alias

    def ask(self, question: str, *params: Any) -> list[Any]:
        """Return the rows that a statement gives."""
        return self.dialect.fetch(SQL(question, params))

    # One table

    def estimate(self, table: Table) -> Estimate:
        """Return about how many rows are in each state, as the optimiser reckons; none where it keeps no statistics."""
        by_state = {
            state.value: self.expected_rows(table, sql(" WHERE {}", table.in_state(state)))
            for state in Status
        }
        return Estimate(self.expected_rows(table, SQL("")), by_state)

    def expected_rows(self, table: Table, where: SQL) -> float:
        """Return how many rows the optimiser expects to find; 0 where it keeps no statistics."""
        return 0.0

    def indexes(self, table: Table) -> list[list[tuple[str, str]]]:
        """Return the columns of each index, each with ``ASC`` or ``DESC``."""
        with self.connection.cursor() as cursor:
            found = self.connection.introspection.get_constraints(cursor, table.model_table)
        columns = [(one["columns"], one.get("orders")) for one in found.values() if one["index"]]
        return [
            list(zip(names, orders or ["ASC"] * len(names), strict=True))
            for names, orders in columns
        ]

    # Old versions of rows, which claims read past

    def dead_rows(self, table: Table) -> tuple[int, int]:
        """Return how many living and dead rows the table has; none where the database does not count them."""
        return 0, 0

    #: Asks for the oldest transaction of another session: seconds, who holds it, and the statement that ends it.
    #: Empty where nobody can be asked.
    oldest_transaction: ClassVar[str] = ""

    # Settings and versions

    def configured_faults(self) -> Iterator[CheckMessage]:
        """Yield what the settings of this database break; nothing is asked of the server."""
        return iter(())

    def server_faults(self, tables: Sequence[Table]) -> Iterator[CheckMessage]:
        """Yield what the server, its settings or these tables break."""
        return iter(())

    # Health

    def own_lag(self) -> timedelta | None:
        """Return how far this replica lags behind its primary, None where it does not follow it at all.

        Raises NotSupportedError, with a sentence for people, where the server cannot answer.
        """
        raise NotSupportedError(
            f"{self.connection.display_name} (database {self.alias!r}) has no replicas."
        )

    def number(self, statement: str) -> float | None:
        """Return the number that a statement of the user's gives, None for NULL; ValueError for any other answer."""
        # It has no parameters, so a ``%`` in it is only a ``%``.
        rows = self.ask(statement.replace("%", "%%"))
        try:
            ((value,),) = rows
            return None if value is None else float(value)
        except (TypeError, ValueError) as error:
            text = f"the statement gives {rows[:2]!r}; a check needs one row with one number."
            raise ValueError(text) from error

    # How long questions may take

    @contextmanager
    def bounded(self, limit: timedelta) -> Iterator[None]:
        """Begin no statement of the block after *limit*, and let none run for longer.

        A statement that is cut off, or would begin later, is an OperationalError.
        """
        ends = monotonic() + limit.total_seconds()

        def in_time(execute: Callable[..., object], *statement: object) -> object:
            if monotonic() >= ends:
                raise OperationalError("The time for these questions is over.")
            return execute(*statement)

        with self.limiting_statements(limit), self.connection.execute_wrapper(in_time):
            yield

    def limiting_statements(self, limit: timedelta) -> AbstractContextManager[None]:
        """Let the server end each statement of the block that runs for so long."""
        raise NotImplementedError
