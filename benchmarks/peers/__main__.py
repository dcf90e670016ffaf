"""Workers of other packages beside ours, on the same database in the same run.

    DATABASE_URL=postgres://postgres@127.0.0.1:5432/test python -m benchmarks.peers --rounds 3

The first time it builds an environment for them from ``requirements.txt`` (``--venv`` says where). Each has a job that
does nothing, four worker processes and the batch size that suits it best; jobs are enqueued before the clock starts,
processes take turns, round by round. Rows that are left are counted from outside, in the same way for all: the clock
starts when the first is seen to be gone, and start-up is left out. Shares are medians of the shares within a round.
"""

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")

from benchmarks.common import HOME, empty, multiply, own_database, say, settle, spread

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
EVERYWHERE, POSTGRESQL = ("postgresql", "mysql", "sqlite"), ("postgresql",)

#: Seconds without progress after which a turn is given up.
TIMEOUT = 60.0


@dataclass(frozen=True)
class Peer:
    """One package: how its workers are started, and what tells how many of its jobs are left."""

    name: str
    left: str
    #: The command of one worker, or where ``processes`` is 1, of the supervisor of all.
    command: tuple[str, ...]
    processes: int = 4
    #: In the sense of each: rows a claim, or jobs under way in a process.
    batch: int = 1
    #: The part of ``--rows`` that it gets, as it is slower.
    part: float = 1.0
    runs_on: tuple[str, ...] = EVERYWHERE
    ours: bool = False


def ours(name: str, model: str, batch: int) -> Peer:
    words = f"claimworker bench.{model} --processes 4 --poll 0.1 --batch-size {batch}"
    left = "SELECT COUNT(*) FROM bench_work WHERE status <> 'complete'"
    return Peer(name, left, ("django", *words.split()), 1, batch, ours=True)


PEERS = (
    ours("claimworker, batch handler", "Batch", 500),
    ours("claimworker, handler", "Work", 500),
    Peer(
        "pgqueuer",
        "SELECT COUNT(*) FROM pgqueuer",
        ("benchmarks.peers.side", "pgqueuer", "work", "{batch}"),
        batch=100,
        runs_on=POSTGRESQL,
    ),
    Peer(
        "django-reliable-outbox",
        "SELECT COUNT(*) FROM reliable_outbox_outboxmessage WHERE status = 'pending'",
        ("django", "outbox_worker", "--batch-size", "{batch}", "--poll-interval", "0.1"),
        batch=100,
        part=0.2,
        runs_on=POSTGRESQL,
    ),
    Peer(
        "procrastinate",
        "SELECT COUNT(*) FROM procrastinate_jobs WHERE status <> 'succeeded'",
        ("benchmarks.peers.side", "procrastinate", "work", "{batch}"),
        batch=10,
        part=0.05,
        runs_on=POSTGRESQL,
    ),
    Peer(
        "django-q2",
        "SELECT COUNT(*) FROM django_q_ormq",
        ("django", "qcluster"),
        processes=1,
        batch=50,
        part=0.05,
    ),
    Peer(
        "django-ox",
        "SELECT COUNT(*) FROM django_ox_oxtask WHERE finished_at IS NULL",
        (
            *("django", "ox_worker", "--backend", "ox", "--processes", "4"),
            *("--concurrency", "{batch}", "--interval", "0.1"),
        ),
        processes=1,
        batch=1,
        part=0.05,
    ),
    Peer(
        "django-tasks-db",
        "SELECT COUNT(*) FROM django_tasks_database_dbtaskresult WHERE finished_at IS NULL",
        ("django", "db_worker", "--interval", "0", "--no-startup-delay"),
        part=0.05,
    ),
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    add = parser.add_argument
    add("--rows", type=int, default=50_000, help="jobs for the fast ones (50,000)")
    add("--rounds", type=int, default=3, help="turns of each (3)")
    add("--only", action="append", help="a package by its name; again for more of them")
    add("--batch-size", type=int, help="another one for all, to find the best")
    add("--venv", type=Path, default=HOME / "build" / "peers", help="where they are installed")
    return parser.parse_args()


def main(options: argparse.Namespace) -> None:
    python = environment(options.venv)
    figures: dict[str, list[float]] = {}
    with own_database() as url, peers_database(url) as theirs:
        from django.db import connection

        chosen = [
            peer
            for peer in PEERS
            if connection.vendor in peer.runs_on
            and (peer.ours or not options.only or peer.name in options.only)
        ]
        prepare(python, theirs, chosen)
        for number in range(options.rounds):
            for peer in chosen if number % 2 == 0 else reversed(chosen):
                rate = turn(peer, python, url if peer.ours else theirs, options)
                figures.setdefault(peer.name, []).append(rate)
                say(f"  {peer.name}: {rate:,.0f} rows/s")
        for line in table(chosen, figures):
            say(line)


def environment(folder: Path) -> Path:
    """Return the Python of the peers' environment, which is built where there is none."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "-r", str(REQUIREMENTS)]
        subprocess.run(install, check=True)
    return python


@contextlib.contextmanager
def peers_database(url: str) -> Iterator[str]:
    """Yield the URL of a second database on the server, for the tables of the peers."""
    from django.db import connection

    name = urlsplit(url).path.lstrip("/")
    other = f"{name}_peers"
    if connection.vendor == "sqlite":
        yield url.replace(name, other)
        Path(f"/{other}").unlink(missing_ok=True)
        return
    quoted = connection.ops.quote_name(other)
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {quoted}")
    try:
        yield url.replace(name, other)
    finally:
        force = " WITH (FORCE)" if connection.vendor == "postgresql" else ""
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {quoted}{force}")


def prepare(python: Path, url: str, chosen: list[Peer]) -> None:
    for peer in chosen:
        if not peer.ours:
            side(python, url, peer.name, "prepare")


def side(python: Path, url: str, *words: str) -> None:
    command = [str(python), "-m", "benchmarks.peers.side", *words]
    given = surroundings(url)
    subprocess.run(command, env=given, cwd=HOME, check=True, stderr=subprocess.DEVNULL)


def surroundings(url: str, batch: int = 1) -> dict[str, Any]:
    more = {"DATABASE_URL": url, "PYTHONPATH": str(HOME), "BENCHMARK_BATCH": str(batch)}
    return os.environ | more | {"DJANGO_SETTINGS_MODULE": "benchmarks.peers.settings"}


def turn(peer: Peer, python: Path, url: str, options: argparse.Namespace) -> float:
    """Fill the queue of one peer, let its workers loose, and return the rows per second."""
    rows = int(options.rows * peer.part)
    batch = options.batch_size or peer.batch
    if peer.ours:
        from benchmarks.app.models import Work

        empty(Work)
        multiply(Work, rows)
        settle(Work)
    else:
        side(python, url, peer.name, "fill", str(rows))
    with left_in(peer, url) as left, working(peer, python, url, batch):
        return watched(left, rows, peer.name)


@contextlib.contextmanager
def left_in(peer: Peer, url: str) -> Iterator[Any]:
    """Yield a function that counts the jobs that are left, on a connection of its own."""
    import dj_database_url
    from django.db import connections

    session = connections.create_connection("default")
    # As the benchmark's own, but for the database.
    session.settings_dict = session.settings_dict | {"NAME": dj_database_url.parse(url)["NAME"]}

    def left() -> int:
        with session.cursor() as cursor:
            cursor.execute(peer.left)
            return int(cursor.fetchone()[0])

    try:
        yield left
    finally:
        session.close()


@contextlib.contextmanager
def working(peer: Peer, python: Path, url: str, batch: int) -> Iterator[None]:
    """Run the workers while the block runs, and make sure that all of their processes are gone after it."""
    words = [word.format(batch=batch) for word in peer.command]
    given = surroundings(url, batch)
    if peer.ours:
        given |= {"DJANGO_SETTINGS_MODULE": "benchmarks.settings"}
    started = [
        subprocess.Popen(
            [sys.executable if peer.ours else str(python), "-m", *words],
            env=given,
            cwd=HOME,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for _ in range(peer.processes)
    ]
    try:
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            # Its children too: some leave them behind.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def watched(left: Any, rows: int, name: str) -> float:
    """Return the rows per second from the first that is seen to be gone to the last."""
    before, began = rows, 0.0
    last, moved = rows, time.monotonic()
    while True:
        now, count = time.monotonic(), left()
        if count < last:
            last, moved = count, now
            if not began:
                before, began = count, now
        if not count:
            return before / (now - began) if now > began and before else float(rows)
        if now - moved > TIMEOUT:
            raise RuntimeError(f"{name} does not go on: {count} of {rows} rows are left")
        time.sleep(0.02)


def table(chosen: list[Peer], figures: dict[str, list[float]]) -> Iterator[str]:
    """Yield a line for each peer; the shares tell how many times as fast our two ways were in the same round."""
    yield "| package | batch | rows/s | least to most | batch handler / it | handler / it |"
    yield "| --- | --- | --- | --- | --- | --- |"
    mine = [figures[peer.name] for peer in chosen if peer.ours]
    for peer in chosen:
        rates = figures[peer.name]
        shares = [
            statistics.median(one / other for one, other in zip(way, rates, strict=True))
            for way in mine
        ]
        yield (
            f"| {peer.name} | {peer.batch} | {spread(rates)} |"
            f" {' | '.join(f'{share:.1f}' for share in shares)} |"
        )


if __name__ == "__main__":
    main(arguments())
