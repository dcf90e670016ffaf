"""What range claims cost: a backfill by workers beside the same UPDATE loop written by hand.

    DATABASE_URL=postgres://postgres@127.0.0.1:5432/test python -m benchmarks.backfill --rows 10000000

By hand as many processes share the keys from the beginning and run bare UPDATE statements, each in a transaction
of its own, with no bookkeeping at all. The workers claim planned ranges and walk them; with ``--kills`` that many are
killed by SIGKILL and replaced, with ``--pause`` the switch stops them for a second. Every UPDATE adds 1 to a
counter, so that a row left out or done twice is seen. Both start with their processes at hand: what is timed begins
with the first row and ends with the last.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.database import HOME, own_database

#: By hand each statement changes so many rows; ranges find a size themselves, up to the same.
CHUNK = 50_000
#: So many seconds the switch is off with ``--pause``.
PAUSE = 1.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backfill")
    parser.add_argument("--rows", type=int, default=10_000_000, help="source rows (10,000,000)")
    parser.add_argument("--workers", type=int, default=4, help="processes of either kind (4)")
    parser.add_argument("--range", type=int, default=100_000, help="rows a range (100,000)")
    parser.add_argument("--kills", type=int, default=0, help="workers to kill on the way (none)")
    parser.add_argument("--pause", action="store_true", help="pause for a second on the way")
    parser.add_argument("--turns", type=int, default=1, help="turns of both, in turns (1)")
    parser.add_argument("--lease", type=float, default=5, help="seconds of a lease (5)")
    parser.add_argument("--by-hand", help=argparse.SUPPRESS)
    return parser.parse_args()


def main(options: argparse.Namespace) -> None:
    with own_database() as url:
        fill(options.rows)
        expected = 0
        ratios = []
        for turn in range(options.turns):
            took: dict[Callable[..., float], float] = {}
            for way in (ranges, by_hand) if turn % 2 else (by_hand, ranges):
                vacuum()
                took[way] = way(options, url)
                expected += 1
                prove(options.rows, expected)
            ratios.append(took[ranges] / took[by_hand])
            unpaused = (took[ranges] - PAUSE * options.pause) / took[by_hand]
            say(
                f"by hand {told(took[by_hand], options.rows)}; ranges {told(took[ranges], options.rows)};"
                f" ratio {ratios[-1]:.3f}" + f", {unpaused:.3f} without the pause" * options.pause
            )
        say(f"ratio of wall times, median: {sorted(ratios)[len(ratios) // 2]:.3f}")


def prove(rows: int, expected: int) -> None:
    """Fail unless every row was changed exactly once by every turn so far."""
    from tests.testapp.models import IntSource

    wrong = IntSource.objects.exclude(counter=expected).count()
    assert IntSource.objects.count() == rows
    assert not wrong, f"{wrong:,} rows were not changed exactly once"


def fill(rows: int) -> None:
    from django.db import connection

    from tests.testapp.models import IntSource

    IntSource.objects.bulk_create([IntSource(id=n + 1) for n in range(min(rows, 1_000))])
    made = min(rows, 1_000)
    with connection.cursor() as cursor:
        while made < rows:
            more = min(made, rows - made, 500_000)
            cursor.execute(
                "INSERT INTO testapp_intsource (id, counter)"
                f" SELECT id + {made}, 0 FROM testapp_intsource WHERE id <= {more}"
            )
            made += more


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


# By hand


def by_hand(options: argparse.Namespace, url: str) -> float:
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


def ranges(options: argparse.Namespace, url: str) -> float:
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
    troubles = [kill] * options.kills + [pause_for_a_moment] * options.pause
    while not drained():
        if troubles and rows_done() / options.rows > 1 / (len(troubles) + 2):
            troubles.pop()(options, url, workers)
        time.sleep(0.1)
    moments = IntRange.objects.aggregate(first=Min("claimed_at"), last=Max("completed_at"))
    assert not troubles, "it was over too soon: take more rows"
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    for worker in workers:
        worker.wait(60)
    return float((moments["last"] - moments["first"]).total_seconds())


def work(options: argparse.Namespace, url: str) -> "subprocess.Popen[bytes]":
    words = ("claimworker", "testapp.IntRange", "--lease", str(options.lease), "--poll", "0.2")
    return start(url, "-m", "django", *words, "--in-process")


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


def kill(options: argparse.Namespace, url: str, workers: list[Any]) -> None:
    workers.pop(0).kill()
    workers.append(work(options, url))
    say("killed one")


def pause_for_a_moment(options: argparse.Namespace, url: str, workers: list[Any]) -> None:
    from django_taskclaim.switch import pause, resume
    from tests.testapp.models import IntRange

    pause(IntRange, reason="a moment", using="default")
    time.sleep(PAUSE)
    resume(IntRange, using="default")
    say("paused for a second")


# Both


def start(url: str, *words: str) -> "subprocess.Popen[bytes]":
    environment: dict[str, Any] = os.environ | {
        "DATABASE_URL": url,
        "PYTHONPATH": str(HOME),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "TASKCLAIM_TEST_CHUNK": "adaptive",
        "TASKCLAIM_TEST_REAPER_INTERVAL": "0.5",
    }
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
