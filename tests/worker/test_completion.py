"""Completion policies in real workers: whatever kind of handler did a row, and whoever was killed meanwhile."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import Sum

from django_taskclaim import policy
from django_taskclaim.completion import Clear, Completion, Delete, Mark
from django_taskclaim.control.models import ThroughputMinute
from django_taskclaim.dialects import dialect_for
from django_taskclaim.handlers import Handler
from django_taskclaim.policy import Policy
from django_taskclaim.worker.claimer import Claimer
from django_taskclaim.worker.heartbeat import Vitals
from django_taskclaim.worker.inflight import InFlight, Result, units_of
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.outcomes import Done
from django_taskclaim.worker.service import Service
from django_taskclaim.worker.writer import Writer
from tests.behaviour.conftest import rival  # noqa: F401 - a fixture
from tests.behaviour.models import Parcel, Stamp
from tests.behaviour.support import ROW_LOCKS, Rival
from tests.factories import make
from tests.proxy import HAS_A_SERVER, commits, swallowed, withheld  # noqa: F401 - a fixture
from tests.testapp.models import Effect, Job, Ledger
from tests.worker.conftest import Worker, jobs, wait_until
from tests.worker.test_stampede import assert_every_extra_run_is_explained

Start = Callable[..., Worker]


def drain(start_worker: Start, policies: dict[str, str], *options: str, **env: str) -> Worker:
    """Start a worker that drains rows of several kinds, each under a policy; a row's note says whose it is."""
    filters = [word for kind in policies for word in ("--filter", f"testapp.{kind}:note={kind}")]
    named = {f"TASKCLAIM_TEST_COMPLETION_{kind}": how for kind, how in policies.items()}
    models = " ".join(f"testapp.{kind}" for kind in policies)
    return start_worker("--drain", *filters, *options, model=models, **named, **env)


def left(kind: str) -> Any:
    return Job.objects.filter(note=kind)


def test_every_kind_of_handler_follows_the_policy(start_worker: Start) -> None:
    """Buffered, in batches, atomic and in coroutines; what failed is neither deleted nor opened as done."""
    policies = {
        "Job": "delete",
        "AtomicJob": "delete",
        "BatchJob": "hourly",
        "AtomicBatchJob": "hourly",
        "AsyncJob": "picky",
    }
    good = {kind: jobs(6, note=kind) for kind in policies}
    whims = ("operational", "permanent", "exit")
    refused = [key for whim in whims for key in jobs(1, f"work:{whim}", note="AsyncJob")]
    bad = [
        key for kind in policies if kind != "AsyncJob" for key in jobs(1, "permanent", note=kind)
    ]
    worker = drain(start_worker, policies, "--in-process", TASKCLAIM_TEST_ATTEMPTS="1")
    assert worker.wait() == 0
    assert set(Job.objects.failed().values_list("pk", flat=True)) == {*refused, *bad}
    assert left("Job").count() == left("AtomicJob").count() == 1
    for kind in ("BatchJob", "AtomicBatchJob"):
        rows = left(kind).filter(pk__in=good[kind])
        assert set(rows.values_list("status", "iteration")) == {("open", 1)}
    assert set(
        left("AsyncJob").filter(pk__in=good["AsyncJob"]).values_list("status", flat=True)
    ) == {"complete"}
    # What an atomic handler or the policy's function wrote is there once, and nothing that was rolled back.
    effects = Counter(Effect.objects.values_list("key", flat=True))
    kinds = ("AtomicJob", "AtomicBatchJob", "AsyncJob")
    assert effects == Counter(str(key) for kind in kinds for key in good[kind])
    assert sum(event["rows"] for event in worker.events("completed")) == 6 * len(policies)
    # A row that is gone, or open again, was done all the same.
    assert ThroughputMinute.objects.aggregate(done=Sum("done")) == {"done": 6 * len(policies)}
    said = Job.objects.failed().filter(pk__in=refused).order_by("pk")
    assert list(said.values_list("last_error", flat=True)) == ["no such table", "refused", "3"]


def test_a_worker_that_is_killed_leaves_no_row_behind(start_worker: Start) -> None:
    """Rows that vanish and rows that open again: each is done, and each extra run is explained."""
    (stays,) = jobs(1, "stay", note="Job")
    for kind in ("Job", "BatchJob"):
        jobs(40, "sleep:0.03", note=kind)
    policies = {"Job": "delete", "BatchJob": "hourly"}
    # Longer than a machine stands still: only what is killed loses its rows.
    worker = drain(start_worker, policies, "--processes", "2", "--lease", "8", "--batch-size", "5")
    wait_until(lambda: left("Job").count() < 35, what="some rows are gone")
    wait_until(lambda: left("BatchJob").filter(iteration=1).count() > 4, what="some are cleared")
    # The one that cannot have come to its end meanwhile, and holds rows that have not begun.
    (holder,) = Ledger.objects.filter(key=str(stays)).values_list("worker", flat=True)
    (busy,) = {event["pid"] for event in worker.events("claimed") if event["holder"] == holder}
    os.kill(busy, signal.SIGKILL)
    Job.objects.filter(pk=stays).update(act="work")
    assert worker.wait() == 0
    assert not left("Job").exists()
    cleared = left("BatchJob").values_list("status", "counter", "attempts")
    assert set(cleared) == {("open", 1, 0)}
    assert_every_extra_run_is_explained(worker.events(), rows=81)


def done(rows: list[Any]) -> InFlight:
    """Return what a process holds that has just done *rows*."""
    inflight = InFlight()
    for unit in units_of(Handler(type(rows[0]), print), rows):
        inflight.settle(unit, [Result(task, Done(), 0.0) for task in unit.tasks])
    return inflight


def never(moment: float) -> bool:
    """The database was never away."""
    return False


def claimer(do: Handler, *, drain: bool) -> Claimer:
    options, inflight = (
        WorkerOptions(("testapp.Job",), "worker", "default", drain=drain),
        InFlight(),
    )
    return Claimer(options, [do], inflight, Service(options, [do], inflight))


@pytest.mark.django_db
def test_a_drain_takes_rows_that_open_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that failed come again, those that were made meanwhile too; a drain would have no end otherwise."""
    every = Policy(own_backoff=lambda failures: 60, completion=Clear(every=0.05))
    monkeypatch.setitem(policy._policies, Job, every)
    do = Handler(Job, print)
    drains, stays = claimer(do, drain=True), claimer(do, drain=False)
    first = set(jobs(3))
    assert set(drains.work.rows(do).values_list("pk", flat=True)) == first
    done, failed, running = Job.objects.claim_batch(3)
    done.claim.complete()
    failed.claim.fail("once")
    (new,) = jobs(1)
    assert set(drains.work.rows(do).values_list("pk", flat=True)) == {failed.pk, running.pk, new}
    assert set(stays.work.rows(do).values_list("pk", flat=True)) == {*first, new}
    assert drains.work.is_left(do)
    running.claim.complete()
    Job.objects.filter(pk__in=[failed.pk, new]).delete()
    assert not drains.work.is_left(do)


@pytest.mark.parametrize(
    ("completion", "said"), [(Delete(), "undecided"), (Clear(), "undecided"), (Mark(), "")]
)
def test_what_a_lost_commit_leaves_untold_is_said_to_be_so(
    commits: Any,  # noqa: F811
    completion: Completion,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And the row is let go of, not run again; where the row tells that it was completed, it counts."""
    monkeypatch.setitem(policy._policies, Job, Policy(completion=completion))
    jobs(2)
    inflight, vitals = done(Job.objects.claim_batch(2)), Vitals()
    commits.arm(swallowed)
    Writer("default", inflight, vitals, {}, never).write()
    assert commits.sprung.is_set()
    assert inflight.is_empty()
    told = [record for record in caplog.records if getattr(record, "event", "") == "undecided"]
    assert len(told) == (2 if said else 0)
    assert vitals.done == (0 if said else 2)


@pytest.mark.skipif(not HAS_A_SERVER, reason="needs a server behind a network")
@pytest.mark.parametrize("rows", [1, 4])
def test_a_session_that_ends_once_charges_nobody(
    commits: Any,  # noqa: F811
    rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The database lets us in again, so the results are written in a new session."""
    monkeypatch.setitem(policy._policies, Job, Policy(completion=Delete()))
    jobs(rows)
    inflight, vitals = done(Job.objects.claim_batch(rows)), Vitals()
    commits.arm(withheld)
    Writer("default", inflight, vitals, {}, never).write()
    assert commits.sprung.is_set()
    assert inflight.is_empty()
    assert (vitals.done, vitals.failed) == (rows, 0)
    assert not Job.objects.exists()


@pytest.mark.skipif(not ROW_LOCKS, reason="no rows are locked one by one")
def test_nothing_can_be_written_while_others_have_locked_every_row(
    rival: Rival,  # noqa: F811
) -> None:
    """The rows come round again, and nobody is told of an error."""
    jobs(2)
    rows = Job.objects.claim_batch(2)
    rival.connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    rival.execute("SELECT 1 FROM testapp_job FOR UPDATE")
    inflight = done(rows)
    writer = Writer("default", inflight, Vitals(), {}, never)
    # As the claimer's session has it, which waits for nobody for long.
    dialect_for(connection).end_idle_transactions(timedelta(seconds=60), ours_alone=True)
    try:
        writer.write()
        assert [task.row for task in inflight.held()] == rows
        rival.let_go()
        wait_until(lambda: writer.wait() == 0.0)
        writer.write()
    finally:
        connection.close()
    assert inflight.is_empty()
    assert set(Job.objects.values_list("status", flat=True)) == {"complete"}


@pytest.mark.long
@pytest.mark.skipif(not ROW_LOCKS, reason="no rows are locked one by one")
def test_a_lock_on_what_goes_with_a_row_holds_up_no_other_row(
    rival: Rival,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What belongs to one row is locked by somebody: that row waits, its neighbours do not."""
    cascade = Policy(completion=Delete(cascade=True))
    monkeypatch.setitem(policy._policies, Parcel, cascade)
    first, *_ = make(Parcel, 3)
    stamp = Stamp.objects.create(parcel=first)
    rows = Parcel.objects.claim_batch(3)
    rival.connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    rival.execute("SELECT 1 FROM testapp_stamp WHERE id = %s FOR UPDATE", [stamp.pk])
    inflight = done(rows)
    writer = Writer("default", inflight, Vitals(), {}, never)
    # As the claimer's session has it, which waits for nobody for long.
    dialect_for(connection).end_idle_transactions(timedelta(seconds=60), ours_alone=True)
    try:
        writer.write()
        assert list(Parcel.objects.all()) == [first]
        assert [task.row for task in inflight.held()] == [first]
        rival.let_go()
        wait_until(lambda: writer.wait() == 0.0)
        writer.write()
    finally:
        connection.close()
    assert not Parcel.objects.exists()
    assert inflight.is_empty()
