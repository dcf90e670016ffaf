"""``run_due``: what a worker does, on the test's own connection, inside ``TestCase`` and outside."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import Error, IntegrityError, connection, connections, transaction
from django.test import TestCase

from django_taskclaim.exceptions import RetryLater
from django_taskclaim.switch import pause
from django_taskclaim.testing import Ran, arun_due, run_due
from tests.doctor.support import handling
from tests.factories import make
from tests.querysets.support import clock, set_raw
from tests.testapp.models import (
    AsyncJob,
    AtomicBatchJob,
    AtomicJob,
    BatchJob,
    Effect,
    Job,
    OrderedByForeignKey,
    Photo,
)
from tests.testapp.odd_models import TwoParents

pytestmark = pytest.mark.django_db(databases="__all__")


def jobs(*acts: str) -> list[Job]:
    return [Job.objects.create(act=act) for act in acts]


class InATestCase(TestCase):
    """As a project would write it: each test finds the row open."""

    @classmethod
    def setUpTestData(cls) -> None:
        cls.job = Job.objects.create()

    def test_a_due_row_is_done(self) -> None:
        assert run_due(Job) == Ran(completed=1)
        self.job.refresh_from_db()
        assert (self.job.status, self.job.counter) == ("complete", 1)
        assert run_due(Job).total == 0

    def test_so_it_is_again(self) -> None:
        assert run_due(Job).completed == 1


@pytest.mark.promise(10)
def test_an_error_that_puts_a_batch_back_is_traced_to_its_row() -> None:
    """Otherwise the same rows would come together for ever; each is run once, also where its claim has another key."""
    make(TwoParents, 5, id=lambda n: n + 101, key=lambda n: n + 103)

    def refuse(rows: list[Any]) -> None:
        if any(row.pk == 103 for row in rows):
            raise TimeoutError

    how: dict[str, Any] = {"batch": True, "batch_size": 3, "errors": {TimeoutError: RetryLater(0)}}
    with handling(TwoParents, refuse, **how):
        assert run_due(TwoParents) == Ran(completed=4, released=1)


@pytest.mark.promise(2)
@pytest.mark.django_db(transaction=True)
def test_it_runs_outside_of_transactions_and_can_be_awaited() -> None:
    async def run_one() -> Ran:
        try:
            return await arun_due(AsyncJob, limit=1)
        finally:
            # That thread's connections would outlive the test database otherwise.
            await sync_to_async(connections.close_all)()

    jobs("work", "work", "work")
    assert asyncio.run(run_one()) == Ran(completed=1)
    assert run_due(Job, limit=1) == Ran(completed=1)
    with transaction.atomic(), pytest.raises(RuntimeError):
        run_due(Job)


def test_the_policy_is_that_of_the_worker() -> None:
    """Retries, back-off, permanent failures, rows put off, and claims that the handler has ended."""
    jobs(
        "work", "fail", "permanent", "later", "leave", "complete", "delete", "give_up", "give_back"
    )
    ran = run_due(Job)
    assert (ran.completed, ran.failed, ran.retrying, ran.released) == (3, 1, 3, 2)
    errors = {type(error).__name__ for error in ran.errors if isinstance(error, BaseException)}
    assert errors == {"ValueError", "Permanent", "SystemExit"}
    row = Job.objects.get(act="fail")
    assert (row.status, row.attempts, row.error_class) == ("open", 1, "ValueError")
    Job.objects.exclude(pk=row.pk).delete()
    set_raw(row, "not_before", clock("+1 HOUR"))
    assert run_due(Job).total == 0
    for left in ("retrying", "failed"):
        set_raw(row, "not_before", clock("-1 HOUR"))
        assert getattr(run_due(Job), left) == 1
    assert Job.objects.failed().get().attempts == 3


@pytest.mark.promise(5, 10)
@pytest.mark.parametrize("model", [AtomicJob, BatchJob, AtomicBatchJob, AsyncJob])
def test_handlers_of_every_kind(model: Any) -> None:
    """One bad row is charged, the others are done; an atomic handler keeps nothing of what failed."""
    bad = {AtomicJob: "fail", BatchJob: "raise", AtomicBatchJob: "value", AsyncJob: "fail"}[model]
    jobs("work", "work", bad, "work")
    ran = run_due(model)
    assert (ran.completed, ran.retrying, len(ran.errors)) == (3, 1, 1)
    assert Job.objects.open().get().act == bad
    if model in (AtomicJob, AtomicBatchJob):
        assert Effect.objects.count() == 3


# What a handler may do to the test's transaction


@pytest.mark.parametrize("act", ["too_long", "swallow", "hook"])
def test_a_spoiled_transaction_spoils_neither_the_test_nor_other_rows(act: str) -> None:
    """A result that the database refuses, a swallowed error, a hook."""
    jobs("work", act, "work")
    ran = run_due(Job)
    assert ran.total == 3
    assert ran.completed == (2 if act == "too_long" else 3)
    with transaction.atomic():
        Job.objects.create()
    assert connection.in_atomic_block


def test_an_error_swallowed_on_one_database_undoes_nothing_on_another() -> None:
    def do(photo: Photo) -> None:
        Effect.objects.create(key="kept")
        with suppress(Error), connections["other"].cursor() as cursor:
            cursor.execute("SELECT 1 FROM nowhere")

    make(Photo, 1)
    with handling(Photo, do):
        assert (run_due(Photo), Effect.objects.count()) == (Ran(completed=1), 1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(
    not connection.features.can_defer_constraint_checks, reason="needs constraints of a COMMIT"
)
@pytest.mark.parametrize(("rows", "retrying", "released"), [(1, 1, 0), (2, 0, 2)])
def test_the_error_of_a_commit_is_returned(rows: int, retrying: int, released: int) -> None:
    """A foreign key is looked at when the transaction of an atomic batch commits."""

    def refer(photos: list[Photo]) -> None:
        OrderedByForeignKey.objects.create(author_id=404)

    make(Photo, rows)
    with handling(Photo, refer, batch=True, atomic=True):
        ran = run_due(Photo)
    assert [type(error) for error in ran.errors] == [IntegrityError] * rows
    assert (ran.retrying, ran.released) == (retrying, released)


def test_each_row_runs_once_a_call_within_limit_and_pause() -> None:
    def do(photo: Photo) -> None:
        if photo.country:
            raise RetryLater(0)

    make(Photo, 3, country=lambda i: "NZ" if i == 2 else "")
    with handling(Photo, do, completion="clear", batch_size=1):
        for _ in range(2):
            assert run_due(Photo) == Ran(completed=2, released=1)
        assert run_due(Photo, limit=2).total == 2
        pause(Photo, using="default")
        assert run_due(Photo).total == 0


def test_a_failure_of_the_test_ends_it() -> None:
    """A missing handler is one; ``pytest.fail`` in a handler does not become a failed row."""
    with pytest.raises(LookupError, match="has no handler"):
        run_due(Photo)
    make(Photo, 1)
    with (
        handling(Photo, lambda photo: pytest.fail("the handler was called")),
        pytest.raises(pytest.fail.Exception, match="was called"),
    ):
        run_due(Photo)
