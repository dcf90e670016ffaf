"""What a limit per key costs, and how soon rows behind a crowd of one key are reached.

    DATABASE_URL=postgres://postgres@127.0.0.1:5432/test python -m benchmarks.limits --rows 200000

It puts rows of one key, which has no room, in front of rows of others, and times claims of ten: without a limit, with
one, and with the indexes that let a claim step over the crowd.
"""

import argparse
import statistics
import sys
import time

from benchmarks.control_room import STATISTICS
from benchmarks.database import own_database

LIMIT = 3

#: Columns behind the status and the key, by what the index is called in the report.
INDEXES = {
    "no index": None,
    "(status, country)": [],
    "(status, country, claim order)": ["-priority", "not_before", "id"],
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits")
    add = parser.add_argument
    add("--rows", type=int, default=200_000, help="rows of the key in front (200,000)")
    add("--keys", type=int, default=100, help="keys behind it, of ten rows each (100)")
    add("--claims", type=int, default=30, help="claims of ten rows for each figure (30)")
    return parser.parse_args()


def main(options: argparse.Namespace) -> None:
    with own_database():
        from django.db import connection, models

        from django_taskclaim.policy import Policy, set_policy
        from django_taskclaim.querysets import limits
        from tests.testapp.models import Photo

        fill(options.rows, options.keys)
        timed("no limit", options.claims)
        set_policy(Photo, Policy(own_limit_per={"width": LIMIT}))
        timed("limited, room in front", options.claims)
        set_policy(Photo, Policy(own_limit_per={"country": LIMIT}))
        Photo.objects.filter(country="A").claim_batch(LIMIT)
        for name, order in INDEXES.items():
            if order is not None:
                with connection.schema_editor() as editor:
                    fields = ["status", "country", *order]
                    editor.add_index(Photo, models.Index(fields=fields, name=f"by_{len(order)}"))
                refresh()
            limits._indexed.clear()
            timed(f"limited, a crowd in front, {name}", options.claims)


def fill(rows: int, keys: int) -> None:
    """Make *rows* of one country, and behind them ten of each of *keys* others."""
    from tests.behaviour.support import claimable_rows
    from tests.testapp.models import Photo

    claimable_rows(Photo, rows, country="A")
    behind = [f"{chr(66 + n // 26)}{chr(65 + n % 26)}" for n in range(keys)]
    Photo._base_manager.bulk_create(
        [Photo(country=country, width=n) for n in range(10) for country in behind]
    )
    refresh()


def refresh() -> None:
    from django.db import connection

    from tests.testapp.models import Photo

    with connection.cursor() as cursor:
        cursor.execute(f"{STATISTICS[connection.vendor]} {Photo._meta.db_table}")


def timed(what: str, claims: int) -> None:
    """Say how long a claim of ten takes; the rows go back each time."""
    from tests.testapp.models import Photo

    spent = []
    for _ in range(claims):
        began = time.perf_counter()
        rows = Photo.objects.claim_batch(10)
        spent.append(1000 * (time.perf_counter() - began))
        assert len(rows) == 10, rows
        Photo.objects.release(rows)
    say(f"{what}: median {statistics.median(spent):.1f} ms, longest {max(spent):.1f} ms")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(arguments())
