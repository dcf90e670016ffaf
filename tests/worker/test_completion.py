"""Completion policies in real workers: for each kind of handler, and while workers are killed."""

import os
import signal
import threading
from collections import Counter
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import InMemoryStorage

from tests.factories import make
from tests.querysets.models import EveryField
from tests.testapp.models import Effect, Job, Ledger
from tests.worker.conftest import Start, Worker, jobs, wait_until
from tests.worker.test_stampede import assert_every_extra_run_is_explained


def drain(start_worker: Start, policies: dict[str, str], *options: str, **env: str) -> list[Worker]:
    """Start a worker for each kind of rows, which drains them under a policy; a row's note says whose it is."""
    named = {f"TASKCLAIM_TEST_COMPLETION_{kind}": how for kind, how in policies.items()}
    words = ("--drain", *options)
    return [
        start_worker(*words, "--filter", f"note={kind}", model=f"testapp.{kind}", **named, **env)
        for kind in policies
    ]


def left(kind: str) -> Any:
    return Job.objects.filter(note=kind)


@pytest.mark.promise(5, 10)
def test_every_kind_of_handler_follows_the_policy(start_worker: Start) -> None:
    """Buffered, in batches, atomic and in coroutines; what failed is neither deleted nor opened as done."""
    policies = {
        "Job": "delete",
        "AtomicJob": "delete",
        "BatchJob": "hourly",
        "AtomicBatchJob": "hourly",
        "AsyncJob": "hourly",
    }
    good = {kind: jobs(6, note=kind) for kind in policies}
    wrong = {"AsyncJob": "fail"}
    bad = [key for kind in policies for key in jobs(1, wrong.get(kind, "permanent"), note=kind)]
    workers = drain(start_worker, policies, "--in-process", TASKCLAIM_TEST_ATTEMPTS="1")
    assert {worker.wait() for worker in workers} == {0}
    assert set(Job.objects.failed().values_list("pk", flat=True)) == {*bad}
    assert left("Job").count() == left("AtomicJob").count() == 1
    for kind in ("BatchJob", "AtomicBatchJob", "AsyncJob"):
        rows = left(kind).filter(pk__in=good[kind])
        assert set(rows.values_list("status", "iteration")) == {("open", 1)}
    # What an atomic handler wrote is there once, and nothing that was rolled back.
    effects = Counter(Effect.objects.values_list("key", flat=True))
    kinds = ("AtomicJob", "AtomicBatchJob")
    assert effects == Counter(str(key) for kind in kinds for key in good[kind])
    assert sum(event["rows"] for event in workers[0].events("completed")) == 6 * len(policies)


def do(rows: Any) -> None:
    for row in rows:
        row.document = ContentFile(b"page", name="page.pdf")


async def do_async(row: Any) -> None:
    do([row])


@pytest.mark.parametrize(
    "function", [lambda row: do([row]), do, do_async], ids=["", "batch", "async"]
)
def test_files_among_the_results_are_stored_where_the_handler_runs(
    work: Any, monkeypatch: pytest.MonkeyPatch, function: Any
) -> None:
    """The thread that writes results would be taken for one that hangs."""
    threads, usual = list[str](), InMemoryStorage._save

    def save(self: Any, name: str, content: Any) -> str:
        threads.append(threading.current_thread().name)
        return usual(self, name, content)

    monkeypatch.setattr(InMemoryStorage, "_save", save)
    make(EveryField, 2)
    work(EveryField, function, update_fields=["document"], batch=function is do)
    assert len(threads) == EveryField.objects.filter(document__contains="page").count() == 2
    assert not any("claimer" in name for name in threads)


@pytest.mark.once
@pytest.mark.promise(4, 7)
def test_a_worker_that_is_killed_leaves_no_row_behind(start_worker: Start) -> None:
    """Rows that vanish and rows that open again: each is done, and each extra run is explained."""
    (stays,) = jobs(1, "stay", note="Job")
    for kind in ("Job", "BatchJob"):
        jobs(40, "sleep:0.03", note=kind)
    policies = {"Job": "delete", "BatchJob": "hourly"}
    # Longer than a machine stands still: only what is killed loses its rows.
    workers = drain(start_worker, policies, "--processes", "2", "--lease", "8", "--batch-size", "5")
    wait_until(lambda: left("Job").count() < 35, what="some rows are gone")
    wait_until(lambda: left("BatchJob").filter(iteration=1).count() > 4, what="some are cleared")
    # The one that cannot have come to its end meanwhile, and holds rows that have not begun.
    (holder,) = Ledger.objects.filter(key=str(stays)).values_list("worker", flat=True)
    (busy,) = {event["pid"] for event in workers[0].events("claimed") if event["holder"] == holder}
    os.kill(busy, signal.SIGKILL)
    Job.objects.filter(pk=stays).update(act="work")
    assert {worker.wait() for worker in workers} == {0}
    assert not left("Job").exists()
    cleared = left("BatchJob").values_list("status", "counter", "attempts")
    assert set(cleared) == {("open", 1, 0)}
    assert_every_extra_run_is_explained(workers[0].events(), rows=81)
