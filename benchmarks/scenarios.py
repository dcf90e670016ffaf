"""What changes the speed of workers, each condition beside the same run without it.

    DATABASE_URL=postgres://postgres@127.0.0.1:5432/test python -m benchmarks.scenarios held waiting workers

``workers``     1, 8 and 16 processes against 4, and the loop written by hand in as many
``waiting``     100,000 rows that are not due yet, among the others and in front of them
``renewals``    a lease so short that it is renewed all the time, against one that never is
``wide``        rows with 20 columns and five further indexes, against the loop written by hand on the same table
``held``        a transaction that another session holds open meanwhile; what is timed are the claims
``statements``  how many statements each way sends for a row

All conditions of a scenario take turns, forwards and backwards; shares are medians of the shares within a turn.
"""

import argparse
import contextlib
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.database import own_database
from benchmarks.growth import percentile
from benchmarks.throughput import cpu_seconds, say, started, wait_until_up

#: When rows are due that nobody is to claim.
NEXT_CENTURY = datetime(2100, 1, 1, tzinfo=UTC)
WAITING_ROWS = 100_000

Figures = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One condition of a scenario: what works through which table."""

    name: str
    model: str = "Batch"
    workers: int = 4
    options: tuple[str, ...] = ()
    #: Loops of this module instead of workers, with these words.
    loop: tuple[str, ...] = ()
    table: str = "Work"
    #: Priority of the rows that are not due, where there are such.
    waiting: int | None = None
    #: A session that holds a transaction open while it runs.
    held: bool = False

    def commands(self, batch: int) -> list[list[str]]:
        if self.loop:
            return [[*self.loop]] * self.workers
        words = ["claimworker", f"bench.{self.model}", "--processes", str(self.workers)]
        poll = ["--poll", "0.1", "--batch-size", str(batch)]
        return [["-m", "django", *words, *poll, *self.options]]


BY_HAND = ("-m", "benchmarks.by_hand", "100", "batch")
CLAIMS = ("-m", "benchmarks.claims", "100")

#: The first run of each is what the others are compared with.
SCENARIOS: dict[str, tuple[Run, ...]] = {
    "workers": (
        Run("4 workers"),
        Run("1 worker", workers=1),
        Run("8 workers", workers=8),
        Run("16 workers", workers=16),
        Run("4 loops by hand", loop=(*BY_HAND, "bench_work")),
        Run("16 loops by hand", workers=16, loop=(*BY_HAND, "bench_work")),
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
        Run("wide, by hand", loop=(*BY_HAND, "bench_wide"), table="Wide"),
        Run("wide, batch handler", "WideBatch", table="Wide"),
        Run("wide, handler", "Wide", table="Wide"),
    ),
    "held": (
        Run("no transaction open", loop=CLAIMS),
        Run("a transaction held open", loop=CLAIMS, held=True),
    ),
}

STATEMENTS = "statements"
#: Models whose handlers send a different number of statements.
COUNTED = {
    "batch handler": "Batch",
    "handler": "Work",
    "completed row by row": "RowByRow",
    "atomic handler": "Atomic",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scenarios")
    add = parser.add_argument
    add("which", nargs="*", help=f"{', '.join(SCENARIOS)}, {STATEMENTS} (all)")
    add("--rows", type=int, default=100_000, help="rows for each turn (100,000)")
    add("--rounds", type=int, default=3, help="turns of each condition (3)")
    add("--batch-size", type=int, default=100, help="rows a claim (100)")
    add("--json", type=Path, help="where to write every figure")
    return parser.parse_args()


def main(options: argparse.Namespace) -> None:
    asked = options.which or [*SCENARIOS, STATEMENTS]
    figures: dict[str, Any] = {}
    with own_database() as url:
        for name in asked:
            if name == STATEMENTS:
                figures[name] = statements(min(options.rows, 10_000), options.batch_size)
                continue
            runs, found = SCENARIOS[name], Rounds()
            for number in range(options.rounds):
                for run in runs if number % 2 == 0 else reversed(runs):
                    found.add(run, turn(run, url, options))
            say(f"\n{name}")
            for line in found.table(runs):
                say(line)
            figures[name] = found.figures
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


@dataclass
class Rounds:
    """What was found so far, by the name of the run."""

    figures: dict[str, list[Figures]] = field(default_factory=dict)

    def add(self, run: Run, found: Figures) -> None:
        self.figures.setdefault(run.name, []).append(found)
        say(f"  {run.name}: {found['rows_per_second']:,.0f} rows/s")

    def share(self, run: Run, base: Run, of: Callable[[Figures], float]) -> float:
        pairs = zip(self.figures[run.name], self.figures[base.name], strict=True)
        return statistics.median(of(one) / of(other) for one, other in pairs)

    def table(self, runs: Sequence[Run]) -> Iterator[str]:
        """Yield the lines of a table; of loops that time their claims, the claims."""
        base = runs[0]
        if "claims" in self.figures[base.name][0]:
            yield from self._claims(runs)
            return
        yield "| condition | rows/s | least to most | share | µs of CPU a row |"
        yield "| --- | --- | --- | --- | --- |"
        for run in runs:
            rates = [one["rows_per_second"] for one in self.figures[run.name]]
            cpu = statistics.median(one["cpu_us_per_row"] for one in self.figures[run.name])
            share = self.share(run, base, lambda one: float(one["rows_per_second"]))
            yield (
                f"| {run.name} | {statistics.median(rates):,.0f} | {min(rates):,.0f} to {max(rates):,.0f} |"
                f" {share:.2f} | {cpu:.0f} |"
            )

    def _claims(self, runs: Sequence[Run]) -> Iterator[str]:
        yield "| condition | rows/s | claim p50 ms | p99 ms | p99, share |"
        yield "| --- | --- | --- | --- | --- |"
        for run in runs:
            found = self.figures[run.name]
            p50, p99 = (
                statistics.median(percentile(one["claims"], part) for one in found)
                for part in (0.5, 0.99)
            )
            rate = statistics.median(one["rows_per_second"] for one in found)
            share = self.share(run, runs[0], lambda one: percentile(one["claims"], 0.99))
            yield f"| {run.name} | {rate:,.0f} | {p50:.1f} | {p99:.1f} | {share:.2f} |"


def turn(run: Run, url: str, options: argparse.Namespace) -> Figures:
    """Fill the table, have it worked through under the run's condition, and return what was seen."""
    from django.apps import apps

    from django_taskclaim.models import WorkerProcess
    from django_taskclaim.switch import pause, resume

    model = apps.get_model("bench", run.table)
    fill(model, options.rows, run.waiting)
    WorkerProcess.objects.all().delete()
    pause(model, by="benchmark", using="default")
    condition = held_transaction(model) if run.held else contextlib.nullcontext()
    with condition, started(url, run.commands(options.batch_size)) as processes:
        wait_until_up(processes, 0 if run.loop else run.workers)
        before = cpu_seconds(processes)
        resume(model, using="default")
        for process in processes if run.loop else []:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        used = wait_until_done(model, processes, before)
        found = told(model, options.rows, used - before)
        if run.loop == CLAIMS:
            outputs = [process.stdout.readline() for process in processes if process.stdout]
            found["claims"] = [took for output in outputs for took in json.loads(output)]
    return found


def fill(model: Any, rows: int, waiting: int | None) -> None:
    """Fill the table; where rows are to wait, those come first."""
    from django.db import connection

    how = {"postgresql": "VACUUM ANALYZE", "mysql": "ANALYZE TABLE", "sqlite": "ANALYZE"}
    table = model._meta.db_table
    with connection.cursor() as cursor:
        empty = "DELETE FROM" if connection.vendor == "sqlite" else "TRUNCATE"
        cursor.execute(f"{empty} {table}")
        if waiting is not None:
            multiply(cursor, model, WAITING_ROWS, not_before=NEXT_CENTURY, priority=waiting)
        multiply(cursor, model, rows)
        cursor.execute(f"{how[connection.vendor]} {table}")
        if cursor.description:
            cursor.fetchall()
        if connection.vendor == "postgresql":
            cursor.execute("CHECKPOINT")


def multiply(cursor: Any, model: Any, rows: int, **facts: Any) -> None:
    """Add so many rows with these facts."""
    from django.db import connection

    first = model.objects.create(**facts).pk
    table = model._meta.db_table
    names = ", ".join(
        connection.ops.quote_name(column.column)
        for column in model._meta.concrete_fields
        if not column.primary_key
    )
    made = 1
    while made < rows:
        more = min(made, rows - made)
        cursor.execute(
            f"INSERT INTO {table} ({names}) SELECT {names} FROM {table} WHERE id >= %s LIMIT {more}",
            [first],
        )
        made += more


def due(model: Any) -> Any:
    """Return the rows that can be worked on."""
    return model._base_manager.filter(not_before__lt=NEXT_CENTURY)


def wait_until_done(model: Any, processes: Any, before: float) -> float:
    """Wait for the last completion, and return what the processes have used until then."""
    used, left = before, due(model).exclude(status="complete")
    end = time.monotonic() + 600
    while left.exists():
        assert time.monotonic() < end, f"{left.count()} rows are left"
        used = max(used, cpu_seconds(processes))
        time.sleep(0.05)
    return used


def told(model: Any, rows: int, used: float) -> Figures:
    from django.db.models import Max, Min

    moments = due(model).aggregate(first=Min("claimed_at"), last=Max("completed_at"))
    seconds = (moments["last"] - moments["first"]).total_seconds()
    return {"rows_per_second": rows / seconds, "cpu_us_per_row": used / rows * 1e6}


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


# Statements


def statements(rows: int, batch: int) -> dict[str, dict[str, float]]:
    """Say how many statements a worker in this process sends for a row, by their first word."""
    from django.core.management import call_command

    from benchmarks.app.models import Work

    say("\nstatements\n| way | a row | of which |\n| --- | --- | --- |")
    figures = {}
    for name, model in COUNTED.items():
        fill(Work, rows, None)
        with counted() as seen:
            call_command(
                "claimworker", f"bench.{model}", in_process=True, drain=True, batch_size=batch
            )
        figures[name] = {word: count / rows for word, count in seen.most_common()}
        words = ", ".join(f"{word} {share:.3f}" for word, share in figures[name].items())
        say(f"| {name} | {sum(figures[name].values()):.3f} | {words} |")
    return figures


@contextlib.contextmanager
def counted() -> Iterator["Counter[str]"]:
    """Count what all connections of this process send, the driver's own BEGIN and COMMIT left out."""
    from django.db.backends.signals import connection_created

    seen: Counter[str] = Counter()

    def count(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen[sql.split(None, 1)[0].upper()] += 1
        return execute(sql, params, many, context)

    def watch(connection: Any, **kwargs: Any) -> None:
        if count not in connection.execute_wrappers:
            connection.execute_wrappers.append(count)

    connection_created.connect(watch)
    try:
        yield seen
    finally:
        connection_created.disconnect(watch)


if __name__ == "__main__":
    main(arguments())
