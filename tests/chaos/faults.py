"""What is done to the workers. Each fault is a function of the run; some end by themselves after a while."""

import contextlib
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from django.db import Error, connection, connections, transaction

from django_taskclaim.switch import pause, resume
from tests import freezing
from tests.chaos.app.models import Resource, Work
from tests.chaos.crew import Worker, is_running
from tests.chaos.history import act, harm, leave, orphans
from tests.sessions import end_session, other_sessions
from tests.waiting import looked_for

if TYPE_CHECKING:
    from tests.chaos.run import Run

Fault = Callable[["Run"], None]


class Kind(NamedTuple):
    """A fault, how often it comes beside the others, and what it needs."""

    fault: Fault
    weight: int
    needs: str = ""


KINDS: dict[str, Kind] = {}

#: The resource that results refer to, and that nobody else locks.
REFERENCE = 3


def fault(weight: int, needs: str = "") -> Callable[[Fault], Fault]:
    """Register a fault: *needs* names what some surroundings lack (sessions, row_locks, proxy, server, silence)."""

    def register(function: Fault) -> Fault:
        KINDS[function.__name__] = Kind(function, weight, needs)
        return function

    return register


def victim(
    run: "Run", *, in_process: bool | None = None, proxied: bool | None = None, idle: bool = False
) -> Worker:
    """Choose a worker that holds rows, or with *idle* any, even while it starts; LookupError where none is fit."""
    held = Work.objects.filter(status="processing").values_list("claimed_by", flat=True).distinct()
    working = {holder.partition(".")[0] + "." for holder in held}
    fit = [
        worker
        for worker in run.crew.workers
        if worker.alive
        and not (worker.busy or worker.seat.calm)
        and in_process in (None, worker.seat.in_process)
        and proxied in (None, worker.seat.proxied)
        and (idle or worker.name in working)
    ]
    if not fit:
        raise LookupError("everybody is dead, frozen or leaving")
    chosen = run.rng.choice(fit)
    # What is done to the network is done to all who use it.
    harm("" if proxied else chosen.name)
    return chosen


# Deaths


def _kill(run: "Run", worker: Worker) -> None:
    os.kill(worker.claiming_pid(), signal.SIGKILL)
    orphans("kill", worker.name, run.bounds.kill)


@fault(weight=6)
def kill_child(run: "Run") -> None:
    _kill(run, victim(run, in_process=False))


@fault(weight=3)
def kill_in_process(run: "Run") -> None:
    _kill(run, victim(run, in_process=True))


@fault(weight=3)
def kill_supervisor(run: "Run") -> None:
    """Its child claims nothing after 3 seconds, which the oracle sees, and is gone after 8, which is seen here."""
    worker = victim(run, in_process=False)
    child = worker.claiming_pid()
    stood_still = run.stalls.total
    with act("kill_supervisor", worker.name):
        os.kill(worker.process.pid, signal.SIGKILL)

    def look(allowed: float = 0.0) -> None:
        if (more := run.stalls.total - stood_still - allowed) > 0:
            run.after(more, lambda: look(allowed + more), ends=False)
        elif is_running(child):
            run.complain(worker, "has a child that outlived its supervisor by 8 seconds")

    run.after(8.0, look, ends=False)


@fault(weight=4)
def sigterm(run: "Run") -> None:
    worker = victim(run, idle=run.rng.random() < 0.3)
    worker.busy = True
    worker.process.terminate()

    def look() -> None:
        if worker.alive:
            run.complain(worker, f"was still there {run.bounds.stop} s after SIGTERM")

    run.after(run.bounds.stop, look, ends=False)


@fault(weight=4)
def freeze(run: "Run") -> None:
    """SIGSTOP, from a moment to past the time in which others must have got the rows, then SIGCONT."""
    worker = victim(run)
    pid = worker.claiming_pid()
    long = run.rng.random() < 0.3
    seconds = run.bounds.freeze + 1 if long else run.rng.uniform(0.2, 2.0) * run.plan.lease
    freezing.freeze(pid)
    worker.busy = True
    if long and connection.vendor != "sqlite":
        orphans("freeze", worker.name, run.bounds.freeze)

    def thaw() -> None:
        worker.busy = False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    run.after(seconds, thaw)


# The database


@fault(weight=4, needs="sessions")
def cut_sessions(run: "Run") -> None:
    """End some sessions of workers, in the middle of anything."""
    harm()
    sessions = other_sessions()
    for number in run.rng.sample(sessions, min(len(sessions), run.rng.randint(1, 3))):
        end_session(number)


def in_a_thread(job: Callable[[], None]) -> None:
    def do() -> None:
        with contextlib.suppress(Error):
            job()
        connections.close_all()

    threading.Thread(target=do, daemon=True).start()


@fault(weight=3, needs="row_locks")
def deadlock(run: "Run") -> None:
    """Lock rows that are being worked on from the highest key down, as none of our statements does."""
    harm()
    keys = sorted(some("processing", 20), reverse=True)

    def lock() -> None:
        with transaction.atomic():
            for key in keys:
                list(Work.objects.select_for_update().filter(pk=key))
                time.sleep(0.01)

    in_a_thread(lock)


@fault(weight=1, needs="server")
def crash_server(run: "Run") -> None:
    """Kill the server itself; what the workers held is judged by the time of its return."""
    assert run.server is not None
    harm()
    down = time.monotonic()
    run.server.crash()
    connection.close()
    time.sleep(run.rng.uniform(0.5, 2 * run.plan.lease))
    run.server.start()
    run.connect_again()
    leave(time.monotonic() - down + 10)
    run.calm_down(10)


@fault(weight=1, needs="silence")
def silence(run: "Run") -> None:
    """Keep the connections and answer nothing for longer than a lease; afterwards nobody is charged for that."""
    seconds = run.rng.uniform(1.2, 3.0) * run.plan.lease
    # Somebody works on a claim from before the silence to after it.
    sleeper = Work.objects.create(act=f"sleep:{seconds + 1}", priority=1)
    if not looked_for(Work.objects.filter(pk=sleeper.pk, status="processing").exists, 30):
        raise LookupError("nobody is fit for this now")
    with act("silence"):
        with silent(run):
            time.sleep(seconds)
        run.connect_again()
    leave(seconds + 10)
    run.calm_down(10)


@contextlib.contextmanager
def silent(run: "Run") -> Iterator[None]:
    """Stop every process of the run's own server; on SQLite, whose server is its file, keep the write lock."""
    if run.server is not None:
        processes = [run.server.pid, *freezing.offspring(run.server.pid)]
        signal_all(processes, signal.SIGSTOP)
        try:
            yield
        finally:
            signal_all(processes, signal.SIGCONT)
        return
    name = connection.settings_dict["NAME"]
    with contextlib.closing(sqlite3.connect(name, timeout=60, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        yield
        writer.execute("ROLLBACK")


def signal_all(processes: list[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


# Single rows


@fault(weight=2)
def refused_result(run: "Run") -> None:
    """Add rows whose completion the database refuses, with an error that looks like a database in trouble."""
    Work.objects.bulk_create([Work(act="refuse", priority=1) for _ in range(3)])


@fault(weight=2, needs="row_locks")
def locked_reference(run: "Run") -> None:
    """Keep a row locked for longer than a lease, and add rows whose results refer to it."""
    hold = run.rng.uniform(1.5, 3.0) * run.plan.lease
    locked = threading.Event()

    def lock() -> None:
        with act("locked_reference"), transaction.atomic():
            list(Resource.objects.select_for_update().filter(pk=REFERENCE))
            locked.set()
            time.sleep(hold)

    in_a_thread(lock)
    if not locked.wait(30):
        raise LookupError("somebody else has the lock")
    Work.objects.bulk_create([Work(act=f"refer:{REFERENCE}", priority=1) for _ in range(20)])


# The network


def network(name: str, word: str, weight: int, leases: float = 0.0) -> None:
    """Register a fault that tells the proxy a *word*, and ends after so many leases at most if it goes on."""

    def tell(run: "Run") -> None:
        assert run.proxy is not None
        victim(run, proxied=True)
        run.proxy.tell(word)
        if leases:
            keep_busy(run, True)
            run.after(run.rng.uniform(0.3, leases) * run.plan.lease, lambda: restore(run))

    KINDS[name] = Kind(tell, weight, "proxy")


def restore(run: "Run") -> None:
    assert run.proxy is not None
    run.proxy.tell("pass")
    keep_busy(run, False)


def keep_busy(run: "Run", busy: bool) -> None:
    for worker in run.crew.workers:
        worker.busy = busy if worker.seat.proxied else worker.busy


network("network_hangs", "hang", 3, 3.0)
network("network_refuses", "refuse", 2, 3.0)
network("network_delays", "delay", 2, 2.0)
network("network_resets", "reset", 3)
# The next COMMIT of a proxied worker succeeds, and its worker never hears of it.
network("commit_answer_lost", "swallow", 5)


# People


@fault(weight=3)
def pause_and_resume(run: "Run") -> None:
    if run.paused is not None:
        raise LookupError("paused already")
    pause(Work, by="chaos", using="default")
    run.paused = act("pause")
    run.paused.__enter__()
    run.after(run.rng.uniform(0.5, 2.0), lambda: unpause(run))


def unpause(run: "Run") -> None:
    if run.paused is not None:
        run.paused.__exit__(None, None, None)
        run.paused = None
        resume(Work, using="default")


@fault(weight=2)
def pause_rows(run: "Run") -> None:
    paused = some("open", 50, wanted=True)
    Work.objects.filter(pk__in=paused).pause_rows()
    run.after(1.0, lambda: Work.objects.filter(pk__in=paused).resume_rows())


@fault(weight=3)
def reset_rows(run: "Run") -> None:
    """An operator puts rows back in any state, complete ones and running ones too."""
    with act("reset"):
        keys = [*some("complete", 30), *some("processing", 10), *some("failed", 5)]
        rows = Work.objects.filter(pk__in=keys, wanted=True).exclude(act="die")
        rows.reset(complete=True, running=True)


def some(status: str, n: int, **conditions: bool) -> list[int]:
    return list(Work.objects.filter(status=status, **conditions).values_list("pk", flat=True)[:n])
