"""MySQL and MariaDB: columns INSTANT under one lock of the table, the index in place beside readers and writers."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeAlias

from django.db import DatabaseError, models
from django.db.models import NOT_PROVIDED

from django_taskclaim.adoption.columns import NewColumn, constant_default, with_default
from django_taskclaim.adoption.live import GIVES_WAY, LiveTable, measured
from django_taskclaim.adoption.patience import PATIENCE, logger, patiently
from django_taskclaim.exceptions import WouldRewrite
from django_taskclaim.fields import AnyField

Statement: TypeAlias = tuple[str, Sequence[Any] | None]

#: This way of altering is not supported for the table (with and without a reason), or not for another time.
REFUSED = frozenset({1845, 1846, 4092})

#: The shortest limit that MySQL knows, in seconds.
SHORTEST = 1

#: Seconds that the oldest transaction may be open when the building of an index begins, and that it is waited for.
YOUNG, WAIT_FOR_YOUNG = 1, 60.0

INSTANT = "ALGORITHM=INSTANT"
ONLINE = "ALGORITHM=INPLACE, LOCK=NONE"


class MySQLTable(LiveTable):
    """There is no transaction around statements like these: each may be all that was done, and is passed over then."""

    needs_own_transactions = True

    # Columns

    def _add(self, columns: Sequence[NewColumn]) -> None:
        there = self._columns_there()
        columns = [self._born_instantly(column) for column in columns]
        new = [column.born for column in columns if column.born.column not in there]
        late = [column.field for column in columns if column.changes]
        steps = [self._alter("ADD COLUMN", new), self._alter("MODIFY COLUMN", late)]
        try:
            self._under_one_lock([step for step in steps if step is not None])
        except DatabaseError as error:
            if not _is_refused(error):
                raise
            if not self.allow_rewrite:
                told = str(error.args[1]).rstrip(".")
                raise WouldRewrite(self.plain_name, f"the server says {told!r}") from error
            self._copying(columns)

    def drop_columns(self, fields: Sequence[AnyField]) -> None:
        there = self._columns_there()
        names = [
            f"DROP COLUMN {self.editor.quote_name(field.column)}"
            for field in fields
            if field.column in there
        ]
        text = f"ALTER TABLE {self.name} {', '.join(names)}"
        if not names:
            return
        try:
            self._under_one_lock([(f"{text}, {INSTANT}", None)])
        except DatabaseError as error:
            if not _is_refused(error):
                raise
            # Before MySQL 8.0.29: a copy, beside readers and writers unless the table cannot have that either.
            self._online(text if self.allow_rewrite else f"{text}, {ONLINE}")

    def _alter(
        self, verb: str, fields: Sequence[AnyField], how: str = f", {INSTANT}"
    ) -> Statement | None:
        if not fields:
            return None
        text, params = self.clauses(verb, fields)
        return f"ALTER TABLE {self.name} {text}{how}", params

    def _copying(self, columns: Sequence[NewColumn]) -> None:
        """Let the server choose how: it copies the table, if it can beside readers and writers."""
        there = self._columns_there()
        new = [column.born for column in columns if column.born.column not in there]
        late = [column.field for column in columns if column.changes]
        for step in (
            self._alter("ADD COLUMN", new, ""),
            self._alter("MODIFY COLUMN", late),
        ):
            if step is not None:
                self._online(*step)

    def _born_instantly(self, column: NewColumn) -> NewColumn:
        """Return a column of text without a default at its birth: MySQL calls one an expression, and copies the table.

        Rows that are there have empty text without being told.
        """
        is_text = (column.field.db_type(self.connection) or "").endswith("text")
        if self._is_mariadb or not is_text or constant_default(column.field) != "":
            return column
        return NewColumn(column.field, with_default(column.field, NOT_PROVIDED))

    # The index

    def add_index(self, index: models.Index) -> None:
        if index.name not in self._indexes_there():
            # CREATE INDEX wants no commas there.
            how = ONLINE.replace(",", "")
            self._online(f"{index.create_sql(self.model, self.editor)} {how}")

    def drop_index(self, index: models.Index) -> None:
        if index.name in self._indexes_there() or self.editor.collect_sql:
            name = self.editor.quote_name(index.name)
            self._online(f"ALTER TABLE {self.name} DROP INDEX {name}, {ONLINE}")

    # How

    def _under_one_lock(self, statements: Sequence[Statement]) -> None:
        """Run the statements while nobody else gets at the table, as soon as that keeps nobody waiting.

        Between two without it, rows would be born with the default of those that are there.
        """
        if self.editor.collect_sql:
            self._lock()
            self._run_and_unlock(statements)
            return
        with Impatience(self.connection) as impatience:
            try:
                patiently(partial(self._lock, impatience), self.plain_name, self._users)
            except DatabaseError as error:
                # Galera forbids it, and the user may lack the privilege.
                logger.warning(
                    "LOCK TABLES was refused (%s): rows that others add before the last step are born as those that"
                    " are there already.",
                    error.args[-1],
                )
            else:
                self._run_and_unlock(statements)
                return
        for statement in statements:
            self._online(*statement)

    def _lock(self, impatience: "Impatience | None" = None) -> None:
        with impatience.watching() if impatience is not None else nullcontext():
            self._execute(f"LOCK TABLES {self.name} WRITE")

    def _run_and_unlock(self, statements: Sequence[Statement]) -> None:
        try:
            for statement in statements:
                self._execute(*statement)
        finally:
            self._execute("UNLOCK TABLES")

    def _online(self, text: str, params: Sequence[Any] | None = None) -> None:
        """Run a statement that locks the table for a moment at its beginning and its end only."""
        self._await_young_transactions()

        def attempt() -> None:
            with self._short_lock_wait():
                self._execute(text, params)

        patiently(attempt, self.plain_name, self._users)

    def _execute(self, text: str, params: Sequence[Any] | None = None) -> None:
        self.editor.execute(text, params or None)

    @contextmanager
    def _short_lock_wait(self) -> Iterator[None]:
        ((usual,),) = self._rows("SELECT @@SESSION.lock_wait_timeout")
        self._execute(f"SET SESSION lock_wait_timeout = {SHORTEST}")
        try:
            yield
        finally:
            self._execute(f"SET SESSION lock_wait_timeout = {usual}")

    def _await_young_transactions(self) -> None:
        """Wait until no transaction has been open for long: what would end in its lock should not begin."""
        end = time.monotonic() + WAIT_FOR_YOUNG
        while not self.editor.collect_sql and self._users() and time.monotonic() < end:
            time.sleep(SHORTEST / 4)

    # What is there

    @property
    def _is_mariadb(self) -> bool:
        return bool(getattr(self.connection, "mysql_is_mariadb", False))

    def _columns_there(self) -> set[str]:
        with self.connection.cursor() as cursor:
            told = self.connection.introspection.get_table_description(cursor, self.plain_name)
        return {column.name for column in told}

    def _indexes_there(self) -> set[str]:
        with self.connection.cursor() as cursor:
            return set(self.connection.introspection.get_constraints(cursor, self.plain_name))

    def _users(self) -> list[str]:
        """Return whose transactions have been open for a while: who uses which table is not told everywhere."""
        with suppress(DatabaseError):
            found = self._rows(
                "SELECT trx_mysql_thread_id, TIMESTAMPDIFF(SECOND, trx_started, NOW())"
                " FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> CONNECTION_ID()"
                f" AND trx_mysql_thread_id <> 0 AND trx_started < NOW() - INTERVAL {YOUNG} SECOND"
            )
            return [f"connection {number} (open for {seconds} s)" for number, seconds in found]
        # Asking takes the privilege PROCESS.
        return []

    def obstacles(self) -> list[str]:
        found = self._rows(
            "SELECT engine, row_format FROM information_schema.tables"
            " WHERE table_schema = DATABASE() AND table_name = %s",
            [self.plain_name],
        )
        engine, row_format = found[0] if found else ("InnoDB", "Dynamic")
        obstacles = [] if engine == "InnoDB" else [f"the table is kept by {engine}"]
        obstacles += ["its rows are compressed"] if row_format == "Compressed" else []
        return obstacles

    def _rows(self, question: str, params: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(question, params)
            return list(cursor.fetchall())

    # What it tells

    def believed_rows(self) -> float | None:
        found = self._rows(
            "SELECT table_rows FROM information_schema.tables"
            " WHERE table_schema = DATABASE() AND table_name = %s",
            [self.plain_name],
        )
        return None if not found or found[0][0] is None else float(found[0][0])

    def told_of_columns(self, columns: Sequence[NewColumn]) -> list[str]:
        return [
            "Locks everybody out (LOCK TABLES) for some milliseconds; no row is read or written (ALGORITHM=INSTANT).",
            GIVES_WAY,
        ]

    def told_of_index(self) -> list[str]:
        return [
            "Locks out no reader and no writer (ALGORITHM=INPLACE, LOCK=NONE) but for a moment at its beginning and"
            " its end: it reads the table once beside them.",
            measured("3 to 15"),
            f"A transaction that stays open then makes it, and others behind it, wait {SHORTEST} s, after which it"
            " begins anew.",
        ]


class Impatience:
    """Ends statements of *connection* that wait too long: the servers' own limits are whole seconds.

    It connects once, beforehand, so that nothing but the statement is done while others wait.
    """

    def __init__(self, connection: Any, seconds: float = PATIENCE) -> None:
        self._connection = connection
        self._seconds = seconds

    def __enter__(self) -> "Impatience":
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT CONNECTION_ID()")
            (self._number,) = cursor.fetchone()
        self._beside = self._connection.copy()
        self._beside.connect()
        # The watching is done by threads.
        self._beside.inc_thread_sharing()
        return self

    def __exit__(self, *error: object) -> None:
        self._beside.close()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """End the statement of this block if it has not ended in time."""
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=[over], daemon=True)
        watch.start()
        try:
            yield
        finally:
            # Joined before anything else runs here, for the blow would hit that.
            over.set()
            watch.join()

    def _watch(self, over: threading.Event) -> None:
        if not over.wait(self._seconds):
            with suppress(DatabaseError), self._beside.cursor() as cursor:
                cursor.execute(f"KILL QUERY {self._number}")


def _is_refused(error: BaseException) -> bool:
    return bool(error.args) and error.args[0] in REFUSED
