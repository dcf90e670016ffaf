"""A table in the middle of its work: rows in every state, workers alive and dead, a day of throughput."""

from collections import Counter
from datetime import timedelta
from typing import Any

from django.utils import timezone

from django_taskclaim.control.models import OperatorAct, ThroughputMinute
from django_taskclaim.models import WorkerProcess
from django_taskclaim.worker.histogram import bucket_of, packed
from tests.behaviour.support import set_raw
from tests.testapp.models import Job

LIVING, BUSY, DEAD = "worker@web-1:4712", "worker@web-1:4711", "worker@web-2:815"


def a_day_of_work() -> None:
    """Make the scene."""
    Job.objects.bulk_create(
        Job(status=status)
        for status, n in (("open", 480), ("complete", 760), ("paused", 12))
        for _ in range(n)
    )
    refused = ConnectionRefusedError("https://img.example/a.png refused 3 tries")
    for error, n in ((refused, 24), (ValueError("job 4711 has no width"), 6)):
        for row in Job.objects.claim_batch(n):
            row.claim.fail(error, retry=False)
    for holder, n, lease in ((BUSY, 50, 58), (DEAD, 20, 22)):
        for row in Job.objects.claim_batch(n, lease=lease):
            set_raw(row, "claimed_by", f"'{holder}#1f'")
    _workers()
    _throughput()
    _acts()


def _workers() -> None:
    now = timezone.now()
    error = "ConnectionRefusedError: connection to https://img.example/a.png refused"
    for name, silent, told in ((BUSY, 1, error), (LIVING, 2, ""), (DEAD, 31, "")):
        host, _, pid = name.partition("@")[2].partition(":")
        WorkerProcess.objects.create(
            name=name,
            labels="testapp.Job",
            host=host,
            pid=int(pid),
            version="0.1.0",
            started_at=now - timedelta(hours=3, minutes=12),
            seen_at=now - timedelta(seconds=silent),
            rows_done=3204,
            rows_failed=12,
            last_error=told,
        )


def _throughput() -> None:
    now = timezone.now().replace(second=0, microsecond=0)
    ThroughputMinute.objects.bulk_create(
        _minute(now - timedelta(minutes=ago), ago, process)
        for ago in range(1, 1440)
        for process in (BUSY, LIVING)
        if not (300 < ago < 420 or 25 < ago < 31)
    )


def _minute(at: Any, ago: int, process: str) -> ThroughputMinute:
    # Up and down without chance, so that the picture is the same each time.
    wave = (ago * 37 + len(process) * 11) % 23
    burst = 10 < ago < 13
    slow, quick = bucket_of(0.8 + wave / 40), bucket_of(0.21 + wave / 300)
    return ThroughputMinute(
        model="testapp.job",
        at=at,
        process=process,
        done=40 + wave + (9 if ago > 700 else 0),
        failed=20 if burst else 0,
        errors=90 if burst else 0,
        batches=20,
        seconds=9.0,
        durations=packed(Counter({quick: 17, slow: 3})),
    )


def _acts() -> None:
    now = timezone.now()
    told = [("pause", 31, "deploy 4.2", 0), ("resume", 25, "", 0), ("reset", 20, "mended", 120)]
    for act, ago, reason, rows in told:
        OperatorAct.objects.create(
            at=now - timedelta(minutes=ago),
            model="testapp.job",
            act=act,
            rows=rows,
            by="Ada Lovelace",
            reason=reason,
        )
