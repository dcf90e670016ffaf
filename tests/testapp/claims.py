"""Autodiscovered like any app's ``claims.py``. Only ``Job`` and its proxies have handlers; tests register others."""

import asyncio
import ctypes
import json
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from django.db import Error, OperationalError, connection, transaction
from django.db.models import F

from django_taskclaim import Retry, handler
from django_taskclaim.completion import Clear
from django_taskclaim.exceptions import Permanent, RetryLater
from django_taskclaim.querysets.ranges import walking
from django_taskclaim.signals import rows_claimed
from tests.factories import SHAPES
from tests.testapp.models import (
    AsyncJob,
    AtomicBatchJob,
    AtomicJob,
    BatchJob,
    Effect,
    IntRange,
    Job,
    Ledger,
    LogRange,
    QuickJob,
    TextKey,
)

if os.environ.get("TASKCLAIM_TEST_STILLBORN") and multiprocessing.parent_process() is not None:
    # A child that cannot even import the project's code.
    os._exit(int(os.environ["TASKCLAIM_TEST_STILLBORN"]))

OPTIONS: dict[str, Any] = {
    "update_fields": ["counter"],
    "max_attempts": int(os.environ.get("TASKCLAIM_TEST_ATTEMPTS", "3")),
    "timeout": float(os.environ.get("TASKCLAIM_TEST_TIMEOUT", "900")),
    "backoff": lambda failures: 0.2,
    "errors": {
        LookupError: Permanent,
        ConnectionError: Retry(max_attempts=5, backoff=lambda failures: 0.1),
        TimeoutError: RetryLater(0.1),
    },
    "limit_per": json.loads(os.environ.get("TASKCLAIM_TEST_LIMIT_PER", "null")),
    **json.loads(os.environ.get("TASKCLAIM_TEST_LIMITS", "{}")),
    "wake_up": os.environ.get("TASKCLAIM_TEST_WAKE_UP") == "1",
}


def picky(rows: list[Job]) -> None:
    """Refuse rows as they say; the others leave an effect in the same transaction."""
    for row in rows:
        if (refusal := row.act.partition(":")[2]) in REFUSALS:
            raise REFUSALS[refusal]
        Effect.objects.create(key=str(row.pk))


REFUSALS: dict[str, BaseException] = {
    "permanent": Permanent("refused"),
    "exit": SystemExit("3"),
    # As a broken connection would, but this one is the row's own.
    "operational": OperationalError("no such table"),
}


def completion_of(model: str) -> Any:
    """Return what the test that started this process wants of rows of *model* that are done."""
    named = os.environ.get(f"TASKCLAIM_TEST_COMPLETION_{model}", "mark")
    return {"picky": picky, "hourly": Clear(every=3600)}.get(named, named)


@handler(Job, completion=completion_of("Job"), **OPTIONS)
def do(job: Job) -> None:
    """Note the run in the ledger, on a transaction of its own, and then do what the job says."""
    note(job)
    act, _, detail = job.act.partition(":")
    ACTS[act](job, detail)
    job.counter += 1


def note(job: Job, remark: str = "") -> None:
    token = job.claim.token
    Ledger.objects.create(
        model="Job", key=str(job.pk), worker=token.holder, note=remark or str(token)
    )


# A quarter of the default lease: the most that SQLite, with its one writer, can bear.
ATOMIC = OPTIONS | {"atomic": True, "timeout": min(15.0, OPTIONS["timeout"])}


@handler(AtomicJob, completion=completion_of("AtomicJob"), **ATOMIC)
def do_atomically(job: AtomicJob) -> None:
    """Leave an effect on another table, which must happen once, and do what the job says."""
    Effect.objects.create(key=str(job.pk))
    act, _, detail = job.act.partition(":")
    ACTS[act](job, detail)
    job.counter += 1


@handler(BatchJob, completion=completion_of("BatchJob"), batch=True, **OPTIONS)
def do_together(jobs: list[BatchJob]) -> Any:
    """Note each call in the ledger, with the number of rows, and answer in the way that the first row says."""
    for job in jobs:
        note(job, f"{len(jobs)} rows")
    for job in jobs:
        if job.act == "raise":
            raise ValueError(f"job {job.pk} spoils its batch")
        if job.act.startswith("sleep"):
            time.sleep(float(job.act.partition(":")[2]))
        if job.act == "end":
            job.claim.complete()
        job.counter += 1
    if all(job.act == "work" for job in jobs):
        return None
    answers = {"mapping": as_mapping, "pairs": as_pairs, "nonsense": lambda jobs: 7}
    return answers.get(jobs[0].act, as_mapping)(jobs)


SAID: dict[str, Any] = {
    "work": None,
    "mapping": None,
    "pairs": None,
    "value": ValueError("not this one"),
    "permanent": Permanent,
    "later": RetryLater(0.1, "come back"),
    "odd": 5,
}


def as_mapping(jobs: list[BatchJob]) -> Any:
    return {job.pk: said(job) for job in jobs if job.act != "unmentioned"}


def as_pairs(jobs: list[BatchJob]) -> Iterator[Any]:
    for job in jobs:
        if job.act != "unmentioned":
            yield (job, said(job)) if said(job) else job


def said(job: BatchJob) -> Any:
    return None if job.act == "later" and job.iteration >= 2 else SAID.get(job.act)


@handler(AtomicBatchJob, completion=completion_of("AtomicBatchJob"), batch=True, **ATOMIC)
def do_together_atomically(jobs: list[AtomicBatchJob]) -> Any:
    for job in jobs:
        Effect.objects.create(key=str(job.pk))
        job.counter += 1
    return {job: said(job) for job in jobs}


@handler(QuickJob, batch_size=500)
def do_nothing(job: QuickJob) -> None:
    """Cost nothing, so that what a worker costs shows."""


def read(row: TextKey) -> None:
    """The other model of a worker that has two, under a much shorter lease; some rows outlast it."""
    if row.key.startswith("slow"):
        time.sleep(9)


def do_any(row: Any) -> None:
    """Leave an effect beside the row and a result on it, whatever its shape."""
    Effect.objects.create(key=f"{row._meta.concrete_model._meta.label} {row.pk}")
    time.sleep(0.02)
    row.counter += 1


if os.environ.get("TASKCLAIM_TEST_EVERY_SHAPE"):
    for shape in SHAPES:
        handler(shape, atomic=True, lease=8, timeout=2, update_fields=["counter"])(do_any)
else:
    handler(TextKey, lease=8)(read)


if os.environ.get("TASKCLAIM_TEST_SURROUNDED"):
    from tests.surroundings.app.models import SURROUNDED

    for shape in SURROUNDED:
        handler(shape, update_fields=["counter"])(do_any)


@handler(AsyncJob, completion=completion_of("AsyncJob"), concurrency=20, **OPTIONS)
async def do_asynchronously(job: AsyncJob) -> None:
    await Ledger.objects.acreate(model="Job", key=str(job.pk), worker=job.claim.token.holder)
    act, _, detail = job.act.partition(":")
    if act == "sleep":
        await asyncio.sleep(float(detail))
    elif act == "block":
        time.sleep(float(detail))
    elif act == "block_below":
        await asyncio.gather(asyncio.sleep(0), asyncio.create_task(block(float(detail))))
    elif act == "fail":
        raise ValueError(f"job {job.pk}")
    elif act == "complete":
        await job.claim.acomplete()
    elif act == "forget":
        forget(job, detail)
    job.counter += 1


async def block(seconds: float) -> None:
    time.sleep(seconds)


def work(job: Job, detail: str) -> None:
    """Nothing that could go wrong."""


def fail(job: Job, detail: str) -> None:
    raise ValueError(f"job {job.pk} {detail}")


def forget(job: Job, detail: str) -> None:
    job.note = "seen"


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


def connect(job: Job, detail: str) -> None:
    raise ConnectionRefusedError(f"job {job.pk}")


def time_out(job: Job, detail: str) -> None:
    if job.iteration < 4:
        raise TimeoutError(f"job {job.pk}")


def sleep(job: Job, detail: str) -> None:
    time.sleep(float(detail))


def stay(job: Job, detail: str) -> None:
    """Run for as long as the row says so, that is until a test writes another act into it."""
    while Job.objects.filter(pk=job.pk, act=job.act).exists():
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
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT nothing FROM nowhere")
    except Error:
        pass


def lose_transaction(job: Job, detail: str) -> None:
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


def busy(job: Job, detail: str) -> None:
    """Keep the connection busy with one statement; on SQLite, which has none that waits, the interpreter."""
    if connection.vendor == "sqlite":
        connection.ensure_connection()
        connection.connection.create_function("pause", 1, time.sleep)
    pause = {"postgresql": "pg_sleep", "mysql": "SLEEP", "sqlite": "pause"}[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {pause}(%s)", [float(detail)])


def shout(job: Job, detail: str) -> None:
    """Log to standard error until nobody reads it any more, and this thread waits for somebody who does."""
    log = logging.getLogger("django_taskclaim")
    log.addHandler(logging.StreamHandler())
    while True:
        log.error("Look here! " * 100)


def hook_raises(job: Job, detail: str) -> None:
    def hook() -> None:
        raise ValueError("too late")

    transaction.on_commit(hook)


def hang(job: Job, detail: str) -> None:
    """Let the thread of the worker that claims rows next hang for ever, in a receiver."""

    def never_return(**facts: Any) -> None:
        threading.Event().wait()

    rows_claimed.connect(never_return, weak=False)


ACTS = {
    "swallow": swallow,
    "lose": lose_transaction,
    "doom": doom,
    "hold": hold,
    "busy": busy,
    "lookup": lookup,
    "later_all": later_all,
    "stumble": stumble,
    "connect": connect,
    "time_out": time_out,
    "hook": hook_raises,
    "shout": shout,
    "hang": hang,
    "leave_open": leave_open,
    "autocommit_off": autocommit_off,
    "other_instance": other_instance,
    "work": work,
    "fail": fail,
    "forget": forget,
    "permanent": permanent,
    "later": later,
    "sleep": sleep,
    "stay": stay,
    "count": count,
    "die": die,
    "segfault": segfault,
    "leave": leave,
    "complete": complete,
    "delete": delete,
    "give_up": give_up,
    "give_back": give_back,
    "too_long": too_long,
}


@handler(LogRange)
@handler(
    IntRange,
    timeout=OPTIONS["timeout"],
    max_attempts=OPTIONS["max_attempts"],
    backoff=lambda n: 0.2,
)
def count_up(range_: IntRange | LogRange) -> None:
    """Work on chunks of 50 rows; after each commit, so that SQLite is free, wait as the environment says."""
    pause = os.environ.get("TASKCLAIM_TEST_CHUNK", "0.02")
    largest = int(os.environ.get("TASKCLAIM_TEST_LARGEST", walking.LARGEST))
    for rows in range_.rows(None if pause == "adaptive" else 50, largest=largest):
        rows.update(counter=F("counter") + 1)
        if pause != "adaptive":
            transaction.on_commit(lambda: time.sleep(float(pause)))
