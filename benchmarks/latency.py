"""How long it takes from an INSERT to the handler while a worker is idle, with wake-up calls and without.

    DATABASE_URL=postgres://postgres@127.0.0.1:5432/test python -m benchmarks.latency --rows 200

One row after the other is saved, each a while after the one before was done, so that the worker is idle again. Both
workers are there all the time and have a table of their own, and so has a loop written by hand that does nothing but
listen, claim and complete; they take turns, row by row. What is timed begins before
``save()`` and ends with the handler's first line; both read the clock of the machine.
"""

import argparse
import os
import random
import select
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from benchmarks.common import own_database, percentile, say, started

#: Seconds after which a row that nobody has taken means that a process has ended.
TIMEOUT = 60.0

BY_HAND = "a loop by hand that listens"

#: By the name of the model whose handler does or does not ask to be called, and of the one that a bare loop serves.
WAYS = {"polling every second": "Polled", "wake-up calls": "Called", BY_HAND: "Listened"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency")
    add = parser.add_argument
    add("--rows", type=int, default=100, help="rows of each way (100)")
    add("--pause", type=float, default=0.3, help="seconds between rows, half to double (0.3)")
    add("--by-hand", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main(options: argparse.Namespace) -> None:
    pipe = Path(tempfile.gettempdir(), f"taskclaim-{os.getpid()}")
    os.mkfifo(pipe)
    os.environ["BENCHMARK_PIPE"] = str(pipe)
    took: dict[str, list[float]] = {name: [] for name in WAYS}
    commands = [command(name, model) for name, model in WAYS.items()]
    with (
        own_database() as url,
        open(os.open(pipe, os.O_RDWR)) as told,
        started(url, commands),
    ):
        from django.apps import apps

        from django_taskclaim.db.notify import called_for

        called_for.add(apps.get_model("bench", WAYS[BY_HAND]))
        for model in WAYS.values():
            # Until each has done a row it is not up.
            measured(apps.get_model("bench", model), told)
        time.sleep(2)
        for _ in range(options.rows):
            for name, model in WAYS.items():
                time.sleep(options.pause * random.uniform(0.5, 2))
                took[name].append(measured(apps.get_model("bench", model), told))
    for line in table(took):
        say(line)
    pipe.unlink()


def command(name: str, model: str) -> list[str]:
    """Return the command of the process that serves one model."""
    if name == BY_HAND:
        return ["benchmarks.latency", "--by-hand"]
    return ["django", "claimworker", f"bench.{model}"]


def serve_by_hand() -> None:
    """Listen, claim, tell and complete for ever, with nothing around it."""
    import django

    django.setup()
    from django.db import connection

    from benchmarks.app.claims import tell
    from benchmarks.app.models import Listened
    from benchmarks.by_hand import PostgreSQL
    from django_taskclaim.db.notify import CHANNEL

    connection.ensure_connection()
    session: Any = connection.connection
    loop, holder = PostgreSQL(connection, Listened._meta.db_table, "t.id"), "hand@host#0"
    loop.cursor.execute(f"LISTEN {CHANNEL}")
    while True:
        for (key,) in loop.claim(0, holder, 50):
            tell(key)
            loop.complete([key], holder)
        for _ in session.notifies(timeout=1.0, stop_after=1):
            pass


def measured(model: Any, told: TextIO) -> float:
    """Save a row and return the milliseconds until its handler was called."""
    began = time.monotonic()
    row = model.objects.create()
    assert select.select([told], [], [], TIMEOUT)[0], f"no process has taken {row!r}"
    key, moment = told.readline().split()
    assert int(key) == row.pk
    return (float(moment) - began) * 1000


def table(took: dict[str, list[float]]) -> Iterator[str]:
    yield "| an idle worker has | rows | p50 ms | p99 ms |"
    yield "| --- | --- | --- | --- |"
    for name, numbers in took.items():
        p50, p99 = (percentile(numbers, part) for part in (0.5, 0.99))
        yield f"| {name} | {len(numbers)} | {p50:.1f} | {p99:.1f} |"


if __name__ == "__main__":
    given = arguments()
    if given.by_hand:
        serve_by_hand()
    else:
        main(given)
