"""The loop that one would write by hand, with the best SQL known for each database: what workers are compared with.

    python -m benchmarks.by_hand 100 batch [table]

It claims 100 rows, remembers the last key as workers do, and completes the rows together (``batch``) or each by a
statement (``row``) or a transaction (``transaction``) of its own, until no row is left. ``instances`` is ``batch``
with all columns read and a model instance made of each row, as a handler wants it. The loop has no renewal, no reaper,
no switch and no retries. ``benchmarks.throughput`` starts it; it waits for a line on its standard input.
"""

import secrets
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

WAITED_NEVER = "1970-01-01 00:00:00"

CANDIDATES = (
    "SELECT id FROM {table} WHERE status = 'open' AND priority = 0 AND not_before = %s AND id > %s"
    " ORDER BY priority DESC, not_before, id LIMIT %s"
)
CLAIM = "status = 'processing', claimed_by = %s, claimed_at = {now}, expires_at = {later}"
COMPLETE = (
    "UPDATE {table} SET status = 'complete', completed_at = {now}, expires_at = NULL"
    " WHERE id IN ({keys}) AND claimed_by = %s AND iteration = 0 AND {status} = 'processing'"
)


class Loop:
    """How one database claims and completes; each method is one transaction."""

    now = later = ""
    status = "status"

    def __init__(self, connection: Any, table: str, columns: str) -> None:
        self.connection = connection
        self.table = table
        self.columns = columns
        self.candidates = CANDIDATES.format(table=table)
        self.cursor = connection.cursor()

    def claim(self, after: int, holder: str, limit: int) -> list[tuple[Any, ...]]:
        """Return the columns of each claimed row, the key first."""
        raise NotImplementedError

    def complete(self, keys: Sequence[int], holder: str) -> None:
        marks = ", ".join(["%s"] * len(keys))
        self.cursor.execute(
            COMPLETE.format(table=self.table, now=self.now, keys=marks, status=self.status),
            [*keys, holder],
        )
        assert self.cursor.rowcount == len(keys)

    def _candidates(self, after: int, limit: int, lock: str = "") -> list[int]:
        self.cursor.execute(f"{self.candidates} {lock}", [WAITED_NEVER, after, limit])
        return [key for (key,) in self.cursor.fetchall()]


class PostgreSQL(Loop):
    """One statement a claim."""

    now = "STATEMENT_TIMESTAMP()"
    later = "STATEMENT_TIMESTAMP() + INTERVAL '60 seconds'"
    # So that rows are found by their keys, and not among the index entries of all rows done since the last vacuum.
    status = "(status || '')"

    def claim(self, after: int, holder: str, limit: int) -> list[tuple[Any, ...]]:
        self.cursor.execute(
            f"WITH c AS MATERIALIZED ({self.candidates} FOR NO KEY UPDATE SKIP LOCKED)"
            f" UPDATE {self.table} t SET {CLAIM.format(now=self.now, later=self.later)}"
            f" FROM c WHERE t.id = c.id RETURNING {self.columns}",
            [f"{WAITED_NEVER}+00", after, limit, holder],
        )
        return self.cursor.fetchall()


class MySQL(Loop):
    """Candidates are locked as they are found, along the index."""

    now, later = "UTC_TIMESTAMP(6)", "UTC_TIMESTAMP(6) + INTERVAL 60 SECOND"

    def claim(self, after: int, holder: str, limit: int) -> list[tuple[Any, ...]]:
        from django.db import transaction

        with transaction.atomic():
            keys = self.lock(after, limit)
            if keys:
                marks = ", ".join(["%s"] * len(keys))
                setting = CLAIM.format(now=self.now, later=self.later)
                self.cursor.execute(
                    f"UPDATE {self.table} SET {setting} WHERE id IN ({marks})", [holder, *keys]
                )
        if keys:
            self.cursor.execute(
                f"SELECT {self.columns} FROM {self.table} t WHERE id IN ({marks})", keys
            )
        return self.cursor.fetchall() if keys else []

    def lock(self, after: int, limit: int) -> list[int]:
        return self._candidates(after, limit, "FOR UPDATE SKIP LOCKED")


class MariaDB(MySQL):
    """Candidates are read without locks, four times as many as are wanted, and then locked by key."""

    def lock(self, after: int, limit: int) -> list[int]:
        locked: list[int] = []
        found = self._candidates(after, 4 * limit)
        for start in range(0, len(found), limit):
            part = found[start : start + limit - len(locked)]
            marks = ", ".join(["%s"] * len(part))
            self.cursor.execute(
                f"SELECT id FROM {self.table} WHERE id IN ({marks}) AND status = 'open' FOR UPDATE SKIP LOCKED",
                part,
            )
            locked += [key for (key,) in self.cursor.fetchall()]
            if len(locked) == limit:
                break
        return locked


class SQLite(Loop):
    """One statement a claim, one writer at a time."""

    now = "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now')"
    later = "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '+60 seconds')"

    def claim(self, after: int, holder: str, limit: int) -> list[tuple[Any, ...]]:
        self.cursor.execute(
            f"UPDATE {self.table} AS t SET {CLAIM.format(now=self.now, later=self.later)}"
            f" WHERE id IN ({self.candidates}) RETURNING {self.columns.replace('t.', '')}",
            [holder, f"{WAITED_NEVER}.000", after, limit],
        )
        return self.cursor.fetchall()


def maker(model: Any, connection: Any, names: list[str]) -> Callable[[Any, str], list[Any]]:
    """Return what makes instances of raw rows, with the values that Django gives them; they share one object."""
    compiler = model._base_manager.all().query.get_compiler(connection=connection)
    compiler.pre_sql_setup()
    converters = compiler.get_converters([column for column, *_ in compiler.select])

    def make(rows: Any, holder: str) -> list[Any]:
        if converters:
            rows = compiler.apply_converters(rows, converters)
        claim = SimpleNamespace(holder=holder)
        made = [model.from_db("default", names, row) for row in rows]
        for instance in made:
            instance.by_hand = claim
        return made

    return make


def main(limit: int, way: str, table: str = "bench_work") -> None:
    import django

    django.setup()
    from django.apps import apps
    from django.db import connection, transaction

    model = next(model for model in apps.get_models() if model._meta.db_table == table)
    names = [field.attname for field in model._meta.concrete_fields]
    columns = names if way == "instances" else ["id", "payload", "iteration"]
    kinds = {"postgresql": PostgreSQL, "mysql": MySQL, "sqlite": SQLite}
    kind = MariaDB if getattr(connection, "mysql_is_mariadb", False) else kinds[connection.vendor]
    connection.ensure_connection()
    make = maker(model, connection, names)
    loop = kind(connection, table, ", ".join(f"t.{column}" for column in columns))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    last = 0
    while True:
        holder = f"hand@host#{secrets.token_hex(8)}"
        rows = loop.claim(last, holder, limit)
        if way == "instances":
            keys = [instance.pk for instance in make(rows, holder)]
        else:
            keys = [row[0] for row in rows]
        if keys:
            for part in [keys] if way in ("batch", "instances") else [[key] for key in keys]:
                with transaction.atomic() if way == "transaction" else nullcontext():
                    loop.complete(part, holder)
            last = max(keys)
        elif last:
            last = 0
        else:
            break


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
