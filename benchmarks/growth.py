"""How long a claim takes while its table grows.

    DATABASE_URL=postgres://postgres@127.0.0.1:5432/test python -m benchmarks.growth --rows 10000,1000000

For every size, and every share of rows that are complete, a table of its own is filled; then claims of a worker go
round all the tables, one each and in a new order each time, so that what the machine does meanwhile hits all of
them. What is claimed is completed, as many new rows come in and as many of the oldest go, so no table changes its size.
``--json`` writes the seconds of every claim.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.common import multiply, own_database, percentile, say, settle

#: Claims of each table that are not counted.
WARM_UP = 10

#: What complete rows hold: who did them, and when.
HOLDER, MOMENT = "worker@host:1#0123456789abcdef", datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Table:
    """One table of a certain size, and the claims that were timed on it."""

    rows: int
    #: The part of its rows that is complete.
    complete: float
    model: Any = None
    cursor: Any = None
    #: The lowest key that the oldest row can have.
    first: int = 1
    seconds: list[float] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"{self.rows:,} rows, {self.complete:.0%} complete"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth")
    add = parser.add_argument
    add("--rows", type=numbers, default=numbers("10000,100000,1000000"), help="sizes")
    add("--complete", type=numbers, default=numbers("0,50,99"), help="per cent complete")
    add("--batch-size", type=int, default=100, help="rows a claim (100)")
    add("--claims", type=int, default=300, help="claims of each table (300)")
    add("--json", type=Path, help="where to write every figure")
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def main(options: argparse.Namespace) -> None:
    with own_database():
        tables = [Table(rows, share / 100) for rows in options.rows for share in options.complete]
        for number, table in enumerate(tables):
            began = time.perf_counter()
            make(table, f"Grown{number}")
            say(f"filled {table.label} in {time.perf_counter() - began:.0f} s")
        for number in range(WARM_UP + options.claims):
            for table in random.sample(tables, len(tables)):
                took = claim(table, options.batch_size)
                if number >= WARM_UP:
                    table.seconds.append(took)
        for line in report(tables):
            say(line)
        if options.json:
            figures = {table.label: table.seconds for table in tables}
            options.json.write_text(json.dumps(figures, indent=1))


# Filling


def make(table: Table, name: str) -> None:
    """Create the table and fill it, oldest rows first; its indexes follow, as that is quicker."""
    from django.db import connection, models

    from django_taskclaim.models import TaskMixin
    from django_taskclaim.querysets.cursor import Cursor

    body = {
        "__module__": "benchmarks.app.models",
        "Meta": type("Meta", (), {"app_label": "bench"}),
        "payload": models.CharField(max_length=100, default="x" * 50),
    }
    table.model = type(name, (TaskMixin,), body)
    table.cursor = Cursor()
    indexes, table.model._meta.indexes = table.model._meta.indexes, []
    with connection.schema_editor() as editor:
        editor.create_model(table.model)
    table.model._meta.indexes = indexes
    done = int(table.rows * table.complete)
    add_rows(table, done, complete=True)
    add_rows(table, table.rows - done)
    with connection.schema_editor() as editor:
        for index in indexes:
            editor.add_index(table.model, index)
    settle(table.model)


def add_rows(table: Table, count: int, complete: bool = False) -> None:
    """Add so many rows behind the last one."""
    done = {
        "status": "complete",
        "claimed_by": HOLDER,
        "claimed_at": MOMENT,
        "completed_at": MOMENT,
    }
    if count:
        multiply(table.model, count, **(done if complete else {}))


# Claiming


def claim(table: Table, size: int) -> float:
    """Claim as a worker does, and return the seconds of the claim alone; what it took is worked off."""
    began = time.perf_counter()
    rows = claim_once(table, size)
    took = time.perf_counter() - began
    assert len(rows) == size, f"{table.label}: {len(rows)} rows"
    table.model.objects.complete(rows)
    renew(table, size)
    return took


def claim_once(table: Table, size: int) -> list[Any]:
    from datetime import timedelta

    from django_taskclaim.claim import clock, new_holder
    from django_taskclaim.querysets.claiming import ClaimCall, claim

    queue, lease = table.model._default_manager.all(), timedelta(seconds=60)
    holder, began = new_holder("growth"), clock()
    call = ClaimCall(queue, size, holder, lease, began, notes_start=True, cursor=table.cursor)
    rows: list[Any] = claim(call)
    return rows


def renew(table: Table, size: int) -> None:
    """Let so many new rows in, and as many of the oldest complete ones go."""
    add_rows(table, size)
    rows = table.model._base_manager.filter(status="complete")
    oldest = list(rows.filter(pk__gte=table.first).order_by("pk").values_list("pk")[:size])
    rows.filter(pk__in=[key for (key,) in oldest])._raw_delete("default")
    table.first = max(key for (key,) in oldest) + 1


# Telling


def report(tables: Sequence[Table]) -> Iterator[str]:
    yield "| table | claims | p50 ms | p99 ms | p50 against the smallest |"
    yield "| --- | --- | --- | --- | --- |"
    smallest = percentile(tables[0].seconds, 0.5)
    for table in tables:
        p50, p99 = (percentile(table.seconds, part) for part in (0.5, 0.99))
        yield (
            f"| {table.label} | {len(table.seconds)} | {p50 * 1000:.2f} | {p99 * 1000:.2f} | {p50 / smallest:.2f} |"
        )


if __name__ == "__main__":
    main(arguments())
