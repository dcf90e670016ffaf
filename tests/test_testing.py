"""``run_due``: the real thing on the test's own connection, inside ``TestCase`` and outside."""

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, connections, transaction
from django.test import TestCase, TransactionTestCase

from django_taskclaim import handler, policy
from django_taskclaim.completion import Clear
from django_taskclaim.exceptions import RetryLater
from django_taskclaim.handlers import handler_for, unregister
from django_taskclaim.policy import Policy
from django_taskclaim.switch import pause
from django_taskclaim.testing import Ran, arun_due, run_due
from tests import documents
from tests.behaviour.support import clock, set_raw
from tests.factories import SHAPES, make
from tests.ranges.conftest import counters, fill
from tests.sources.app.models import Page, PageTask
from tests.testapp.models import (
    AsyncJob,
    AtomicBatchJob,
    AtomicJob,
    BatchJob,
    Effect,
    IntRange,
    Job,
    Photo,
)

both = pytest.mark.parametrize(
    "way",
    [
        pytest.param("inside", marks=pytest.mark.django_db),
        pytest.param("outside", marks=pytest.mark.django_db(transaction=True)),
    ],
)


def jobs(*acts: str) -> list[Job]:
    return [Job.objects.create(act=act) for act in acts]


@pytest.fixture
def register() -> Iterator[Callable[..., Any]]:
    """Give Photo a handler for one test."""

    def with_options(**options: Any) -> Any:
        return handler(Photo, **options)

    yield with_options
    unregister(Photo)


class InATestCase(TestCase):
    """As a project would write it."""

    @classmethod
    def setUpTestData(cls) -> None:
        cls.job = Job.objects.create()

    def test_a_due_row_is_done(self) -> None:
        ran = run_due(Job)
        assert ran == Ran(completed=1)
        self.job.refresh_from_db()
        assert (self.job.status, self.job.counter) == ("complete", 1)
        assert run_due(Job).total == 0

    def test_the_next_test_finds_it_open(self) -> None:
        assert Job.objects.get().status == "open"
        assert run_due(Job).completed == 1


class InATransactionTestCase(TransactionTestCase):
    def test_a_due_row_is_done(self) -> None:
        Job.objects.create()
        assert run_due(Job) == Ran(completed=1)
        with transaction.atomic(), pytest.raises(RuntimeError):
            run_due(Job)


@pytest.mark.django_db
@pytest.mark.parametrize("shape", SHAPES, ids=lambda model: model.__name__[:20])
def test_every_shape(shape: Any) -> None:
    def do(row: Any) -> None:
        row.counter += 1

    make(shape, 3)
    usual = handler_for(shape)
    unregister(shape)
    handler(shape, update_fields=["counter"])(do)
    try:
        assert run_due(shape) == Ran(completed=3)
    finally:
        unregister(shape)
        if usual is not None:
            handler(shape, lease=8)(usual.function)
    assert set(shape._base_manager.values_list("counter", flat=True)) == {1}
    assert shape.objects.progress().complete == 3


@both
def test_the_policy_is_that_of_the_worker(way: str) -> None:
    """Retries, back-off, permanent failures and rows put off, each row once a call."""
    jobs("work", "fail", "permanent", "later", "lookup", "connect", "leave", "complete", "delete")
    ran = run_due(Job)
    assert (ran.completed, ran.failed, ran.retrying, ran.released) == (3, 2, 3, 1)
    assert [type(error).__name__ for error in ran.errors] == [
        "ValueError",
        "Permanent",
        "KeyError",
        "ConnectionRefusedError",
        "SystemExit",
    ]
    row = Job.objects.get(act="fail")
    assert (row.status, row.attempts, row.error_class) == ("open", 1, "ValueError")
    Job.objects.exclude(pk=row.pk).delete()
    set_raw(row, "not_before", clock("+1 HOUR"))
    assert run_due(Job).total == 0
    for left in ("retrying", "failed"):
        set_raw(row, "not_before", clock("-1 HOUR"))
        assert getattr(run_due(Job), left) == 1
    assert Job.objects.failed().get().attempts == 3


@both
def test_what_a_handler_does_with_the_claim_itself_counts_as_that(way: str) -> None:
    jobs("complete", "delete", "give_up", "give_up:for good", "give_back")
    ran = run_due(Job)
    assert (ran.completed, ran.failed, ran.retrying, ran.released) == (2, 1, 1, 1)
    assert [str(error).partition(" ")[0] for error in ran.errors] == ["ValueError:", "ValueError:"]


@pytest.mark.django_db
def test_a_row_that_its_handler_has_opened_again_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its status is that of one given back."""
    monkeypatch.setitem(policy._policies, Job, Policy(completion=Clear(every=3600)))
    jobs("complete", "give_back", "work")
    ran = run_due(Job)
    assert (ran.completed, ran.released) == (2, 1)
    assert Job.objects.open().count() == 3


@pytest.mark.django_db
@pytest.mark.parametrize("model", [AtomicJob, BatchJob, AtomicBatchJob, AsyncJob])
def test_handlers_of_every_kind(model: Any) -> None:
    """Atomic ones keep nothing of what failed; of a batch that raises only the row that does is charged."""
    bad = {AtomicJob: "fail", BatchJob: "raise", AtomicBatchJob: "value", AsyncJob: "fail"}[model]
    jobs("work", "work", bad, "work")
    ran = run_due(model)
    assert (ran.completed, ran.retrying, len(ran.errors)) == (3, 1, 1)
    assert sorted(Job.objects.values_list("act", "status", "attempts")) == [
        (bad, "open", 1),
        *[("work", "complete", 0)] * 3,
    ]
    if model in (AtomicJob, AtomicBatchJob):
        assert Effect.objects.count() == 3


@pytest.mark.django_db(transaction=True)
def test_coroutines_call_it_and_are_called_by_it() -> None:
    """From a loop of its own, and with coroutine functions as handlers, one call after the other."""

    async def run_one() -> Ran:
        try:
            return await arun_due(AsyncJob, limit=1)
        finally:
            # That thread's, which would outlive the test database otherwise.
            await sync_to_async(connections.close_all)()

    jobs("work", "work")
    assert asyncio.run(run_one()) == Ran(completed=1)
    assert run_due(AsyncJob) == Ran(completed=1)


@pytest.mark.django_db(databases=["default", "other"])
def test_companions_get_their_sources() -> None:
    Page.objects.create(slug="here", title="a b c")
    Page.objects.create(slug="gone", title="a b c")
    PageTask.objects.populate(Page.objects.all())
    Page.objects.filter(slug="gone").delete()
    ran = run_due(PageTask)
    assert (ran.completed, ran.failed) == (1, 1)
    assert Page.objects.get().words == 3


@both
def test_ranges_are_walked(way: str) -> None:
    fill(IntRange, 120)
    IntRange.objects.plan(chunk_size=50)
    assert run_due(IntRange) == Ran(completed=3)
    assert counters(IntRange) == {1}


# What a handler may do to the test's transaction


@pytest.mark.django_db
@pytest.mark.parametrize("act", ["leave_open", "too_long", "swallow", "hook"])
def test_what_spoils_a_transaction_spoils_neither_the_test_nor_its_neighbours(act: str) -> None:
    """A block that is not left, a result that the database refuses, an error swallowed by the handler, a hook."""
    jobs("work", act, "work")
    ran = run_due(Job)
    assert ran.total == 3
    assert ran.completed == (2 if act in ("leave_open", "too_long") else 3)
    assert not Job.objects.open().filter(act="work").exists()
    with transaction.atomic():
        Job.objects.create()
    assert connection.in_atomic_block


@pytest.mark.django_db
def test_what_a_handler_has_written_before_it_raised_stays_unless_the_database_refused_it(
    register: Callable[..., Any],
) -> None:
    """As with a worker's plain handler, which has no transaction."""

    @register(max_attempts=1)
    def do(photo: Photo) -> None:
        Effect.objects.create(key=photo.url)
        raise ValueError(photo.url)

    Photo.objects.create(url="kept")
    assert run_due(Photo).failed == 1
    assert Effect.objects.get().key == "kept"


@pytest.mark.django_db
def test_a_database_error_leaves_the_test_a_transaction_that_works(
    register: Callable[..., Any],
) -> None:
    @register(max_attempts=1)
    def do(photo: Photo) -> None:
        Photo(pk=photo.pk, url="twice").save(force_insert=True)

    make(Photo, 2)
    ran = run_due(Photo)
    assert [type(error) for error in ran.errors] == [IntegrityError] * 2
    assert Photo.objects.failed().count() == 2


@pytest.mark.django_db
def test_hooks_wait_for_a_commit_that_testcase_never_makes(
    register: Callable[..., Any], django_capture_on_commit_callbacks: Any
) -> None:
    told: list[Any] = []

    @register()
    def do(photo: Photo) -> None:
        transaction.on_commit(lambda: told.append(photo.pk))

    (photo,) = make(Photo, 1)
    with django_capture_on_commit_callbacks(execute=True):
        run_due(Photo)
        assert told == []
    assert told == [photo.pk]


# The fence, and what ends a test


@both
def test_a_claim_that_passed_to_another_writes_nothing(
    way: str, register: Callable[..., Any]
) -> None:
    @register(update_fields=["width"])
    def do(photo: Photo) -> None:
        Photo.objects.filter(pk=photo.pk).take_back()
        Photo.objects.claim_batch(1, claimed_by="user:7")
        photo.width = 5

    (photo,) = make(Photo, 1)
    assert run_due(Photo) == Ran(lost=1)
    photo.refresh_from_db()
    assert (photo.claimed_by, photo.width, photo.status) == ("user:7", None, "processing")


@pytest.mark.django_db
def test_a_row_that_is_due_again_at_once_is_left_to_the_next_call(
    register: Callable[..., Any],
) -> None:
    @register(completion="clear", batch_size=1)
    def do(photo: Photo) -> None:
        if photo.url == "later":
            raise RetryLater(0)

    make(Photo, 2)
    Photo.objects.create(url="later")
    for _ in range(2):
        assert run_due(Photo) == Ran(completed=2, released=1, errors=[])


@pytest.mark.django_db
def test_limit_pause_and_databases(register: Callable[..., Any]) -> None:
    register()(lambda photo: None)
    make(Photo, 5)
    assert run_due(Photo, limit=2).total == 2
    pause(Photo, using="default")
    assert run_due(Photo).total == 0
    assert run_due(Photo, using="default").total == 0


@pytest.mark.django_db
def test_ctrl_c_is_meant_for_the_test(register: Callable[..., Any]) -> None:
    @register()
    def do(photo: Photo) -> None:
        pytest.fail("the handler was called")

    make(Photo, 1)
    with pytest.raises(pytest.fail.Exception, match="was called"):
        run_due(Photo)


@pytest.mark.django_db
def test_a_model_without_a_handler_is_told_so() -> None:
    with pytest.raises(LookupError, match="has no handler"):
        run_due(Photo)


@pytest.mark.django_db
def test_rows_whose_lease_is_over_before_their_turn_go_back(
    register: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is renewed here, and what is no longer ours is not run."""
    ran: list[Any] = []

    @register(lease=60)
    def do(photo: Photo) -> None:
        ran.append(photo.pk)
        monkeypatch.setattr("django_taskclaim.worker.inflight.clock", lambda: 10.0**9)

    make(Photo, 3)
    with monkeypatch.context():
        result = run_due(Photo)
    assert (result.completed, result.released, len(ran)) == (1, 2, 1)


# The page that tells of it

TEXT = (Path(__file__).parents[1] / "docs" / "testing.md").read_text(encoding="utf-8")


@pytest.mark.django_db
def test_the_page_is_true() -> None:
    """Its test passes with the handler that it shows, and it names all that comes back."""
    shown, measuring = (block.values[0] for block in documents.blocks(TEXT, "python"))
    names: dict[str, Any] = {"__name__": "tests.testapp.testing", "Photo": Photo}
    documents.run(measuring, names, "testing.md")
    try:
        documents.run(shown, names, "testing.md")
        names["MeasuringTest"]("test_a_photo_is_measured").test_a_photo_is_measured()
    finally:
        unregister(Photo)
    for field in dataclasses.fields(Ran):
        assert f"`{field.name}`" in TEXT
