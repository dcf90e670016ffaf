"""What a worker costs beside the loop that one would write by hand, in rows a second and processor time.

    DATABASE_URL=postgres://postgres@127.0.0.1:5432/test python -m benchmarks.throughput --rounds 5
    DATABASE_URL=postgres://postgres@127.0.0.1:5432/test python -m benchmarks.throughput workers waiting

``ways``      each kind of handler, against the loop by hand that completes in the same way (the default)
``workers``   1, 8 and 16 processes against 4, and the loop by hand in as many
``waiting``   100,000 rows that are not due yet, of the same and of a higher priority
``renewals``  a lease so short that it is renewed all the time, against one that never is
``wide``      rows with 20 columns and five more indexes, against the loop by hand on the same table; and with two
              columns in ``update_fields``, against the same without
``held``      a transaction that another session holds open meanwhile

Processes are up before the first row is claimed. The database's clock says when that was and when the last row was
completed. The runs of a table take turns, forwards and backwards; shares are medians of the shares within a turn.
``--json`` writes every figure to a file.
"""

import argparse
import contextlib
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.common import (
    cpu_seconds,
    empty,
    multiply,
    own_database,
    say,
    settle,
    spread,
    started,
    wait_until_up,
)

#: When rows are due that nobody is to claim.
NEXT_CENTURY = datetime(2100, 1, 1, tzinfo=UTC)
WAITING_ROWS = 100_000


@dataclass(frozen=True)
class Run:
    """One way to get through a table of rows that cost nothing to do."""

    name: str
    model: str = "Batch"
    #: How the loop by hand completes; it runs instead of workers.
    by_hand: str = ""
    #: The name of the run that it is compared with; without it, the first of its table.
    against: str = ""
    workers: int = 4
    options: tuple[str, ...] = ()
    table: str = "Work"
    #: Each row is written by itself, so fewer rows are enough.
    slow: bool = False
    #: Priority of the rows that are not due, where there are such.
    waiting: int | None = None
    #: Another session holds a transaction open.
    held: bool = False

    def commands(self, batch: int) -> list[list[str]]:
        if self.by_hand:
            table = f"bench_{self.table.lower()}"
            return [["benchmarks.by_hand", str(batch), self.by_hand, table]] * self.workers
        words = ["django", "claimworker", f"bench.{self.model}", "--processes", str(self.workers)]
        return [[*words, "--poll", "0.1", "--batch-size", str(batch), *self.options]]


BATCHES, INSTANCES = "by hand, in batches", "by hand, in batches, with instances"
ROWS = "by hand, row by row"
TRANSACTIONS = "by hand, a transaction a row"

TABLES: dict[str, tuple[Run, ...]] = {
    "ways": (
        Run(BATCHES, by_hand="batch"),
        Run(INSTANCES, by_hand="instances"),
        Run("batch handler"),
        Run("handler", "Work"),
        Run("handler, 4 threads", "Work", options=("--threads", "4")),
        Run("async handler", "Async"),
        Run(ROWS, by_hand="row", against=ROWS, slow=True),
        Run("completed row by row", "RowByRow", against=ROWS, slow=True),
        Run(TRANSACTIONS, by_hand="transaction", against=TRANSACTIONS, slow=True),
        Run("atomic handler", "Atomic", against=TRANSACTIONS, slow=True),
    ),
    "workers": (
        Run("4 workers"),
        Run("1 worker", workers=1),
        Run("8 workers", workers=8),
        Run("16 workers", workers=16),
        Run("4 loops by hand", by_hand="batch"),
        Run("16 loops by hand", by_hand="batch", workers=16),
    ),
    "waiting": (
        Run("no row waits"),
        Run("100,000 wait, same priority", waiting=0),
        Run("100,000 wait, higher priority", waiting=1),
    ),
    "renewals": (
        Run("lease of 60 s", options=("--lease", "60")),
        Run("lease of 2 s", options=("--lease", "2")),
    ),
    "wide": (
        Run("wide, by hand", by_hand="batch", table="Wide"),
        Run("wide, batch handler", "WideBatch", table="Wide"),
        Run("wide, handler", "Wide", table="Wide"),
        Run("wide, two results", "WideResults", against="wide, handler", table="Wide"),
    ),
    "held": (
        Run("no transaction open"),
        Run("a transaction held open", held=True),
    ),
}

Figures = dict[str, list[dict[str, float]]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput")
    add = parser.add_argument
    add("tables", nargs="*", metavar="table", help=f"{', '.join(TABLES)} (ways)")
    add("--rows", type=int, default=100_000, help="rows for each turn (100,000)")
    add("--slow-rows", type=int, default=20_000, help="… of what writes each row alone (20,000)")
    add("--rounds", type=int, default=5, help="turns of each run (5)")
    add("--batch-size", type=int, default=100, help="rows a claim (100)")
    add("--only", action="append", help="a run by its name; again for more of them")
    add("--json", type=Path, help="where to write every figure")
    options = parser.parse_args()
    if unknown := set(options.tables) - set(TABLES):
        parser.error(f"no table {', '.join(sorted(unknown))}; there are {', '.join(TABLES)}")
    return options


def main(options: argparse.Namespace) -> None:
    everything: dict[str, Figures] = {}
    with own_database() as url:
        for name in options.tables or ["ways"]:
            runs = [run for run in TABLES[name] if not options.only or run.name in options.only]
            figures: Figures = defaultdict(list)
            for number in range(options.rounds):
                for run in runs if number % 2 == 0 else reversed(runs):
                    figures[run.name].append(turn(run, url, options))
            for line in table(runs, figures):
                say(line)
            everything[name] = figures
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1))


def turn(run: Run, url: str, options: argparse.Namespace) -> dict[str, float]:
    """Fill the table, let one run get through it, and return rows a second and microseconds of CPU a row."""
    from django.apps import apps

    from django_taskclaim.models import WorkerProcess
    from django_taskclaim.switch import pause, resume

    model = apps.get_model("bench", run.table)
    rows = options.slow_rows if run.slow else options.rows
    empty(model)
    if run.waiting is not None:
        multiply(model, WAITING_ROWS, not_before=NEXT_CENTURY, priority=run.waiting)
    multiply(model, rows)
    settle(model)
    WorkerProcess.objects.all().delete()
    pause(model, by="benchmark", using="default")
    beside = held_transaction(model) if run.held else contextlib.nullcontext()
    with beside, started(url, run.commands(options.batch_size)) as processes:
        wait_until_up(processes, 0 if run.by_hand else run.workers)
        before = used = cpu_seconds(processes)
        resume(model, using="default")
        for process in processes if run.by_hand else []:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        end = time.monotonic() + 600
        while due(model).exclude(status="complete").exists():
            assert time.monotonic() < end, f"{run.name}: rows are left"
            used = max(used, cpu_seconds(processes))
            time.sleep(0.05)
    found = {
        "rows_per_second": rows / seconds_of(model),
        "cpu_us_per_row": (used - before) / rows * 1e6,
    }
    say(f"  {run.name}: {found['rows_per_second']:,.0f} rows/s")
    return found


def due(model: Any) -> Any:
    """Return the rows that can be worked on."""
    return model._base_manager.filter(not_before__lt=NEXT_CENTURY)


def seconds_of(model: Any) -> float:
    """Return the seconds from the first claim to the last completion, by the database's clock."""
    from django.db.models import Max, Min

    moments = due(model).aggregate(first=Min("claimed_at"), last=Max("completed_at"))
    return float((moments["last"] - moments["first"]).total_seconds())


@contextlib.contextmanager
def held_transaction(model: Any) -> Iterator[None]:
    """Hold a transaction open that has read the table and goes on seeing it as it was then."""
    from django.db import connections

    session = connections.create_connection("default")
    begin = {
        "postgresql": ["BEGIN ISOLATION LEVEL REPEATABLE READ"],
        "mysql": [
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "START TRANSACTION WITH CONSISTENT SNAPSHOT",
        ],
        "sqlite": ["BEGIN"],
    }
    with session.cursor() as cursor:
        for statement in begin[session.vendor]:
            cursor.execute(statement)
        cursor.execute(f"SELECT COUNT(*) FROM {model._meta.db_table}")
        cursor.fetchall()
        try:
            yield
        finally:
            cursor.execute("ROLLBACK")
    session.close()


def table(runs: Sequence[Run], figures: Figures) -> Iterator[str]:
    """Yield the lines of a table of medians, each with its share of the run that it is compared with."""
    yield "| run | rows/s | least to most | share | µs of CPU a row |"
    yield "| --- | --- | --- | --- | --- |"
    for run in runs:
        rates = [one["rows_per_second"] for one in figures[run.name]]
        base = figures.get(run.against or runs[0].name, figures[run.name])
        share = statistics.median(
            one / other["rows_per_second"] for one, other in zip(rates, base, strict=True)
        )
        cpu = statistics.median(one["cpu_us_per_row"] for one in figures[run.name])
        yield f"| {run.name} | {spread(rates)} | {share:.2f} | {cpu:.0f} |"


if __name__ == "__main__":
    main(arguments())
