"""How long others wait while a table in use gets the claim columns and their index.

    DATABASE_URL=postgres://postgres@127.0.0.1:5432/test python -m benchmarks.adopting --rows 2000000

One client reads by primary key, another inserts as code does that knows nothing of the mixin, each in a process of its
own with a millisecond between two statements. Two more do the same on a table beside it that nothing is done to: what
they wait is the machine's, its disk's and its other processes', not a lock's. First nothing happens for a while, then
the migrations of ``claimadopt`` run, and on a new table of the same size Django's own. ``--report`` keeps a third
client's transaction open for so many seconds, which has read the table.
"""

import argparse
import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.database import HOME, own_database

TABLE = "bench_adopted"
#: The same, with as few rows as are inserted meanwhile, for those who wait for the machine alone.
BESIDE = "bench_beside"
#: Seconds that the clients run before anything happens.
QUIET = 10.0
#: Waits below are not worth a line.
NOTED = 0.002


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adopting")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the table (2,000,000)")
    parser.add_argument("--ways", default="claimadopt,django", help="which migrations (both)")
    parser.add_argument(
        "--report", type=float, default=0.0, help="seconds that a transaction stays open (0)"
    )
    parser.add_argument("--client", choices=("read", "insert"), help=argparse.SUPPRESS)
    parser.add_argument("--table", default=TABLE, help=argparse.SUPPRESS)
    return parser.parse_args()


def main(options: argparse.Namespace) -> None:
    if options.client:
        be_client(options.client, options.table, options.rows)
        return
    with own_database() as url:
        for way in options.ways.split(","):
            adopt(url, way, options)


@dataclass
class Step:
    """Something done to the table, and when."""

    name: str
    began: float
    ended: float


def adopt(url: str, way: str, options: argparse.Namespace) -> None:
    from django.db import connection

    state = make_table(options.rows)
    with contextlib.ExitStack() as stack:
        reader, writer, reader_beside, writer_beside = (
            stack.enter_context(client(url, what, table, options.rows))
            for table in (TABLE, BESIDE)
            for what in ("read", "insert")
        )
        steps = [timed("nothing", lambda: time.sleep(QUIET))]
        with report(options.report):
            for name, migration in MIGRATIONS[way]():
                with connection.schema_editor(atomic=migration.atomic) as editor:
                    steps.append(timed(name, lambda: migration.apply(state, editor)))  # noqa: B023 - called in this turn of the loop
                    left = time.time()
                # Deferred statements and the COMMIT belong to it.
                steps[-1].ended = max(left, time.time())
    say(f"{way}, {options.rows:,} rows")
    for step in steps:
        waits = [
            longest(one.noted, step) * 1000
            for one in (reader, writer, reader_beside, writer_beside)
        ]
        took = step.ended - step.began
        say(
            f"  {step.name:<20} {took:6.2f} s   longest wait: read {waits[0]:6.0f} ms, insert {waits[1]:6.0f} ms"
            f"   beside it: read {waits[2]:6.0f} ms, insert {waits[3]:6.0f} ms"
        )
    say(f"  afterwards: {states()}")
    with connection.cursor() as cursor:
        for table in (TABLE, BESIDE):
            cursor.execute(f"DROP TABLE {table}")


def timed(name: str, act: Callable[[], Any]) -> Step:
    began = time.time()
    act()
    return Step(name, began, time.time())


def longest(noted: list[tuple[float, float]], step: Step) -> float:
    """Return the longest wait whose middle lies in the step."""
    hit = [took for at, took in noted if step.began <= at + took / 2 <= step.ended]
    return max(hit, default=NOTED)


# The table


def make_table(rows: int) -> Any:
    """Make the table as it was before, with so many rows, and return what migrations know of it."""
    from django.db import connection, models
    from django.db.migrations.state import ModelState, ProjectState

    fields = [
        ("id", models.BigAutoField(primary_key=True)),
        ("payload", models.CharField(max_length=100, db_default="x" * 50)),
        ("country", models.CharField(max_length=2, db_default="NZ", db_index=True)),
    ]
    state = ProjectState()
    state.add_model(ModelState("bench", "Adopted", fields, {"db_table": TABLE}))
    beside = ModelState(
        "bench", "Beside", [(n, f.clone()) for n, f in fields], {"db_table": BESIDE}
    )
    state.add_model(beside)
    with connection.schema_editor() as editor:
        for name in ("Adopted", "Beside"):
            editor.create_model(state.apps.get_model("bench", name))
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {TABLE} (country) VALUES ('NZ')")
        made = 1
        while made < rows:
            more = min(made, rows - made)
            cursor.execute(
                f"INSERT INTO {TABLE} (payload, country) SELECT payload, country FROM {TABLE} LIMIT {more}"
            )
            made += more
        if connection.vendor == "postgresql":
            cursor.execute(f"VACUUM ANALYZE {TABLE}")
    return state


def claim_fields() -> list[tuple[str, Any]]:
    from django_taskclaim.columns import claim_columns
    from tests.testapp.models import Photo

    columns = claim_columns(Photo)
    assert columns.priority is not None
    return [(field.name, field.clone()) for field in [*columns.guarded, columns.priority]]


def claim_index() -> Any:
    from django_taskclaim.indexes import ClaimIndex

    return ClaimIndex(fields=["status", "-priority", "not_before", "id"], name="bench_adopted_clm")


def of_claimadopt() -> Iterator[tuple[str, Any]]:
    from django_taskclaim.adoption.operations import AddClaimColumns, AddClaimIndex

    yield "the columns", migration([AddClaimColumns("adopted", claim_fields())], atomic=False)
    yield "the index", migration([AddClaimIndex("adopted", claim_index())], atomic=False)


def of_django() -> Iterator[tuple[str, Any]]:
    from django.db.migrations import AddField, AddIndex

    adding: list[Any] = [AddField("adopted", name, field) for name, field in claim_fields()]
    yield "one migration", migration([*adding, AddIndex("adopted", claim_index())], atomic=True)


def migration(operations: list[Any], *, atomic: bool) -> Any:
    from django.db.migrations import Migration

    kind = type("Migration", (Migration,), {"operations": operations, "atomic": atomic})
    return kind("adopt", "bench")


MIGRATIONS = {"claimadopt": of_claimadopt, "django": of_django}


def states() -> str:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(f"SELECT status, COUNT(*), COUNT(claimed_by) FROM {TABLE} GROUP BY status")
        found = sorted(cursor.fetchall())
    return ", ".join(f"{rows:,} {status} ({claimed} claimed)" for status, rows, claimed in found)


# The clients


@dataclass
class Client:
    """A process that uses the table; ``noted`` holds when it waited, and how long, once it has ended."""

    process: "subprocess.Popen[str]"
    noted: list[tuple[float, float]]


@contextlib.contextmanager
def client(url: str, what: str, table: str, rows: int) -> Iterator[Client]:
    program = [sys.executable, "-m", "benchmarks.adopting"]
    command = [*program, "--client", what, "--table", table, "--rows", str(rows)]
    environment = os.environ | {"DATABASE_URL": url, "PYTHONPATH": str(HOME)}
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    made = Client(process, [])
    try:
        assert process.stdout.readline() == "ready\n"
        yield made
    finally:
        process.stdin.close()
        lines = process.stdout.read().splitlines()
        process.wait(30)
        made.noted += [(float(at), float(took)) for at, took in (line.split() for line in lines)]


def be_client(what: str, table: str, rows: int) -> None:
    """Use *table* until the end of standard input, then print when it had to wait."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    from django.db import connection

    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    noted: list[tuple[float, float]] = []
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        say("ready")
        while not over.is_set():
            began = time.time()
            if what == "read":
                cursor.execute(
                    f"SELECT payload FROM {table} WHERE id = %s", [random.randint(1, rows)]
                )
                cursor.fetchall()
            else:
                cursor.execute(f"INSERT INTO {table} (country) VALUES ('NZ')")
            took = time.time() - began
            if took > NOTED:
                noted.append((began, took))
            time.sleep(0.001)
    for at, took in noted:
        sys.stdout.write(f"{at} {took}\n")


@contextlib.contextmanager
def report(seconds: float) -> Iterator[None]:
    """Have somebody keep a transaction open that has read the table."""
    if not seconds:
        yield
        return
    begun = threading.Event()

    def read() -> None:
        from django.db import connection, transaction

        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SELECT payload FROM {TABLE} WHERE id = 1")
            cursor.fetchall()
            begun.set()
            time.sleep(seconds)
        connection.close()

    thread = threading.Thread(target=read)
    thread.start()
    begun.wait()
    yield
    thread.join()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(arguments())
