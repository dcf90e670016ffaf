"""What a worker does with rows that go well, and with rows that go badly."""

from collections.abc import Callable
from datetime import timedelta
from itertools import chain, repeat
from threading import Event
from typing import Any
from unittest.mock import DEFAULT, MagicMock, Mock

import pytest
from django.db import OperationalError, connection, transaction

from django_taskclaim.claim import Ended
from django_taskclaim.fields import QUARANTINED
from django_taskclaim.handlers import Handler
from django_taskclaim.signals import rows_claimed
from django_taskclaim.worker.batch import DONE, Failed, hold
from django_taskclaim.worker.executors import HandlerThread
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.running import AWAY, Running, prepare
from tests.factories import make
from tests.testapp.models import Job, Ledger, Photo, TextKey
from tests.worker.conftest import Start, jobs, states, wait_until, writer_of


@pytest.mark.once
@pytest.mark.promise(1)
def test_a_drain_completes_every_row_once(start_worker: Start) -> None:
    """Several processes and threads share the rows of two models, and none has to wait for the other model."""
    jobs(60)
    TextKey.objects.bulk_create([TextKey(key=f"key {number}") for number in range(40)])
    options = ("--drain", "--processes", "2", "--threads", "2", "--batch-size", "7")
    worker = start_worker(*options, model="testapp.Job testapp.TextKey")
    assert worker.wait() == 0
    assert states() == {"complete": 60}
    assert TextKey.objects.progress().complete == 40
    assert set(Job.objects.values_list("counter", flat=True)) == {1}
    assert Ledger.objects.count() == 60
    claims = [event["model"] for event in worker.events("claimed")]
    assert max(claims.index(model) for model in set(claims)) < len(claims) / 2


@pytest.mark.promise(10)
def test_one_bad_row_stops_no_other(start_worker: Start) -> None:
    """Each bad row ends as its error, or the rule for that error, says; the others are done once."""
    good = jobs(10)
    tried_again = ["fail", "shout", "leave", "too_long", "leave_open", "autocommit_off"]
    expected = dict.fromkeys([*tried_again, "other_instance"], ("failed", 3))
    # A lookup fails at once by the handler's ``errors=``.
    expected |= {"permanent": ("failed", 1), "lookup": ("failed", 1), "later": ("complete", 0)}
    bad = {act: jobs(1, act)[0] for act in expected}
    worker = start_worker("--drain", "--in-process")
    assert worker.wait() == 0
    assert set(Job.objects.filter(pk__in=good).values_list("status", "counter", "attempts")) == {
        ("complete", 1, 0)
    }
    row = {act: Job.objects.get(pk=key) for act, key in bad.items()}
    assert {act: (job.status, job.attempts) for act, job in row.items()} == expected
    assert row["fail"].error_class == "ValueError"
    assert len(row["shout"].last_error) == 4000
    assert worker.log.stat().st_size < 1_000_000
    assert row["permanent"].last_error == f"job {bad['permanent']} will never work"
    assert "left a transaction open" in row["leave_open"].last_error
    levels = [
        event["level"]
        for event in worker.events("failed")
        if event.get("keys", []) == [str(bad["fail"])]
    ]
    assert levels == ["WARNING", "WARNING", "ERROR"]


@pytest.mark.promise(3)
@pytest.mark.parametrize("model", ["testapp.Job", "testapp.AtomicJob"])
def test_a_handler_may_end_the_claim_itself(start_worker: Start, model: str) -> None:
    """After a verb of the handler or a delete the worker writes nothing more, and counts what became of the row."""
    for act in ("complete", "delete", "give_up", "give_up:for good", "give_back"):
        jobs(2, act)
    # With an hour, no renewal meets a row just when its handler ends it.
    worker = start_worker("--drain", "--in-process", "--lease", "3600", model=model)
    assert worker.wait() == 0
    # Rows that are given up fail after three tries; rows that are given back are done in the end.
    assert states() == {"complete": 4, "failed": 4}
    assert worker.events("lost") == []
    # The deleted ones among those that are done.
    summary = worker.events("summary")[-1]
    assert (summary["done"], summary["failed"]) == (6, 4)


@pytest.mark.promise(8)
def test_rows_run_longer_than_their_lease(start_worker: Start) -> None:
    """Renewal keeps a row that runs, and those that wait in its batch, also beside a model with a longer lease."""
    jobs(1, "stay")
    jobs(2)
    TextKey.objects.create(key="a model with a lease of a minute")
    model = "testapp.Job testapp.TextKey"
    worker = start_worker("--in-process", TASKCLAIM_TEST_LEASE="12", model=model)
    wait_until(lambda: states() == {"processing": 3})
    second = Job.objects.earliest("expires_at").expires_at + timedelta(seconds=12)
    wait_until(lambda: Job.objects.earliest("expires_at").expires_at > second)
    Job.objects.update(act="work")
    wait_until(lambda: states() == {"complete": 3})
    assert worker.events("lost", "expired") == []
    assert Ledger.objects.count() == 3


@pytest.mark.promise(3)
def test_a_worker_logs_a_loss_once_and_writes_nothing(start_worker: Start) -> None:
    """An operator resets the row while it runs; a renewal and the verb that writes the result could both log it."""
    (key,) = jobs(1, "stay")
    worker = start_worker("--in-process", "--drain", "--lease", "12")
    wait_until(Ledger.objects.exists)
    assert Job.objects.reset(running=True) == 1
    wait_until(lambda: worker.events("lost"), what="a renewal notices")
    Job.objects.filter(pk=key).update(act="work")
    assert worker.wait() == 0
    assert states() == {"complete": 1}
    assert Job.objects.get().counter == 1
    assert [event["keys"] for event in worker.events("lost")] == [[str(key)]]
    assert Ledger.objects.count() == 2


@pytest.mark.once
@pytest.mark.promise(5)
def test_a_loss_is_logged_with_the_error_that_its_handler_raised(start_worker: Start) -> None:
    (key,) = jobs(1, "stay_and_fail")
    worker = start_worker("--in-process", "--drain", "--lease", "3600")
    wait_until(Ledger.objects.exists)
    with transaction.atomic():  # The next claim finds a row that fails no more.
        assert Job.objects.reset(running=True) == 1
        Job.objects.filter(pk=key).update(act="work")
    assert worker.wait() == 0
    assert "has lost its upstream" in str(worker.events("lost", "raised"))
    assert Job.objects.get().attempts == 0


@pytest.mark.once
@pytest.mark.promise(10)
def test_a_row_past_its_timeout_is_failed(start_worker: Start) -> None:
    """Its process is replaced, the rows behind it are done, and an ERROR shows where the thread stood."""
    jobs(1, "sleep:600", priority=1)
    jobs(2)
    worker = start_worker("--drain", TASKCLAIM_TEST_TIMEOUT="10", TASKCLAIM_TEST_ATTEMPTS="1")
    assert worker.wait() == 0
    assert states() == {"complete": 2, "failed": 1}
    assert "ran longer" in Job.objects.failed().get().last_error
    (overrun,) = [one for one in worker.events() if "in sleep" in one["text"]]
    assert overrun["level"] == "ERROR"


@pytest.mark.promise(10)
@pytest.mark.skipif(not connection.features.has_select_for_update, reason="needs row locks")
def test_a_row_that_its_handler_has_locked_is_failed_at_its_timeout(start_worker: Start) -> None:
    """The worker ends the session of the handler; nobody waits for the lease of an hour."""
    jobs(1, "hold:600")
    worker = start_worker(
        *("--drain", "--lease", "3600", "--grace", "1"),
        model="testapp.AtomicJob",
        TASKCLAIM_TEST_TIMEOUT="3",
        TASKCLAIM_TEST_ATTEMPTS="1",
    )
    assert worker.wait() == 0
    job = Job.objects.get()
    assert (job.status, job.note) == ("failed", "")
    assert "ran longer" in job.last_error


@pytest.mark.once
@pytest.mark.promise(10)
def test_a_half_that_is_done_stays_done_when_the_other_half_overruns(
    transactional_db: None, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = make(Photo, 2)
    inflight, options = InFlight(), WorkerOptions((), "w", "default")
    service = MagicMock(inflight=inflight, options=options)
    service.keeper.longest_lease = timedelta(minutes=1)
    executor = HandlerThread(service, "handler")

    def handle(photos: list[Photo]) -> None:
        if len(photos) == 2:
            raise ValueError("to be run in halves")
        if photos != [first]:
            (item,) = inflight.running()
            inflight.abandon(item, Failed("it ran too long"))
            executor.leave()

    inflight.add(hold(Handler(Photo, handle, batch=True), Photo.objects.claim_batch(2)))
    executor.start()
    executor.join(120)
    outcomes = [held.outcome for held in inflight.held()]
    assert outcomes == [DONE, Failed("it ran too long")]
    assert f"Photo {second.pk} came back after its time was over" in caplog.text


@pytest.mark.promise(12)
@pytest.mark.skipif(not connection.features.has_select_for_update, reason="needs many writers")
def test_whether_the_database_was_away_is_waited_for_once_for_a_batch(
    transactional_db: None,
) -> None:
    make(Photo, 3)
    inflight, keeper = InFlight(), MagicMock()
    keeper.was_away_since.side_effect = [True]
    handler = Handler(Photo, Mock(side_effect=OperationalError("away")), batch=True)
    inflight.add(hold(handler, Photo.objects.claim_batch(3)))
    item: Any = inflight.take(0, Event(), is_async=False)
    Running("default", inflight, keeper).run(item)
    assert [held.outcome for held in inflight.held()] == [AWAY] * 3


@pytest.mark.once
def test_the_breaker_counts_a_row_once_however_soon_it_is_written(transactional_db: None) -> None:
    """The writer merges the results of two threads before these have told of them."""
    make(Photo, 2)
    (writer, inflight, handler), breaker = writer_of(Photo), MagicMock()
    executor = HandlerThread(MagicMock(), "handler")
    inflight.add(hold(handler, Photo.objects.claim_batch(2)))
    items: list[Any] = [inflight.take(0, Event(), is_async=False) for _ in range(2)]
    for item in items:
        inflight.judge(item, {item.rows[0]: Ended(completed=True)})
        inflight.settle(item)
    writer.write()
    for item in items:
        executor._inform(breaker, item)
    assert [call.kwargs["good"] for call in breaker.heard.mock_calls] == [1, 1]


@pytest.mark.once
@pytest.mark.promise(10)
def test_code_of_the_project_that_exits_while_rows_are_claimed_ends_no_worker(
    work: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(Photo, 3)
    leave = Mock(side_effect=chain([SystemExit(3)], repeat(None)))
    rows_claimed.connect(leave)
    load = Mock(wraps=prepare, side_effect=chain([SystemExit(3)], repeat(DEFAULT)))
    monkeypatch.setattr("django_taskclaim.worker.claimer.prepare", load)
    assert work(Photo, lambda photo: None) == 0
    assert set(Photo.objects.values_list("status", "attempts")) == {("complete", 0)}


@pytest.mark.once
def test_a_row_to_be_run_alone_holds_up_the_others_for_a_moment_only(
    work: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes back while another row runs for long, and is done when nothing else runs."""
    monkeypatch.setattr("django_taskclaim.worker.claimer.QUARANTINE_WAIT", 0.1)
    make(Photo, note="long")
    (alone,) = make(Photo, not_before=QUARANTINED)
    photos = Photo.objects

    def handle(photo: Photo) -> None:
        if photo.note == "long":
            wait_until(photos.filter(pk=alone.pk, status="processing").exists)
            (late,) = make(Photo)
            wait_until(photos.filter(pk=late.pk, status="complete").exists)

    assert work(Photo, handle, "--threads", "2") == 0
    assert photos.progress().complete == 3


@pytest.mark.once
def test_a_drain_waits_for_rows_that_others_hold(start_worker: Start) -> None:
    jobs(2)
    (held,) = Job.objects.claim_batch(1, claimed_by="ada", lease=timedelta(hours=1))
    worker = start_worker("--drain", "--in-process")
    wait_until(lambda: states() == {"complete": 1, "processing": 1})
    jobs(1)
    wait_until(lambda: states() == {"complete": 2, "processing": 1})
    held.claim.complete()
    assert worker.wait() == 0
