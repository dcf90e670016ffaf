"""Runs full cycles of a claim in processes that are killed on the way.

``python -m tests.chaos.cycles`` reads lines ``<cycle> <key of the row> <boundary>`` and answers each with how the
process ended that ran the cycle: 0 when it came to its end, -9 when it was killed. It forks for each, which costs
milliseconds where a new interpreter would cost seconds; so it opens no connection and no thread itself.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

LEASE = 1.0


@dataclass(frozen=True, slots=True)
class Cycle:
    """What the process does with its row, and in which threads it is killed."""

    run: Callable[[int], None]
    thread: str = "MainThread"


def complete(key: int) -> None:
    (row,) = claim(key)
    row.claim.renew()
    _work(row)
    row.claim.complete(update_fields=["signed_by", "signed_iteration"])


def complete_atomically(key: int) -> None:
    from django.db import transaction

    (row,) = claim(key)
    with transaction.atomic():
        _work(row)
        row.claim.complete(update_fields=["signed_by", "signed_iteration"])


def fail(key: int) -> None:
    (row,) = claim(key)
    _work(row)
    row.claim.fail(ValueError("on purpose"))


def release(key: int) -> None:
    (row,) = claim(key)
    row.claim.release()


def release_expired(key: int) -> None:
    """The row is claimed already, and its lease has run out."""
    from tests.chaos.app.models import Work

    Work.objects.filter(pk=key).release_expired()


def whole_worker(key: int) -> None:
    """A whole worker that takes one row: the one of the highest priority, which is this."""
    from django.core.management import call_command

    options = ("--in-process", "--max-rows", "1", "--lease", str(LEASE), "--poll", "0.05")
    call_command("claimworker", "chaos.Work", *options, verbosity=0)


def claim(key: int) -> list[Any]:
    from tests.chaos.app.models import Work

    return Work.objects.filter(pk=key).claim_batch(1, lease=LEASE)


def _work(row: Any) -> None:
    """Do what the handler of the chaos runs does."""
    from tests.chaos.app.claims import plain

    plain(row)


CYCLES: Mapping[str, Cycle] = {
    "complete": Cycle(complete),
    "complete_atomically": Cycle(complete_atomically),
    "fail": Cycle(fail),
    "release": Cycle(release),
    "release_expired": Cycle(release_expired),
    "claimer": Cycle(whole_worker, "taskclaim-claimer"),
    "handler": Cycle(whole_worker, "taskclaim-handler"),
}


class Kennel:
    """The process that forks, as the test sees it."""

    def __init__(self, env: Mapping[str, str], mode: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.cycles"],
            env={**env, "TASKCLAIM_CHAOS_MODE": mode},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.communicate(timeout=30)

    def run(self, cycle: str, key: int, boundary: int) -> int:
        """Run the cycle on the row up to the boundary, and return how the process ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{cycle} {key} {boundary}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def in_a_fork(cycle: Cycle, key: int, boundary: int) -> int:
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        _be_the_victim(cycle, key, boundary)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _be_the_victim(cycle: Cycle, key: int, boundary: int) -> None:
    from django.db import connections
    from django.db.utils import load_backend

    from tests.chaos.killer import Killer

    backend = load_backend(connections.settings["default"]["ENGINE"])
    Killer(boundary, cycle.thread).arm(backend.DatabaseWrapper)
    # Orders come on standard input, and the worker has no use for them.
    os.close(0)
    cycle.run(key)


def main() -> None:
    import django

    django.setup()
    for line in sys.stdin:
        cycle, key, boundary = line.split()
        sys.stdout.write(f"{in_a_fork(CYCLES[cycle], int(key), int(boundary))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
