"""What range claims cost: a backfill by workers beside the same UPDATE loop written by hand.

    DATABASE_URL=postgres://postgres@127.0.0.1:5432/test python -m benchmarks.backfill --rows 10000000

By hand as many processes share the keys from the beginning and run bare UPDATE statements, each in a transaction
of its own, with no bookkeeping at all. The workers claim planned ranges and walk them; with ``--kills`` that many are
killed by SIGKILL and replaced, with ``--pause`` the switch is off until all have stopped, and then on again. Every
UPDATE adds 1 to a counter, so that a row left out or done twice is seen. Both start with their processes at hand: what
is timed begins with the first row and ends with the last.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

from benchmarks.database import HOME, own_database

#: By hand each statement changes so many rows; ranges find a size themselves.
CHUNK = 50_000
#: What the counters begin with: SQLite keeps 0 and 1 in no byte at all, so that rows would grow while one is timed.
BEFORE = 2
#: Seconds between two looks at how far the workers are.
LOOK = 0.25


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backfill")
    parser.add_argument("--rows", type=int, default=10_000_000, help="source rows (10,000,000)")
    parser.add_argument("--workers", type=int, default=4, help="processes of either kind (4)")
    parser.add_argument("--range", type=int, default=100_000, help="rows a range (100,000)")
    parser.add_argument(
        "--largest", type=int, default=CHUNK, help="rows of a chunk at most (50,000)"
    )
    parser.add_argument("--kills", type=int, default=0, help="workers to kill on the way (none)")
    parser.add_argument(
        "--pause", action="store_true", help="pause on the way, until all stand still"
    )
    parser.add_argument(
        "--indexed", action="store_true", help="put an index on the column that changes"
    )
    parser.add_argument("--turns", type=int, default=1, help="turns of both, in turns (1)")
    parser.add_argument("--lease", type=float, default=5, help="seconds of a lease (5)")
    parser.add_argument("--by-hand", help=argparse.SUPPRESS)
    return parser.parse_args()


def main(options: argparse.Namespace) -> None:
    with own_database() as url:
        fill(options.rows)
        if options.indexed:
            run("CREATE INDEX benchmark_counter ON testapp_intsource (counter)")
        # Not counted: the first UPDATE of all rows has the table grow.
        by_hand(options, url)
        turns = [take_turns(options, url, turn) for turn in range(options.turns)]
        say(f"ratio of wall times, median: {median(one.ratio for one in turns):.3f}")
        if options.pause:
            say(f"without the pause, median: {median(one.unpaused for one in turns):.3f}")


class Turn(NamedTuple):
    """How long both took in one turn, in seconds, and how much of it nobody worked because of the pause."""

    by_hand: float
    ranges: float
    stood_still: float

    @property
    def ratio(self) -> float:
        return self.ranges / self.by_hand

    @property
    def unpaused(self) -> float:
        return (self.ranges - self.stood_still) / self.by_hand


def take_turns(options: argparse.Namespace, url: str, turn: int) -> Turn:
    """Let both change each row once, another one first each time."""
    took: dict[Callable[..., float], float] = {}
    pauses: list[Pause] = []
    order = (ranges, by_hand) if turn % 2 else (by_hand, ranges)
    for counter, way in enumerate(order, BEFORE + 2 + 2 * turn):
        vacuum()
        took[way] = way(options, url, pauses)
        prove(options.rows, counter)
    # What was done before all had stopped is no loss.
    each = took[by_hand] / options.rows
    stood_still = sum(max(0.0, one.seconds - one.rows * each) for one in pauses)
    result = Turn(took[by_hand], took[ranges], stood_still)
    say(
        f"by hand {told(result.by_hand, options.rows)}; ranges {told(result.ranges, options.rows)};"
        f" ratio {result.ratio:.3f}" + f", {result.unpaused:.3f} without the pause" * options.pause
    )
    return result


def prove(rows: int, expected: int) -> None:
    """Fail unless every row was changed exactly once by every turn so far."""
    from tests.testapp.models import IntSource

    wrong = IntSource.objects.exclude(counter=expected).count()
    assert IntSource.objects.count() == rows
    assert not wrong, f"{wrong:,} rows were not changed exactly once"


def fill(rows: int) -> None:
    from django.db import connection

    from tests.testapp.models import IntSource

    IntSource.objects.bulk_create(
        [IntSource(id=n + 1, counter=BEFORE) for n in range(min(rows, 1_000))]
    )
    made = min(rows, 1_000)
    with connection.cursor() as cursor:
        while made < rows:
            more = min(made, rows - made, 500_000)
            cursor.execute(
                "INSERT INTO testapp_intsource (id, counter)"
                f" SELECT id + {made}, {BEFORE} FROM testapp_intsource WHERE id <= {more}"
            )
            made += more


def run(statement: str) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement)


def vacuum() -> None:
    """Give both the same table to begin with."""
    from django.db import connection

    how = {
        "postgresql": "VACUUM ANALYZE testapp_intsource",
        "mysql": "ANALYZE TABLE testapp_intsource",
        "sqlite": "ANALYZE testapp_intsource",
    }
    with connection.cursor() as cursor:
        cursor.execute(how[connection.vendor])
        if connection.vendor == "postgresql":
            cursor.execute("CHECKPOINT")
        elif connection.vendor == "mysql":
            cursor.fetchall()
            settle_innodb(cursor)


def settle_innodb(cursor: Any) -> None:
    """Wait until the server has purged and flushed what the last one left, which the next one would pay for."""
    cursor.execute("SELECT @@GLOBAL.innodb_max_dirty_pages_pct")
    ((usual,),) = cursor.fetchall()
    end = time.monotonic() + 120
    cursor.execute("SET GLOBAL innodb_max_dirty_pages_pct = 0")
    try:
        for name, enough in (("trx_rseg_history_len", 1_000), ("buffer_pool_pages_dirty", 1_000)):
            while True:
                cursor.execute(
                    "SELECT count FROM information_schema.innodb_metrics WHERE name = %s", [name]
                )
                ((left,),) = cursor.fetchall()
                if left <= enough:
                    break
                assert time.monotonic() < end, f"{name} is still {left}"
                time.sleep(0.5)
    finally:
        cursor.execute("SET GLOBAL innodb_max_dirty_pages_pct = %s", [usual])


# By hand


def by_hand(options: argparse.Namespace, url: str, pauses: object = None) -> float:
    """Share the keys out to processes that do nothing but UPDATE, and return how long they took."""
    share = -(-options.rows // options.workers)
    started = [
        start(url, "-m", "benchmarks.backfill", "--by-hand", f"{n * share},{(n + 1) * share}")
        for n in range(options.workers)
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    began = time.perf_counter()
    for process in started:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
    took = time.perf_counter() - began
    for process in started:
        process.wait(60)
    return took


def loop(bounds: str) -> None:
    """Be one of those processes: walk the keys by an index, as somebody who knows the table would."""
    import django

    django.setup()
    from django.db import connection

    after, until = map(int, bounds.split(","))
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        while True:
            cursor.execute(
                "SELECT id FROM testapp_intsource WHERE id > %s AND id <= %s"
                f" ORDER BY id LIMIT 1 OFFSET {CHUNK - 1}",
                [after, until],
            )
            found = cursor.fetchone()
            last = found[0] if found else until
            cursor.execute(
                "UPDATE testapp_intsource SET counter = counter + 1 WHERE id > %s AND id <= %s",
                [after, last],
            )
            after = last
            if not found:
                break
    sys.stdout.write("done\n")


# Ranges


class Pause(NamedTuple):
    """How long the switch was off, and how many rows were done until all had seen it."""

    seconds: float
    rows: int


def ranges(options: argparse.Namespace, url: str, pauses: list[Pause]) -> float:
    """Plan ranges, let workers drain them, and return the seconds from the first claim to the last completion."""
    from django.db.models import Max, Min

    from tests.testapp.models import IntRange

    IntRange.objects.all().delete()
    began = time.perf_counter()
    count = IntRange.objects.plan(chunk_size=options.range)
    say(f"planned {count} ranges in {time.perf_counter() - began:.2f} s")
    IntRange.objects.pause_rows()
    workers = [work(options, url) for _ in range(options.workers)]
    wait_for_workers(options.workers)
    IntRange.objects.resume_rows()
    # The pause first: afterwards a range of a killed worker would seem to be worked on.
    troubles = [kill] * options.kills + [pause_for_a_moment] * options.pause
    while not drained():
        if troubles and rows_done() / options.rows > 1 / (len(troubles) + 2):
            troubles.pop()(options, url, workers, pauses)
        time.sleep(LOOK)
    moments = IntRange.objects.aggregate(first=Min("claimed_at"), last=Max("completed_at"))
    assert not troubles, "it was over too soon: take more rows"
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    for worker in workers:
        worker.wait(60)
    return float((moments["last"] - moments["first"]).total_seconds())


def work(options: argparse.Namespace, url: str) -> "subprocess.Popen[bytes]":
    words = ("claimworker", "testapp.IntRange", "--lease", str(options.lease), "--poll", "0.2")
    largest = str(options.largest)
    return start(url, "-m", "django", *words, "--in-process", TASKCLAIM_TEST_LARGEST=largest)


def wait_for_workers(number: int) -> None:
    from django_taskclaim.models import WorkerProcess

    end = time.monotonic() + 60
    while WorkerProcess.objects.filter(state="running").count() < number:
        assert time.monotonic() < end, "the workers did not come up"
        time.sleep(0.1)


def drained() -> bool:
    from tests.testapp.models import IntRange

    return not IntRange.objects.exclude(status="complete").exists()


def rows_done() -> int:
    from django.db.models import Sum

    from tests.testapp.models import IntRange

    return IntRange.objects.aggregate(done=Sum("rows_done"))["done"] or 0


def kill(options: argparse.Namespace, url: str, workers: list[Any], pauses: object) -> None:
    workers.pop(0).kill()
    workers.append(work(options, url))
    say("killed one")


def pause_for_a_moment(
    options: argparse.Namespace, url: str, workers: object, pauses: list[Pause]
) -> None:
    """Pause until all workers have stopped, and let them go on."""
    from django_taskclaim.switch import pause, resume
    from tests.testapp.models import IntRange

    began, done = time.perf_counter(), rows_done()
    pause(IntRange, reason="a moment", using="default")
    while IntRange.objects.filter(status="processing").exists():
        time.sleep(0.05)
    more = rows_done() - done
    resume(IntRange, using="default")
    pauses.append(Pause(time.perf_counter() - began, more))
    say(f"paused for {pauses[-1].seconds:.2f} s; {more:,} rows were done until all had stopped")


# Both


def start(url: str, *words: str, **more: str) -> "subprocess.Popen[bytes]":
    environment: dict[str, Any] = (
        os.environ
        | more
        | {
            "DATABASE_URL": url,
            "PYTHONPATH": str(HOME),
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "TASKCLAIM_TEST_CHUNK": "adaptive",
            "TASKCLAIM_TEST_REAPER_INTERVAL": "0.5",
        }
    )
    # Else whoever is killed is replaced by a process that compiles all of Django first, as nobody's does.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=HOME,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if "--by-hand" in words else subprocess.DEVNULL,
    )


def told(took: float, rows: int) -> str:
    return f"{took:.2f} s ({rows / took:,.0f} rows/s)"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    given = arguments()
    if given.by_hand:
        loop(given.by_hand)
    else:
        main(given)
