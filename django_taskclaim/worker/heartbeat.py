"""What a worker says of itself in the ``WorkerProcess`` table, by the database's clock."""

import os
import socket

import django_taskclaim
from django_taskclaim import claim, conf
from django_taskclaim.db import DatabaseLater, DatabaseNow
from django_taskclaim.leases import LeaseRows
from django_taskclaim.models import WorkerProcess
from django_taskclaim.querysets.isolating import refusals
from django_taskclaim.tables import SILENCE_KEPT
from django_taskclaim.throttling import records
from django_taskclaim.worker.counters import Counters
from django_taskclaim.worker.options import WorkerOptions

#: Seconds between two reports of a process that holds rows, and of one that waits for some.
EVERY, EVERY_IDLE = 5.0, 10.0


def process_name(options: WorkerOptions) -> str:
    """Return the name under which this process reports and that its holders' names begin with."""
    return claim.process_name(options.name)


def report(
    options: WorkerOptions, counters: Counters, *, held: int, paused: bool, is_first: bool
) -> None:
    """Write how the process does; what stands under its name before its *first* report is another's."""
    rows = WorkerProcess.objects.using(options.using)
    refused = refusals(None, options.using)
    facts = {
        "seen_at": DatabaseNow(),
        "state": "paused" if paused else "running",
        "rows_held": held,
        "rows_done": counters.done,
        "rows_failed": counters.failed,
        # As long as there is a row that nobody can write, people are to see it.
        "last_error": str(refused[-1])[:500] if refused else counters.last_error,
    }
    name = process_name(options)
    if not is_first and rows.filter(name=name).update(**facts):
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


def prune(using: str) -> bool:
    """Forget workers and throttles that ended a day ago, and some lease names unused since.

    Returns whether that was all of them.

    Among those are, on MySQL, the queues of holders nobody has asked for.
    """
    chunk = int(conf.setting("CHUNK_SIZE"))
    silent = WorkerProcess.objects.using(using).filter(seen_at__lt=DatabaseLater(-SILENCE_KEPT))
    gone = list(silent.values_list("pk", flat=True)[:chunk])
    silent.filter(pk__in=gone).delete()
    if len(gone) == chunk:
        return False
    records.prune(using)
    return LeaseRows.on(using).forget(SILENCE_KEPT, chunk) < chunk


def sign_off(options: WorkerOptions) -> bool:
    """Take this process off the list: it ended as asked."""
    WorkerProcess.objects.using(options.using).filter(name=process_name(options)).delete()
    return True
