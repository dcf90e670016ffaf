"""How fast the admin's list and the control room answer on a large table, and what they cost its workers.

    DATABASE_URL=postgres://postgres@127.0.0.1:5432/test python -m benchmarks.control_room --rows 5000000

It fills a table, asks for each page alone and while workers run, and then lets the workers go on, in turns with and
without somebody who watches the page. The share that watching costs is the median over pairs of neighbouring turns.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.common import execute, multiply, own_database, say, settle, started

#: How often an open page asks for its figures, in seconds.
REFRESH = 2.5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control_room")
    add = parser.add_argument
    add("--rows", type=int, default=5_000_000, help="rows in the table (5,000,000)")
    add("--workers", type=int, default=4, help="worker processes (4)")
    add("--asked", type=int, default=15, help="how often each page is asked for (15)")
    add("--pairs", type=int, default=12, help="pairs of turns with and without a viewer (12)")
    add("--turn", type=float, default=8.0, help="seconds of one turn (8)")
    return parser.parse_args()


def main(options: argparse.Namespace) -> None:
    with own_database() as url:
        say(f"Filling {options.rows:,} rows …")
        fill(options.rows)
        pages = addresses()
        report("alone", pages, options.asked)
        words = ("testapp.QuickJob", "--processes", str(options.workers), "--batch-size", "100")
        with started(url, [("django", "claimworker", *words)]):
            wait_for_work()
            report(f"{options.workers} workers", pages, options.asked)
            shares = [watched_share(pages["refresh"], options.turn) for _ in range(options.pairs)]
        told = ", ".join(f"{share:.3f}" for share in sorted(shares))
        say(f"speed of the workers, watched / not watched: median {statistics.median(shares):.3f}")
        say(f"  of {told}")


def fill(rows: int) -> None:
    """Make rows of which every fourth is complete, every hundredth failed and every two hundredth paused."""
    from tests.testapp.models import Job

    multiply(Job, rows)
    table = Job._meta.db_table
    # Statements of the benchmark itself: no claim is made for what was never worked on.
    execute(f"UPDATE {table} SET status = 'complete' WHERE MOD(id, 4) = 0")
    execute(f"UPDATE {table} SET status = 'failed' WHERE MOD(id, 100) = 1")
    execute(f"UPDATE {table} SET status = 'paused' WHERE MOD(id, 200) = 3")
    settle(Job)


def addresses() -> dict[str, Callable[[], Any]]:
    """Return a function for each page that asks for it as a logged-in superuser."""
    from django.contrib import admin
    from django.contrib.auth.models import User
    from django.test import Client
    from django.urls import reverse

    from django_taskclaim.admin import ClaimAdminMixin
    from tests.testapp.models import Job

    kind = type("JobAdmin", (ClaimAdminMixin, admin.ModelAdmin), {})
    admin.site.register(Job, kind)
    client = Client(raise_request_exception=True)
    client.force_login(User.objects.create_superuser("viewer"))

    def asking(name: str, *args: str) -> Callable[[], Any]:
        address = reverse(f"admin:{name}_changelist", args=args)
        return lambda: answered(client.get(address))

    return {
        "list": asking("testapp_job"),
        "page": asking("taskclaim_control", "testapp.job"),
        "refresh": asking("taskclaim_control", "testapp.job", "live"),
    }


def answered(response: Any) -> None:
    if response.status_code != 200:
        raise RuntimeError(f"The page answered {response.status_code}.")


def report(when: str, pages: dict[str, Callable[[], Any]], times: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in pages}
    for _ in range(times):
        for name, ask in pages.items():
            seconds[name].append(timed(ask))
    told = ", ".join(
        f"{name} {statistics.median(every) * 1000:.0f} (at most {max(every) * 1000:.0f})"
        for name, every in seconds.items()
    )
    say(f"{when}, median milliseconds: {told}")


def timed(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def watched_share(refresh: Callable[[], Any], turn: float) -> float:
    """Return the speed of the workers while somebody watches, over that while nobody does, in neighbouring turns."""
    before, watched, after = speed(turn / 2), speed(turn, refresh), speed(turn / 2)
    say(f"  {before:,.0f} rows/s, watched {watched:,.0f}, {after:,.0f}")
    if not before + after:
        raise RuntimeError("No row was done in a turn without a viewer: nothing can be compared.")
    return watched / ((before + after) / 2)


def speed(seconds: float, refresh: Callable[[], Any] | None = None) -> float:
    """Return the rows per second that were done meanwhile; each turn, watched or not, begins with a count."""
    began, first = time.monotonic(), done()
    while (left := began + seconds - time.monotonic()) > 0:
        if refresh is not None:
            refresh()
            left = began + seconds - time.monotonic()
        time.sleep(max(0.0, min(REFRESH, left)))
    ended = time.monotonic()
    return (done() - first) / (ended - began)


def done() -> int:
    """Return how many rows are complete as of the beginning of the question."""
    from tests.testapp.models import Job

    if not Job.objects.filter(status="open").exists():
        raise RuntimeError("No open row is left: give the benchmark more --rows.")
    return Job.objects.filter(status="complete").count()


def wait_for_work() -> None:
    first = done()
    while done() < first + 10_000:
        time.sleep(0.2)


if __name__ == "__main__":
    main(arguments())
