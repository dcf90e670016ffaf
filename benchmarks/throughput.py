"""What a worker costs beside the loop that one would write by hand, in rows per second and seconds of CPU.

    DATABASE_URL=postgres://postgres@127.0.0.1:5432/test python -m benchmarks.throughput --rounds 5

Four processes get through a table of rows that cost nothing to do, in rounds that go through every way in turn; what
counts is the median over the rounds. Processes are up before the first row is claimed, and the database's own clock
says when that was and when the last row was completed. ``--json`` writes every figure to a file.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")

from benchmarks.database import HOME, own_database

#: Where a claim is compared with the loop that completes in the same way.
BATCHES, ROWS = "by hand, in batches", "by hand, row by row"
TRANSACTIONS = "by hand, a transaction a row"
#: What the loop calls them.
BY_HAND = {BATCHES: "batch", ROWS: "row", TRANSACTIONS: "transaction"}


@dataclass(frozen=True)
class Way:
    """One way to get through the table, and what it is compared with."""

    name: str
    model: str = ""
    options: tuple[str, ...] = ()
    against: str = BATCHES

    def command(self, workers: int, batch: int) -> list[list[str]]:
        """Return the command of each process to start."""
        if self.name in BY_HAND:
            return [["-m", "benchmarks.by_hand", str(batch), BY_HAND[self.name]]] * workers
        words = ["claimworker", f"bench.{self.model}", "--processes", str(workers)]
        poll = ["--poll", "0.1", "--batch-size", str(batch)]
        return [["-m", "django", *words, *poll, *self.options]]


WAYS = (
    Way(BATCHES),
    Way("batch handler", "Batch"),
    Way("handler", "Work"),
    Way("handler, 4 threads", "Work", ("--threads", "4")),
    Way("async handler", "Async"),
    Way(ROWS, against=ROWS),
    Way("completed row by row", "RowByRow", against=ROWS),
    Way(TRANSACTIONS, against=TRANSACTIONS),
    Way("atomic handler", "Atomic", against=TRANSACTIONS),
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput")
    add = parser.add_argument
    add("--rows", type=int, default=100_000, help="rows for each turn (100,000)")
    add(
        "--slow-rows", type=int, default=20_000, help="… of what writes each row by itself (20,000)"
    )
    add("--rounds", type=int, default=5, help="turns of each way (5)")
    add("--workers", type=int, default=4, help="processes (4)")
    add("--batch-size", type=int, default=100, help="rows a claim (100)")
    add("--only", action="append", help="a way by its name; again for more of them")
    add("--json", type=Path, help="where to write every figure")
    return parser.parse_args()


def main(options: argparse.Namespace) -> None:
    ways = [way for way in WAYS if not options.only or way.name in options.only]
    figures: dict[str, list[dict[str, float]]] = {way.name: [] for way in ways}
    with own_database() as url:
        for number in range(options.rounds):
            for way in ways if number % 2 == 0 else reversed(ways):
                figures[way.name].append(turn(way, url, options))
        for line in table(ways, figures):
            say(line)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


def turn(way: Way, url: str, options: argparse.Namespace) -> dict[str, float]:
    """Fill the table, let one way get through it, and return rows and microseconds of CPU."""
    from benchmarks.app.models import Work
    from django_taskclaim.models import WorkerProcess
    from django_taskclaim.switch import pause, resume

    rows = options.rows if way.against == BATCHES else options.slow_rows
    fill(rows)
    WorkerProcess.objects.all().delete()
    pause(Work, by="benchmark", using="default")
    with started(url, way.command(options.workers, options.batch_size)) as processes:
        by_hand = not way.model
        wait_until_up(processes, 0 if by_hand else options.workers)
        before = cpu_seconds(processes)
        resume(Work, using="default")
        for process in processes if by_hand else []:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        used = before
        while Work.objects.exclude(status="complete").exists():
            used = max(used, cpu_seconds(processes))
            time.sleep(0.05)
    from django.db.models import Max, Min

    moments = Work.objects.aggregate(first=Min("claimed_at"), last=Max("completed_at"))
    seconds = (moments["last"] - moments["first"]).total_seconds()
    found = {"rows_per_second": rows / seconds, "cpu_us_per_row": (used - before) / rows * 1e6}
    say(
        f"  {way.name}: {found['rows_per_second']:,.0f} rows/s, {found['cpu_us_per_row']:.0f} µs of CPU a row"
    )
    return found


def fill(rows: int) -> None:
    from django.db import connection

    from benchmarks.app.models import Work

    with connection.cursor() as cursor:
        cursor.execute(
            "TRUNCATE bench_work" if connection.vendor != "sqlite" else "DELETE FROM bench_work"
        )
    Work.objects.bulk_create([Work() for _ in range(min(rows, 1000))])
    names = ", ".join(
        connection.ops.quote_name(field.column)
        for field in Work._meta.concrete_fields
        if not field.primary_key
    )
    how = {"postgresql": "VACUUM ANALYZE", "mysql": "ANALYZE TABLE", "sqlite": "ANALYZE"}
    with connection.cursor() as cursor:
        made = min(rows, 1000)
        while made < rows:
            more = min(made, rows - made)
            cursor.execute(
                f"INSERT INTO bench_work ({names}) SELECT {names} FROM bench_work LIMIT {more}"
            )
            made += more
        cursor.execute(f"{how[connection.vendor]} bench_work")
        if cursor.description:
            cursor.fetchall()
        if connection.vendor == "postgresql":
            cursor.execute("CHECKPOINT")


@contextlib.contextmanager
def started(url: str, commands: list[list[str]]) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Run the processes while the block runs."""
    environment: dict[str, Any] = os.environ | {"DATABASE_URL": url, "PYTHONPATH": str(HOME)}
    processes = [
        subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for command in commands
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(60)


def wait_until_up(processes: list["subprocess.Popen[bytes]"], workers: int) -> None:
    """Wait until each loop says that it is ready, or so many worker processes have reported."""
    from django_taskclaim.models import WorkerProcess

    if not workers:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        return
    end = time.monotonic() + 60
    while WorkerProcess.objects.filter(state="paused").count() < workers:
        assert time.monotonic() < end, "the workers did not come up"
        time.sleep(0.1)
    time.sleep(1.0)


def cpu_seconds(processes: list["subprocess.Popen[bytes]"]) -> float:
    """Return what the processes and their children have used so far; those that ended count no more."""
    parents = {process.pid for process in processes}
    used = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(folder.name) in parents or int(fields[1]) in parents:
                used += int(fields[11]) + int(fields[12])
    return used / os.sysconf("SC_CLK_TCK")


def table(ways: list[Way], figures: dict[str, list[dict[str, float]]]) -> Iterator[str]:
    """Yield the lines of a table of medians, each with its share of what it is compared with."""
    yield "| way | rows/s | least to most | share | µs of CPU a row |"
    yield "| --- | --- | --- | --- | --- |"
    for way in ways:
        rates = [one["rows_per_second"] for one in figures[way.name]]
        cpu = statistics.median(one["cpu_us_per_row"] for one in figures[way.name])
        share = ""
        if way.against in figures and way.name != way.against:
            pairs = zip(rates, figures[way.against], strict=True)
            share = (
                f"{statistics.median(one / other['rows_per_second'] for one, other in pairs):.2f}"
            )
        yield (
            f"| {way.name} | {statistics.median(rates):,.0f} | {min(rates):,.0f} to {max(rates):,.0f} | {share} |"
            f" {cpu:.0f} |"
        )


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(arguments())
