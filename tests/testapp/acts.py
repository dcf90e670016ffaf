"""What the handlers of ``tests.testapp.claims`` do: the act that a job names is a function here."""

import ctypes
import logging
import os
import threading
import time
from contextlib import suppress
from typing import Any

from django.db import Error, connection, transaction

from django_taskclaim.exceptions import Permanent, RetryLater
from django_taskclaim.signals import rows_claimed
from tests.testapp.models import Job, Ledger

log = logging.getLogger("django_taskclaim.testapp")


def note(job: Job, remark: str = "") -> None:
    token = job.claim.token
    Ledger.objects.create(
        model="Job", key=str(job.pk), worker=token.holder, note=remark or str(token)
    )


def work(job: Job, detail: str) -> None:
    """Nothing that could go wrong."""


def fail(job: Job, detail: str) -> None:
    raise ValueError(f"job {job.pk} {detail}")


def shout(job: Job, detail: str) -> None:
    """Fail with 50 MB of text."""
    raise ValueError("x" * 50_000_000)


def permanent(job: Job, detail: str) -> None:
    raise Permanent(f"job {job.pk} will never work")


def later(job: Job, detail: str) -> None:
    if job.iteration < 3:
        raise RetryLater(0.1, "come back")


def later_all(job: Job, detail: str) -> None:
    """Once, ask everybody to wait, as an upstream does that answers 429."""
    if job.iteration == 0:
        raise RetryLater(float(detail), "429 Too Many Requests", everyone=True)


def stumble(job: Job, detail: str) -> None:
    """Fail as often as the row says."""
    if job.attempts < int(detail):
        raise ValueError(f"job {job.pk} stumbles")


def lookup(job: Job, detail: str) -> None:
    raise KeyError(job.pk)


def sleep(job: Job, detail: str) -> None:
    time.sleep(float(detail))


def stay(job: Job, detail: str) -> None:
    """Run for as long as the row says so, that is until a test writes another act into it."""
    # In the log, too: where the handler runs in a transaction, nobody sees a row of its ledger yet.
    log.info("job %s stays", job.pk, extra={"event": "stays"})
    while Job.objects.filter(pk=job.pk, act=job.act).exists():
        time.sleep(0.05)


def stay_and_fail(job: Job, detail: str) -> None:
    stay(job, detail)
    raise ValueError(f"job {job.pk} has lost its upstream")


def until(job: Job, detail: str) -> None:
    """Run until the file that the test has named is there, also while the database is away."""
    while not os.path.exists(os.environ["TASKCLAIM_TEST_END"]):
        time.sleep(0.05)


def count(job: Job, detail: str) -> None:
    """Write down how many rows with the note of this one are processing now, and take a moment."""
    alike = Job.objects.filter(note=job.note, status="processing").count()
    note(job, f"{alike} of {job.note}")
    time.sleep(float(detail))


def die(job: Job, detail: str) -> None:
    os._exit(int(detail or 9))


def segfault(job: Job, detail: str) -> None:
    """Read where no memory is, as broken native code does."""
    ctypes.string_at(0)


def leave(job: Job, detail: str) -> None:
    raise SystemExit(3)


def complete(job: Job, detail: str) -> None:
    job.claim.complete()


def give_up(job: Job, detail: str) -> None:
    job.claim.fail(ValueError(f"job {job.pk} is given up"), retry=detail != "for good")


def give_back(job: Job, detail: str) -> None:
    if job.iteration < 2:
        job.claim.release()


def delete(job: Job, detail: str) -> None:
    job.delete()


def too_long(job: Job, detail: str) -> None:
    job.counter = 2**70


def leave_open(job: Job, detail: str) -> None:
    transaction.atomic().__enter__()


def autocommit_off(job: Job, detail: str) -> None:
    transaction.set_autocommit(False)


def other_instance(job: Job, detail: str) -> None:
    Job.objects.get(pk=job.pk).claim.complete()


def swallow(job: Job, detail: str) -> None:
    """Catch the error that has ended the handler's transaction, as a bare ``except`` around a query does."""
    with suppress(Error), connection.cursor() as cursor:
        cursor.execute("SELECT nothing FROM nowhere")


def undo(job: Job, detail: str) -> None:
    """Catch an error whose savepoint has been rolled back, as ``get_or_create()`` does."""
    with suppress(Error), transaction.atomic():
        Job.objects.bulk_create([Job(pk=job.pk)])


def lose(job: Job, detail: str) -> None:
    """Do to the transaction what a deadlock does on MySQL and MariaDB: undo it behind Django's back."""
    connection.connection.rollback()


def doom(job: Job, detail: str) -> None:
    """Take no notice of an error that has doomed the transaction: Django would roll it back without a word."""
    with suppress(ValueError), transaction.atomic(savepoint=False):
        raise ValueError("never seen")


def hold(job: Job, detail: str) -> None:
    """Keep the row locked, as a handler does that has written it in its open transaction."""
    Job.objects.filter(pk=job.pk).update(note="held")
    time.sleep(float(detail))


def hook(job: Job, detail: str) -> None:
    def too_late() -> None:
        raise ValueError("too late")

    transaction.on_commit(too_late)


def hang(job: Job, detail: str) -> None:
    """Let the thread of the worker that claims rows next hang for ever, in a receiver."""

    def never_return(**facts: Any) -> None:
        threading.Event().wait()

    rows_claimed.connect(never_return, weak=False)
