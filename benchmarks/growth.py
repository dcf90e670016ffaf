"""How long a claim takes while its table grows, and with rows in front of it that are not due yet.

    DATABASE_URL=postgres://postgres@127.0.0.1:5432/test python -m benchmarks.growth --rows 10000,1000000

For every size, and every share of rows that are complete, a table of its own is filled; then claims of a worker go
round all the tables, one each and in a new order each time, so that whatever the machine does meanwhile hits all of
them. What is claimed is completed, as many new rows come in and as many of the oldest go, so no table changes its size.
``--json`` writes every claim, and ``python -m benchmarks.plot`` draws such files.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.database import own_database

#: Claims of each table that are not counted.
WARM_UP = 10

#: Rows a statement fills a table with.
PIECE = 500_000

NEVER_WAITED, NEXT_YEAR = "1970-01-01 00:00:00.000000", "2100-01-01 00:00:00.000000"

#: Rows that are not due yet stand in front of the others by priority, or stand among them by key alone.
AMONG, BEFORE = "not due, same priority", "not due, higher priority"


@dataclass
class Table:
    """One table of a certain size, and the claims that were timed on it."""

    rows: int
    #: The part of its rows that is complete.
    complete: float
    #: How many rows, beside the others, are not due yet, and where they stand.
    waiting: int = 0
    where: str = ""
    model: Any = None
    bound: Any = None
    #: The keys that the next rows to come in and to go have.
    last: int = 0
    first: int = 1
    seconds: list[float] = field(default_factory=list)

    @property
    def label(self) -> str:
        beside = f", {self.waiting:,} {self.where}" if self.waiting else ""
        return f"{self.rows:,} rows, {self.complete:.0%} complete{beside}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth")
    add = parser.add_argument
    add("--rows", type=numbers, default=numbers("10000,100000,1000000"), help="sizes")
    add("--complete", type=numbers, default=numbers("0,50,99"), help="per cent complete")
    add("--waiting", type=int, default=100_000, help="rows not due yet (100,000; 0 for none)")
    add("--batch-size", type=int, default=100, help="rows a claim (100)")
    add("--claims", type=int, default=300, help="claims of each table (300)")
    add("--json", type=Path, help="where to write every figure")
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def main(options: argparse.Namespace) -> None:
    with own_database():
        from django.db import connection

        tables = list(tables_of(options))
        for number, table in enumerate(tables):
            began = time.perf_counter()
            make(table, f"Grown{number}")
            say(f"filled {table.label} in {time.perf_counter() - began:.0f} s")
        settle()
        for number in range(WARM_UP + options.claims):
            for table in random.sample(tables, len(tables)):
                took = claim(table, options.batch_size)
                if number >= WARM_UP:
                    table.seconds.append(took)
        for line in report(tables):
            say(line)
        if options.json:
            options.json.write_text(json.dumps(as_json(tables, connection, options), indent=1))


def tables_of(options: argparse.Namespace) -> Iterator[Table]:
    for rows in options.rows:
        for share in options.complete:
            yield Table(rows, share / 100)
    if options.waiting:
        for where in (AMONG, BEFORE):
            yield Table(100_000, 0.0, options.waiting, where)


# Filling


def make(table: Table, name: str) -> None:
    """Create the table and fill it, oldest rows first; its indexes follow, as that is quicker."""
    from django.db import connection, models

    from django_taskclaim.models import TaskMixin
    from django_taskclaim.querysets.lower_bound import LowerBound

    body = {
        "__module__": "benchmarks.app.models",
        "Meta": type("Meta", (), {"app_label": "bench"}),
        "payload": models.CharField(max_length=100, default="x" * 50),
    }
    table.model = type(name, (TaskMixin,), body)
    table.bound = LowerBound()
    indexes, table.model._meta.indexes = table.model._meta.indexes, []
    with connection.schema_editor() as editor:
        editor.create_model(table.model)
    table.model._meta.indexes = indexes
    done = int(table.rows * table.complete)
    add_rows(table, done, "complete")
    if table.waiting:
        priority = 1 if table.where == BEFORE else 0
        add_rows(table, table.waiting, "open", NEXT_YEAR, priority)
    add_rows(table, table.rows - done, "open")
    with connection.schema_editor() as editor:
        for index in indexes:
            editor.add_index(table.model, index)
    analyze(table)


def add_rows(
    table: Table, count: int, status: str, not_before: str = NEVER_WAITED, priority: int = 0
) -> None:
    """Add so many rows behind the last one."""
    end = table.last + count
    while table.last < end:
        upto = min(end, table.last + PIECE)
        execute(insert(table, table.last + 1, upto, status, not_before, priority))
        table.last = upto


def insert(
    table: Table, first: int, last: int, status: str, not_before: str, priority: int
) -> tuple[str, list[Any]]:
    """Return the statement that makes the rows with these keys."""
    from django.db import connection

    quote = connection.ops.quote_name
    values: dict[str, Any] = {
        "status": status,
        "iteration": 0,
        "attempts": 0,
        "priority": priority,
        "not_before": not_before + ("+00" if connection.vendor == "postgresql" else ""),
        "payload": "x" * 50,
        "last_error": "",
        "error_class": "",
    }
    if status == "complete":
        values |= {"claimed_by": "worker@host:1#0123456789abcdef"}
        values |= {"completed_at": values["not_before"], "claimed_at": values["not_before"]}
    known = {one.column for one in table.model._meta.concrete_fields}
    values = {name: value for name, value in values.items() if name in known}
    columns = ", ".join(map(quote, ["id", *values]))
    marks = ", ".join(["n", *["%s"] * len(values)])
    series = (
        f"(WITH RECURSIVE s(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM s WHERE n < {last})"
        " SELECT n FROM s) AS numbers"
    )
    if connection.vendor == "postgresql":
        series = f"generate_series({first}, {last}) AS numbers(n)"
    name = quote(table.model._meta.db_table)
    return f"INSERT INTO {name} ({columns}) SELECT {marks} FROM {series}", list(values.values())


def execute(statement: tuple[str, list[Any]]) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            depth = (
                "max_recursive_iterations"
                if getattr(connection, "mysql_is_mariadb", False)
                else "cte_max_recursion_depth"
            )
            cursor.execute(f"SET SESSION {depth} = {PIECE + 1}")
        cursor.execute(*statement)


def analyze(table: Table) -> None:
    from django.db import connection

    how = {"postgresql": "VACUUM ANALYZE", "mysql": "ANALYZE TABLE", "sqlite": "ANALYZE"}
    with connection.cursor() as cursor:
        name = connection.ops.quote_name(table.model._meta.db_table)
        cursor.execute(f"{how[connection.vendor]} {name}")
        if cursor.description:
            cursor.fetchall()


def settle() -> None:
    """Have what was filled in written before anything is timed."""
    from django.db import connection

    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("CHECKPOINT")


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

    from django_taskclaim.querysets.claiming import Request, new_holder

    lease = timedelta(seconds=60)
    request = Request(
        size,
        new_holder("growth"),
        lease,
        include_held=False,
        durable=True,
        tells_beginning=True,
        bound=table.bound,
    )
    rows: list[Any] = table.model._default_manager.all()._claim(request)
    return rows


def renew(table: Table, size: int) -> None:
    """Let so many new rows in, and as many of the oldest complete ones go."""
    add_rows(table, size, "open")
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


def percentile(numbers: Sequence[float], part: float) -> float:
    """Return the number below which that part of *numbers* lies."""
    if part == 0.5:
        return statistics.median(numbers)
    return sorted(numbers)[min(len(numbers) - 1, int(len(numbers) * part))]


def as_json(tables: Sequence[Table], connection: Any, options: argparse.Namespace) -> Any:
    version = ".".join(map(str, connection.get_database_version()))
    return {
        "database": f"{connection.display_name} {version}",
        "batch_size": options.batch_size,
        "tables": [
            {
                "rows": table.rows,
                "complete": table.complete,
                "waiting": table.waiting,
                "where": table.where,
                "milliseconds": [round(took * 1000, 3) for took in table.seconds],
            }
            for table in tables
        ],
    }


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(arguments())
