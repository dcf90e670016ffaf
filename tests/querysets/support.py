"""What the tests of behaviour ask of a database beside the verbs: rows as stored, other sessions, threads."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from django.db import connection, connections, models, transaction
from django.utils import timezone

from tests.factories import DIFFERENT
from tests.waiting import wait_until

#: Seconds after which a state that is awaited will not come any more, however busy the machine is.
DEADLINE = 120

#: Fixtures: gives a model a policy, and counts statements.
Rule = Callable[..., None]
NoQueries = Callable[..., Any]

ROW_LOCKS = connection.features.has_select_for_update

#: Multi-table children cannot be created in bulk, says Django.
BULK = [model for model in DIFFERENT if not model._meta.concrete_model._meta.parents]

#: A value for each guarded column that differs from every row's.
STRANGE: dict[str, Any] = {
    "status": "complete",
    "claimed_by": "user:thief",
    "claimed_at": timezone.now(),
    "expires_at": timezone.now(),
    "iteration": 77,
    "completed_at": timezone.now(),
    "attempts": 55,
    "not_before": timezone.now(),
    "last_error": "made up",
    "error_class": "MadeUp",
}


# Rows as they are stored


def names(model: Any) -> dict[str, str]:
    """Return the claim columns that *model* has: role to field name."""
    present = {field.name for field in model._meta.concrete_fields}
    return {role: name for role, name in model.claim_fields.items() if name in present}


def has(model: Any, *roles: str) -> bool:
    return set(roles) <= set(names(model))


def unnamed(row: Any) -> dict[str, Any]:
    """Return the values of a row without the claim columns."""
    ours = {*names(type(row)).values()}
    return {
        field.attname: getattr(row, field.attname)
        for field in type(row)._meta.concrete_fields
        if field.name not in ours
    }


def keys(rows: Any) -> list[Any]:
    return [row.pk for row in rows]


def fresh(row: Any) -> Any:
    """Read the row again, past its manager; it carries no claim."""
    return type(row)._base_manager.using(row._state.db).get(pk=row.pk)


def facts(row: Any) -> SimpleNamespace:
    """Return the stored claim columns of a row by their roles."""
    again = fresh(row)
    return SimpleNamespace(
        **{role: getattr(again, name) for role, name in names(type(row)).items()}
    )


def stored(row: Any, key: Any = None) -> dict[str, Any]:
    """Return every column of the row, on every table that it has one on, as the driver gives it.

    An empty dictionary for a row that is gone. The values are what "byte for byte" compares.
    """
    using = row._state.db or "default"
    columns: dict[str, Any] = {}
    for model in tables_of(type(row)):
        where, bound = condition(model, key or row.pk, using)
        with connections[using].cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table_of(model, using)} WHERE {where}", bound)
            for one in cursor.fetchall():
                for description, value in zip(cursor.description, one, strict=True):
                    plain = bytes(value) if isinstance(value, memoryview) else value
                    columns[f"{model.__name__}.{description[0]}"] = plain
    return columns


def condition(model: Any, key: Any, using: str) -> tuple[str, list[Any]]:
    """Return SQL that finds the row of this key, and its parameters."""
    fields = list(model._meta.pk_fields)
    values = key if len(fields) > 1 else (key,)
    where = " AND ".join(f"{quoted(field.column, using)} = %s" for field in fields)
    return where, [
        field.get_db_prep_value(value, connections[using])
        for field, value in zip(fields, values, strict=True)
    ]


def tables_of(model: Any) -> list[Any]:
    concrete = model._meta.concrete_model
    return [concrete, *concrete._meta.all_parents]


def owner_of(model: Any) -> Any:
    """Return the model on whose table the claim columns are."""
    return model._meta.get_field(names(model)["status"]).model


def quoted(name: str, using: str = "default") -> str:
    return connections[using].ops.quote_name(name)


def table_of(model: Any, using: str = "default") -> str:
    return quoted(model._meta.db_table, using)


def execute(statement: str, params: Any = (), using: str = "default") -> int:
    """Send a statement as any client of the database may."""
    with connections[using].cursor() as cursor:
        cursor.execute(statement, tuple(params))
        return int(cursor.rowcount)


def value_of(question: str, params: Any = (), using: str = "default") -> Any:
    """Return the one value that answers the question."""
    with connections[using].cursor() as cursor:
        cursor.execute(question, tuple(params))
        return cursor.fetchone()[0]


def set_raw(row: Any, role: str, expression: str, params: Any = ()) -> None:
    """Write one claim column behind the back of everything."""
    using = row._state.db or "default"
    owner = owner_of(type(row))
    column = quoted(owner._meta.get_field(names(type(row))[role]).column, using)
    where, bound = condition(owner, row.pk, using)
    written = execute(
        f"UPDATE {table_of(owner, using)} SET {column} = {expression} WHERE {where}",
        [*params, *bound],
        using,
    )
    assert written == 1


def clock(offset: str, using: str = "default") -> str:
    """Return the database's clock moved by *offset* ("+5 MINUTE"), in the form that moments are stored in."""
    sign, number, unit = offset[0], *offset[1:].split()
    return {
        "postgresql": f"(STATEMENT_TIMESTAMP() {sign} INTERVAL '{number} {unit}')",
        "mysql": f"(UTC_TIMESTAMP(6) {sign} INTERVAL {number} {unit})",
        "sqlite": f"STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '{sign}{number} {unit}')",
    }[connections[using].vendor]


def lapse(rows: Any) -> None:
    """Move the expiry of one row or many into the past of the database's own clock."""
    for row in rows if isinstance(rows, (list, tuple)) else [rows]:
        set_raw(row, "expires_at", clock("-1 HOUR"))


def expire(row: Any) -> None:
    """Let the lease of the row end and the reaper put it back."""
    lapse(row)
    assert type(row).objects.release_expired() == 1


# Others


def lose(row: Any, to: str = "user:next") -> Any:
    """Let the lease lapse, the reaper act and another holder claim the row; return it as that one has it."""
    expire(row)
    (taken,) = type(row).objects.claim_batch(1, claimed_by=to)
    assert taken.pk == row.pk
    return taken


class Rival:
    """Another session on the same database, for what only a second connection can do."""

    def __init__(self) -> None:
        self.connection = connections.create_connection("default")

    def execute(self, statement: str, params: Any = ()) -> int:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, tuple(params))
            return int(cursor.rowcount)

    def begin(self) -> None:
        self.connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)

    def lock(self, *rows: Any) -> None:
        """Lock the rows' claim table until ``let_go``."""
        if self.connection.get_autocommit():
            self.begin()
        for row in rows:
            owner = owner_of(type(row))
            where, bound = condition(owner, row.pk, "default")
            self.execute(f"SELECT 1 FROM {table_of(owner)} WHERE {where} FOR UPDATE", bound)

    def commit(self) -> None:
        self.connection.commit()
        self.connection.set_autocommit(True)

    def let_go(self) -> None:
        if not self.connection.get_autocommit():
            self.connection.rollback()
            self.connection.set_autocommit(True)

    def close(self) -> None:
        self.connection.close()


#: For what comes within milliseconds.
wait_for = partial(wait_until, seconds=DEADLINE, every=0.01)


def elsewhere(function: Callable[..., Any], *args: Any) -> "Future[Any]":
    """Run *function* in a thread, so on connections of its own that are closed in the end."""
    future: Future[Any] = Future()

    def run() -> None:
        # Closed before anybody hears of the end: what comes next must not meet this session.
        try:
            try:
                result = function(*args)
            finally:
                connections.close_all()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, daemon=True).start()
    return future


def at_once(*functions: Callable[[], Any], seconds: float = DEADLINE * 3) -> list[Any]:
    """Run all *functions* in threads that start together and return their results in order, after *seconds* at most."""
    gate = threading.Barrier(len(functions))

    def started(function: Callable[[], Any]) -> Any:
        connections["default"].ensure_connection()
        gate.wait(DEADLINE)
        return function()

    futures = [elsewhere(started, function) for function in functions]
    return [future.result(seconds) for future in futures]


@contextmanager
def held_open(
    function: Callable[[], Any], then: Callable[[], Any] = lambda: transaction.set_rollback(True)
) -> Iterator[Any]:
    """Run *function* in a transaction of another session that stays open for the length of the block.

    *then* comes before its commit; by default that is a rollback instead.
    """
    done: Future[Any] = Future()
    leave = threading.Event()

    def run() -> None:
        try:
            with transaction.atomic():
                done.set_result(function())
                leave.wait(DEADLINE * 3)
                then()
        except BaseException as error:
            if done.done():
                raise
            done.set_exception(error)

    session = elsewhere(run)
    try:
        yield done.result(DEADLINE)
    finally:
        leave.set()
        session.result(DEADLINE)


def claimable_rows(model: type[models.Model], n: int, **values: Any) -> None:
    """Insert many rows quickly, as a migration or another program would: past our manager.

    Only for models whose keys the database gives.
    """
    first = min(n, 250)
    models.QuerySet(model).bulk_create([model(**values) for _ in range(first)])
    fields = [field for field in model._meta.concrete_fields if not field.primary_key]
    columns = ", ".join(quoted(field.column) for field in fields)
    while first < n:
        more = min(first, n - first)
        table = table_of(model)
        execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table} LIMIT {more}")
        first += more


class ReadsElsewhere:
    """Sends reads to "other", as to a replica that lags for ever."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "other"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"

    def allow_relation(self, *args: Any, **hints: Any) -> bool:
        return True
