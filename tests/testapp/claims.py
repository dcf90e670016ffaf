"""Autodiscovered like any app's ``claims.py``. Only ``Job`` and its proxies have handlers; tests register others."""

import asyncio
import json
import multiprocessing
import os
import time
from typing import Any

from django.db import transaction
from django.db.models import F

from django_taskclaim import handler
from django_taskclaim.completion import Clear
from django_taskclaim.exceptions import Permanent, RetryLater
from tests.factories import SHAPES
from tests.testapp import acts
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
from tests.throttling.checks import CHECKS

if os.environ.get("TASKCLAIM_TEST_STILLBORN") and multiprocessing.parent_process() is not None:
    # A child that cannot even import the project's code.
    os._exit(int(os.environ["TASKCLAIM_TEST_STILLBORN"]))

OPTIONS: dict[str, Any] = {
    "update_fields": ["counter"],
    "max_attempts": int(os.environ.get("TASKCLAIM_TEST_ATTEMPTS", "3")),
    "timeout": float(os.environ.get("TASKCLAIM_TEST_TIMEOUT", "900")),
    "backoff": lambda failures: 0.2,
    "errors": {LookupError: Permanent},
    **json.loads(os.environ.get("TASKCLAIM_TEST_LIMITS", "{}")),
    "health_checks": CHECKS[os.environ.get("TASKCLAIM_TEST_CHECKS", "")],
    "wake_up": os.environ.get("TASKCLAIM_TEST_WAKE_UP") == "1",
}


def completion_of(model: str) -> Any:
    """Return what the test that started this process wants of rows of *model* that are done."""
    named = os.environ.get(f"TASKCLAIM_TEST_COMPLETION_{model}", "mark")
    return {"hourly": Clear(every=3600)}.get(named, named)


@handler(Job, completion=completion_of("Job"), **OPTIONS)
def do(job: Job) -> None:
    """Note the run in the ledger, on a transaction of its own, and then do what the job says."""
    acts.note(job)
    act, _, detail = job.act.partition(":")
    getattr(acts, act)(job, detail)
    job.counter += 1


# A quarter of the default lease: the most that SQLite, with its one writer, can bear.
ATOMIC = OPTIONS | {"atomic": True, "timeout": min(15.0, OPTIONS["timeout"])}


@handler(AtomicJob, completion=completion_of("AtomicJob"), **ATOMIC)
def do_atomically(job: AtomicJob) -> None:
    """Leave an effect on another table, which must happen once, and do what the job says."""
    Effect.objects.create(key=str(job.pk))
    act, _, detail = job.act.partition(":")
    getattr(acts, act)(job, detail)
    job.counter += 1


@handler(BatchJob, completion=completion_of("BatchJob"), batch=True, **OPTIONS)
def do_together(jobs: list[BatchJob]) -> Any:
    """Note each call in the ledger, with the number of rows, and answer for each row."""
    for job in jobs:
        acts.note(job, f"{len(jobs)} rows")
    for job in jobs:
        if job.act == "raise":
            raise ValueError(f"job {job.pk} spoils its batch")
        if job.act.startswith("sleep"):
            time.sleep(float(job.act.partition(":")[2]))
        if job.act == "end":
            job.claim.complete()
        if job.act == "leave_open":
            acts.leave_open(job, "")
        job.counter += 1
    if all(job.act == "work" for job in jobs):
        return None
    return as_mapping(jobs)


SAID: dict[str, Any] = {
    "work": None,
    "mapping": None,
    "value": ValueError("not this one"),
    "permanent": Permanent,
    "later": RetryLater(0.1, "come back"),
    "odd": 5,
}


def as_mapping(jobs: list[BatchJob]) -> Any:
    return {job.pk: said(job) for job in jobs if job.act != "unmentioned"}


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


def do_any(row: Any) -> None:
    """Leave an effect beside the row and a result on it, in any shape."""
    Effect.objects.create(key=f"{row._meta.concrete_model._meta.label} {row.pk}")
    time.sleep(0.02)
    row.counter += 1


if os.environ.get("TASKCLAIM_TEST_EVERY_SHAPE"):
    for shape in SHAPES:
        handler(shape, atomic=True, lease=16, timeout=4, update_fields=["counter"])(do_any)
else:
    # The other model of a worker that has two.
    handler(TextKey, lease=60)(lambda row: None)


@handler(AsyncJob, completion=completion_of("AsyncJob"), concurrency=20, **OPTIONS)
async def do_asynchronously(job: AsyncJob) -> None:
    await Ledger.objects.acreate(model="Job", key=str(job.pk), worker=job.claim.token.holder)
    act, _, detail = job.act.partition(":")
    if act == "sleep":
        await asyncio.sleep(float(detail))
    elif act == "block":
        time.sleep(float(detail))
    elif act == "fail":
        raise ValueError(f"job {job.pk}")
    elif act == "complete":
        await job.claim.acomplete()
    job.counter += 1


@handler(LogRange)
@handler(IntRange, **{name: OPTIONS[name] for name in ("timeout", "max_attempts", "backoff")})
def count_up(range_: IntRange | LogRange) -> None:
    """Work on chunks of 50 rows; after each commit, so that SQLite is free, wait as the environment says."""
    pause = os.environ.get("TASKCLAIM_TEST_CHUNK", "0.02")
    for rows in range_.rows(None if pause == "adaptive" else 50):
        rows.update(counter=F("counter") + 1)
        if pause != "adaptive":
            transaction.on_commit(lambda: time.sleep(float(pause)))
