"""MySQL 8.0+ and MariaDB 10.6+: candidates are read without locks, then locked by key, then updated by key."""

import hashlib
import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from django.db import Error, NotSupportedError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim import conf
from django_taskclaim.claim import clock
from django_taskclaim.columns import KeyColumns
from django_taskclaim.db.base import NAMED_LEASES, Dialect
from django_taskclaim.db.sql import (
    ALL,
    CANDIDATES,
    SKIP,
    SQL,
    VALUES,
    Change,
    ClaimedRow,
    ClaimStatement,
    Key,
    Keys,
    KeyTable,
    Raw,
    Rows,
    Values,
    sql,
    value,
)
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.states import WORKER_MARK, Status

#: Our own sessions wait so many whole seconds for a row.
LOCK_WAIT = 1

#: A connection keeps the key indexes of tables that Django has not made under this name.
KEY_INDEXES = "_taskclaim_key_indexes"

#: ER_NO_SUCH_THREAD
NO_SUCH_THREAD = 1094


class MySQL(Dialect):
    """A SELECT that sorts locks every row it sorts, so nothing here locks rows that it puts in order.

    All row locks are taken through the primary key: claims that lock index entry then row, beside completions that
    lock row then index entry, deadlock.
    """

    # NOW() follows the session's time zone.
    now = "UTC_TIMESTAMP(6)"
    moment_after = "(UTC_TIMESTAMP(6) + INTERVAL {} * 1000000 MICROSECOND)"
    returns_updated = False
    walks_small_tables = True
    # A comparison of rows is an index range for equality only.
    seeks_row_values = False

    #: Candidates read for each row wanted; those that other claims have just locked are passed over.
    LOOK_AHEAD = 4

    @property
    def can_autocommit(self) -> bool:
        return super().can_autocommit and self.sees_new_commits()

    @contextmanager
    def beginning(self) -> Iterator[None]:
        # REPEATABLE READ would bring gap locks and stale reads; this counts for the next transaction only.
        if not self.sees_new_commits():
            self.run(SQL("SET TRANSACTION ISOLATION LEVEL READ COMMITTED"))
        yield

    def _set(self, name: str, to: int | str) -> None:
        self.run(SQL(f"SET SESSION {name} = {to}"))

    @contextmanager
    def limit_lock_wait(self, seconds: float) -> Iterator[None]:
        # The server counts whole seconds.
        whole = max(1, math.ceil(seconds))
        with changed_setting(self, "innodb_lock_wait_timeout", whole):
            yield

    def end_idle_transactions(
        self, idle: timedelta, *, ours_alone: bool, atomic: bool | None
    ) -> None:
        seconds = max(1, math.ceil(idle.total_seconds()))
        if ours_alone:
            self._set("innodb_lock_wait_timeout", LOCK_WAIT)
            self._set("lock_wait_timeout", 2)
        if is_mariadb(self.connection):
            self._set("idle_transaction_timeout", seconds)
        elif ours_alone or atomic is not None:
            # MySQL knows idle sessions only; a handler that thinks between two queries must not be cut off.
            self._set("wait_timeout", "DEFAULT" if atomic is False else seconds)

    @contextmanager
    def guarded_transaction(self, idle: timedelta) -> Iterator[None]:
        # The setting is the session's. It is restored after the COMMIT, since a process may freeze just before that.
        name = "idle_transaction_timeout" if is_mariadb(self.connection) else "wait_timeout"
        changed = changed_setting(self, name, max(1, math.ceil(idle.total_seconds())))
        with changed, self.own_transaction(durable=True):
            yield

    def session_mark(self) -> Raw | None:
        raw: Any = self.connection.connection
        return int(raw.thread_id()), clock()

    def end_session(self, mark: Raw) -> bool:
        number, since = mark
        ((_, uptime),) = self.fetch(SQL("SHOW GLOBAL STATUS LIKE 'Uptime'"))
        if int(uptime) + 1 < clock() - since:
            # A restarted server counts from 1 again.
            return False
        try:
            self.run(SQL("KILL %s", (number,)))
        except OperationalError as error:
            if error.args[:1] != (NO_SUCH_THREAD,):
                raise
            return False
        return True

    def service_options(self) -> dict[str, object]:
        # mysqlclient waits for ever by default.
        return {"connect_timeout": 5, "read_timeout": 10, "write_timeout": 10}

    def update_target(self, table: KeyTable) -> str:
        if table.columns.owner._meta.managed:
            return f"{table.name} FORCE INDEX (PRIMARY)"
        known: dict[str, str] = vars(self.connection).setdefault(KEY_INDEXES, {})
        if table.name not in known:
            known[table.name] = self._index_of_key(table.columns)
        return f"{table.name} FORCE INDEX ({known[table.name]})"

    def _index_of_key(self, columns: KeyColumns) -> str:
        """Return the index that leads to the rows of a table that Django has not made; NotSupportedError for none."""
        name, key = columns.owner._meta.db_table, [str(field.column) for field in columns.key]
        with self.connection.cursor() as cursor:
            found = self.connection.introspection.get_constraints(cursor, name)
        for index, facts in found.items():
            if facts["index"] and [*facts["columns"]][: len(key)] == key:
                return self.connection.ops.quote_name(index)
        raise NotSupportedError(
            f"The table {name} has no index on {', '.join(key)}, so all rows are locked to find one."
        )

    def claim(self, statement: ClaimStatement, values: Values) -> list[ClaimedRow]:
        table, fields = statement.table, statement.fields
        # An UPDATE with a LIMIT can neither join nor look at its own table.
        marks_first = statement.simple and conf.setting("CLAIM_STRATEGY") == "update_limit"
        claim = self._update_limit if marks_first else self._lock_and_claim
        keys = claim(statement, values)
        parts = self.chunks(keys, table)
        rows = [row for part in parts for row in self.select(table, fields, table.keyed(part))]
        return statement.by_role(rows)

    def _lock_and_claim(self, statement: ClaimStatement, values: Values) -> list[Key]:
        """Lock the first rows that nobody else has, claim them, and return their keys."""
        table = statement.table
        candidates = statement.candidates.bind(values)
        condition = statement.condition.bind(values)
        keys = self._lock_chosen(table, candidates, condition, values["limit"])
        if not keys:
            return []
        change = Change([statement.assignments.bind(values)])
        written = self.write(table, keys, change, statement.claimable.bind(values))
        if written not in (0, len(keys)):
            # The error rolls back what was written: rows claimed for nobody would wait for the end of their lease.
            raise TaskClaimError(
                f"Claimed {written} of {len(keys)} rows that were locked for it; rolled back."
            )
        # Without one, a pause was committed between the two statements.
        return keys if written else []

    def lock_first(
        self, queryset: Rows, table: KeyTable, limit: int, *, deleting: bool = False
    ) -> list[Key]:
        candidates = self.compiled(queryset, None, table.columns.key)
        condition = table.where_of(queryset)
        if candidates is None or condition is None:
            return []
        return self._lock_chosen(table, candidates, condition, limit)

    def _lock_chosen(
        self, table: KeyTable, candidates: SQL, condition: SQL, limit: int
    ) -> list[Key]:
        """Lock up to *limit* rows, the first that nobody else has, and return their keys.

        *candidates* is the SELECT of their keys in order, which locks nothing, and *condition* must still be true of
        one that is locked. The join takes one candidate after the other, finds its row by key, and ends when it has
        all that are wanted, so no other row is locked. More candidates are read where others have too many of them.
        """
        locked: dict[Key, None] = {}
        look = limit * self.LOOK_AHEAD
        while True:
            first = sql("{} LIMIT {}", candidates, str(look))
            new = sql("NOT ({})", table.keyed([*locked])) if locked else ALL
            # STRAIGHT_JOIN also keeps a subquery of the condition from coming before the candidates.
            statement = sql(
                "SELECT STRAIGHT_JOIN {} FROM ({}) {} JOIN {} ON {} WHERE {} AND {} LIMIT {} {}{}",
                table.key_list,
                first,
                CANDIDATES,
                self.update_target(table),
                table.same_key(CANDIDATES, table.key),
                condition,
                new,
                str(limit - len(locked)),
                self.lock_clause,
                SKIP,
            )
            # A join in the order may show a key more than once.
            locked |= dict.fromkeys(table.python_keys(self.fetch(statement)))
            if len(locked) >= limit or len(self.fetch(first)) < look:
                return [*locked]
            look *= self.LOOK_AHEAD

    def _update_limit(self, statement: ClaimStatement, values: Values) -> list[Key]:
        """Claim as servers without SKIP LOCKED can: mark the first rows in order, then find them by the mark."""
        table, columns, name = statement.table, statement.table.columns, values["holder"]
        # The mark belongs to this statement: by its name a holder would find the rows of its earlier claims, too.
        mark = f"{name[:150]}{WORKER_MARK}{secrets.token_hex(8)}"
        ranking = [
            table.qualified(field) + " DESC" * descending for field, descending in columns.ranking
        ]
        self.run(
            sql(
                "UPDATE {} SET {} WHERE {} ORDER BY {} LIMIT {}",
                table.name,
                statement.assignments.bind({**values, "holder": mark}),
                statement.condition.bind(values),
                ", ".join(ranking),
                value(values["limit"]),
            )
        )
        holder, running = table.qualified(columns.claimed_by), table.in_state(Status.PROCESSING)
        marked = sql("{} AND {} = {}", running, holder, value(mark))
        keys = [table.key_of(row) for row in self.select(table, columns.key, marked)]
        if keys:
            self.write(table, keys, Change([sql("{} = {}", holder, value(name))]), marked)
        return keys

    def writing(
        self, table: KeyTable, keys: Keys, change: Change | None, condition: SQL = ALL
    ) -> SQL:
        """Join a list of keys and values with the table, whose rows are found by their keys.

        The list reads no row. It begins with a row of nothing but types: those of the columns, collations included.
        """
        if change is not None and (len(keys) == 1 or not change.own):
            return super().writing(table, keys, change, condition)
        own = {} if change is None else change.own
        names = [f"k{n}" for n in range(len(table.key))]
        columns = [f"{column} AS {name}" for column, name in zip(table.key, names, strict=True)]
        columns += [f"{table.column(field)} AS v{n}" for n, field in enumerate(own)]
        types = SQL(f"SELECT {', '.join(columns)} FROM {table.name} WHERE 1 = 0")
        listed = sql(
            "({}) {} STRAIGHT_JOIN {} ON {} AND {}",
            SQL.join(" UNION ALL SELECT ", [types, *self.value_rows(table, keys, own)]),
            VALUES,
            self.update_target(table),
            table.same_key(VALUES, names),
            condition,
        )
        if change is not None:
            return sql("UPDATE {} SET {}", listed, change.assignments(table, joined=True))
        # On a small table every plainer form scans all rows, even with an index hint, and waits for those of others.
        # A SELECT of the keys may scan another index and lock all its entries: two deletions would deadlock.
        return sql("DELETE {} FROM {}", table.name, listed)

    def advisory_lock(self, name: str) -> None:
        """Wait for a row of that name: GET_LOCK belongs to the session, not to the transaction."""
        digest = hashlib.sha256(name.encode()).hexdigest()
        text = (
            f"INSERT INTO {NAMED_LEASES} (name, claimed_at, iteration) VALUES (%s, {self.now}, 0)"
            " ON DUPLICATE KEY UPDATE claimed_at = VALUES(claimed_at)"
        )
        self.run(SQL(text, (f"queue:{digest}",)))

    def sees_new_commits(self) -> bool:
        return getattr(self.connection, "isolation_level", None) == "read committed"


def is_mariadb(connection: BaseDatabaseWrapper) -> bool:
    """Say which of the two servers a connection leads to."""
    return bool(getattr(connection, "mysql_is_mariadb", False))


@contextmanager
def changed_setting(dialect: Dialect, name: str, to: float) -> Iterator[None]:
    """Change a setting of the session during the block, for none counts for a transaction alone."""
    ((before,),) = dialect.fetch(SQL(f"SELECT @@SESSION.{name}"))
    session = dialect.connection.connection
    dialect.run(SQL(f"SET SESSION {name} = {to}"))
    try:
        yield
    finally:
        # If the session is gone, its setting is gone as well.
        if dialect.connection.connection is session:
            with suppress(Error):
                dialect.run(SQL(f"SET SESSION {name} = {before}"))
