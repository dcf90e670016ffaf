"""Runs full cycles of a claim in processes that are killed before or after one of their statements.

``python -m tests.chaos.cycles`` reads lines ``<cycle> <key of the row> <boundary>`` and answers each with how the
process ended that ran the cycle: 0 when it came to its end, -9 when it was killed. It forks for each, which costs
milliseconds where a new interpreter would cost seconds; so it opens no connection and no thread itself.
"""

import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from tests.processes import say
from tests.waiting import wait_until

LEASE = 1.0
FIELDS = ["signed_by", "signed_iteration"]


# What the process does with its row


def complete(key: int) -> None:
    row = claim(key)
    row.claim.renew()
    work(row)
    row.claim.complete(update_fields=FIELDS)


def fail(key: int) -> None:
    row = claim(key)
    work(row)
    row.claim.fail(ValueError("on purpose"))


def whole_worker(key: int) -> None:
    """A whole worker that takes one row: the one of the highest priority, which is this."""
    from django.core.management import call_command

    options = ("--in-process", "--max-rows", "1", "--lease", str(LEASE), "--poll", "0.05")
    call_command("claimworker", "chaos.Work", *options, verbosity=0)


def claim(key: int) -> Any:
    """Claim the row, as soon as it can be."""
    from tests.chaos.app.models import Work

    (row,) = wait_until(lambda: Work.objects.filter(pk=key).claim_batch(1, lease=LEASE))
    return row


def work(row: Any) -> None:
    """Do what the handler of the chaos runs does."""
    from tests.chaos.app.claims import plain

    plain(row)


#: What runs, and in which threads it is killed.
CYCLES: dict[str, tuple[Callable[[int], None], tuple[str, ...]]] = {
    "complete": (complete, ("MainThread",)),
    "fail": (fail, ("MainThread",)),
    "worker": (whole_worker, ("taskclaim-claimer", "taskclaim-handler")),
}

# How it is killed


class Killer:
    """Kills its own process at the n-th boundary of a statement: before the first is 0, after it 1, and so on.

    BEGIN and COMMIT count too; Django sends those past ``execute_wrappers``.
    """

    METHODS = ("_commit", "_rollback", "_set_autocommit", "_start_transaction_under_autocommit")

    def __init__(self, at: int, threads: tuple[str, ...]) -> None:
        self.left, self.threads = at, threads

    def arm(self, wrapper: Any) -> None:
        """Count from now on; for a process of its own, because nothing is put back."""
        usual = wrapper.__init__

        def created(connection: Any, *args: Any, **kwargs: Any) -> None:
            usual(connection, *args, **kwargs)
            connection.execute_wrappers.append(self)

        wrapper.__init__ = created
        for name in self.METHODS:
            if hasattr(wrapper, name):
                setattr(wrapper, name, self._counted(getattr(wrapper, name)))

    def __call__(self, execute: Callable[..., Any], *args: Any) -> Any:
        self._boundary()
        result = execute(*args)
        self._boundary()
        return result

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def counted(*args: Any, **kwargs: Any) -> Any:
            return self(functools.partial(method, *args, **kwargs))

        return counted

    def _boundary(self) -> None:
        if threading.current_thread().name.startswith(self.threads):
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1


def in_a_fork(cycle: str, key: int, boundary: int) -> int:
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        from django.db import connections
        from django.db.utils import load_backend

        run, threads = CYCLES[cycle]
        backend: Any = load_backend(connections.settings["default"]["ENGINE"])
        Killer(boundary, threads).arm(backend.DatabaseWrapper)
        # Lines come on standard input, and the worker has no use for them.
        os.close(0)
        run(key)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    import django

    django.setup()
    for line in sys.stdin:
        cycle, key, boundary = line.split()
        say(in_a_fork(cycle, int(key), int(boundary)))
