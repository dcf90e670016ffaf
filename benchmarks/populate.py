"""How fast ``populate()`` is beside the bare INSERT … SELECT that it replaces.

    DATABASE_URL=postgres://postgres@127.0.0.1:5432/test python -m benchmarks.populate --rows 1000000

Both fill the same table from the same source, in turns, the table emptied before each. The ratio is the median over
pairs of neighbouring turns; above 1 ``populate()`` was the faster one. Then come a populate that finds nothing to add,
and one in chunks.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from benchmarks.database import own_database

EMPTY = {"sqlite": "DELETE FROM"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.populate")
    parser.add_argument("--rows", type=int, default=1_000_000, help="source rows (1,000,000)")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of turns (5)")
    parser.add_argument("--chunk", type=int, default=10_000, help="sources a chunk (10,000)")
    return parser.parse_args()


def main(options: argparse.Namespace) -> None:
    with own_database():
        from tests.sources.app.models import LedgerTask
        from tests.testapp.models import Ledger

        fill(options.rows)
        ours, bare, ratios = [], [], []
        for turn in range(options.pairs):
            both: dict[Callable[[], int], float] = {}
            for way in (populate, insert) if turn % 2 else (insert, populate):
                empty()
                both[way] = timed(way, options.rows)
            ours.append(both[populate])
            bare.append(both[insert])
            ratios.append(both[insert] / both[populate])
        say(f"bare INSERT … SELECT  {told(bare, options.rows)}")
        say(f"populate()            {told(ours, options.rows)}")
        say(f"ratio of speeds: median {statistics.median(ratios):.2f} of {listed(ratios)}")

        again = timed(populate, 0)
        say(f"populate() with nothing to add: {again:.2f} s")
        empty()
        rows = Ledger.objects.all()
        chunked = timed(
            lambda: LedgerTask.objects.populate(rows, chunk_size=options.chunk), options.rows
        )
        say(f"populate(chunk_size={options.chunk}): {chunked:.2f} s")


def fill(rows: int) -> None:
    from django.db import connection

    from tests.testapp.models import Ledger

    Ledger.objects.bulk_create(
        [Ledger(model="Photo", key=str(n), note="x" * 50) for n in range(1000)]
    )
    columns = (
        "model, `key`, worker, note, at"
        if connection.vendor == "mysql"
        else 'model, "key", worker, note, at'
    )
    made = 1000
    with connection.cursor() as cursor:
        while made < rows:
            more = min(made, rows - made)
            cursor.execute(
                f"INSERT INTO testapp_ledger ({columns}) SELECT {columns} FROM testapp_ledger LIMIT {more}"
            )
            made += more
        if connection.vendor == "postgresql":
            cursor.execute("VACUUM ANALYZE testapp_ledger")


def empty() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(f"{EMPTY.get(connection.vendor, 'TRUNCATE TABLE')} sources_ledgertask")


def populate() -> int:
    from tests.sources.app.models import LedgerTask
    from tests.testapp.models import Ledger

    return LedgerTask.objects.populate(Ledger.objects.all())


def insert() -> int:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO sources_ledgertask (source_id) SELECT id FROM testapp_ledger")
        return int(cursor.rowcount)


def timed(way: Callable[[], int], rows: int) -> float:
    began = time.perf_counter()
    added = way()
    took = time.perf_counter() - began
    assert added == rows, f"{added:,} rows instead of {rows:,}"
    return took


def told(times: list[float], rows: int) -> str:
    middle = statistics.median(times)
    return f"median {middle:.2f} s, {rows / middle:,.0f} rows/s, of {listed(times)}"


def listed(numbers: list[float]) -> str:
    return ", ".join(f"{number:.2f}" for number in sorted(numbers))


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(arguments())
