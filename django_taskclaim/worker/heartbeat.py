"""What a worker says of itself in the ``WorkerProcess`` table, by the database's clock."""

import os
import socket
from dataclasses import dataclass, field
from threading import Lock

import django_taskclaim
from django_taskclaim import conf, holders
from django_taskclaim.db import DatabaseLater, DatabaseNow
from django_taskclaim.leases import LeaseRows
from django_taskclaim.models import WorkerProcess
from django_taskclaim.querysets.isolating import last_refusal
from django_taskclaim.throttling import records
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.tally import Tally

#: Seconds between two reports of a process that holds rows, and of one that waits for some.
EVERY, EVERY_IDLE = 5.0, 10.0


@dataclass(slots=True)
class Vitals:
    """Counters that the threads of one process share."""

    done: int = 0
    failed: int = 0
    last_error: str = ""
    #: Whether the process has said when it started; before, what stands under its name is another's.
    introduced: bool = False
    #: The same by model, with more detail, for whoever takes it.
    tally: Tally = field(default_factory=Tally)
    _lock: Lock = field(default_factory=Lock)

    def count_done(self, model: object, rows: int) -> None:
        with self._lock:
            self.done += rows
        self.tally.count_done(model, rows)

    def count_error(self, model: object, error: str, *, final: bool) -> None:
        """Note what a try ended with; only the last try of a row makes it a failed one."""
        with self._lock:
            self.failed += final
            self.last_error = error[:500]
        self.tally.count_error(model, final=final)


def process_name(options: WorkerOptions) -> str:
    """Return the name under which this process reports and that its holders' names begin with."""
    return holders.process_name(options.name)


def report(options: WorkerOptions, vitals: Vitals, *, held: int, paused: bool) -> None:
    """Write what there is to say."""
    rows = WorkerProcess.objects.using(options.using)
    facts = {
        "seen_at": DatabaseNow(),
        "state": "paused" if paused else "running",
        "rows_held": held,
        "rows_done": vitals.done,
        "rows_failed": vitals.failed,
        # As long as there is a row that nobody can write, people are to see it.
        "last_error": last_refusal(options.using)[:500] or vitals.last_error,
    }
    name = process_name(options)
    if vitals.introduced and rows.filter(name=name).update(**facts):
        return
    facts |= {
        "labels": ", ".join(options.labels),
        "host": socket.gethostname()[:200],
        "pid": os.getpid(),
        "version": django_taskclaim.__version__,
        "started_at": DatabaseNow(),
    }
    if not rows.filter(name=name).update(**facts):
        rows.create(name=name, **facts)
    vitals.introduced = True


def prune(using: str) -> bool:
    """Forget workers and throttles that ended WORKER_RETENTION ago, and some lease names unused since.

    Returns whether that was all of them.

    Among those are, on MySQL, the queues of holders nobody has asked for.
    """
    retention, chunk = conf.duration("WORKER_RETENTION"), int(conf.setting("CHUNK_SIZE"))
    silent = WorkerProcess.objects.using(using).filter(seen_at__lt=DatabaseLater(-retention))
    gone = list(silent.values_list("pk", flat=True)[:chunk])
    silent.filter(pk__in=gone).delete()
    if len(gone) == chunk:
        return False
    records.prune(using)
    return LeaseRows.on(using).forget(retention, chunk) < chunk


def sign_off(options: WorkerOptions) -> bool:
    """Take this process off the list: it ended as asked."""
    WorkerProcess.objects.using(options.using).filter(name=process_name(options)).delete()
    return True
