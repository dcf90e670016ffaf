"""Batch handlers, coroutine functions and atomic handlers in real workers."""

from collections.abc import Callable
from threading import Event, current_thread
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_taskclaim.exceptions import Permanent
from django_taskclaim.handlers import Handler
from django_taskclaim.worker.batch import NOT_STARTED, Failed, PutBack, hold
from django_taskclaim.worker.feeds import Feed
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.keeper import LeaseKeeper
from django_taskclaim.worker.options import WorkerOptions
from tests.doctor.support import handling
from tests.factories import make
from tests.meanwhile import connected
from tests.querysets.support import keys
from tests.testapp.models import Child, Effect, Job, Ledger, Parent, Photo, UuidKey
from tests.testapp.odd_models import TwoParents
from tests.worker.conftest import Start, Worker, jobs, states, wait_until

ONE_TRY = {"TASKCLAIM_TEST_ATTEMPTS": "1"}
IN_TEN_SECONDS = ONE_TRY | {"TASKCLAIM_TEST_TIMEOUT": "10"}


def drain(start_worker: Start, kind: str, *options: str, **env: str) -> Worker:
    worker = start_worker("--in-process", "--drain", *options, model=f"testapp.{kind}", **env)
    assert worker.wait() == 0
    return worker


# Batches


@pytest.mark.once
@pytest.mark.promise(10)
def test_a_batch_answers_row_by_row(start_worker: Start) -> None:
    """Each row gets its own outcome; a row that is not mentioned has failed."""
    outcomes = ["mapping", "work", "value", "permanent", "later", "unmentioned", "odd"]
    keys = {outcome: jobs(1, outcome)[0] for outcome in outcomes}
    drain(start_worker, "BatchJob")
    stored = Job.objects.in_bulk()
    assert {act: (stored[key].status, stored[key].attempts) for act, key in keys.items()} == {
        "mapping": ("complete", 0),
        "work": ("complete", 0),
        "later": ("complete", 0),
        "permanent": ("failed", 1),
        "value": ("failed", 3),
        "unmentioned": ("failed", 3),
        "odd": ("failed", 3),
    }
    assert stored[keys["value"]].last_error == "not this one"
    assert "said nothing about this row" in stored[keys["unmentioned"]].last_error


@pytest.mark.once
def test_a_batch_answers_by_rows_that_it_has_read_from_the_table_of_the_claim(
    work: Callable[..., int],
) -> None:
    make(Child, 2)
    assert work(Child, lambda rows: Parent.objects.all(), batch=True, max_attempts=1) == 0
    assert Child.objects.filter(status="complete").count() == 2


@pytest.mark.parametrize("form", [dict, list])
def test_a_batch_answers_by_the_keys_of_rows_also_where_their_claims_have_others(
    work: Callable[..., int], form: Any
) -> None:
    make(TwoParents, 3, id=lambda n: n + 101, key=lambda n: n + 103)
    answer = form([(101, None), (102, None), (103, ValueError("not this one"))])
    assert work(TwoParents, lambda rows: answer, batch=True, max_attempts=1) == 0
    assert keys(TwoParents.objects.failed()) == [103]


@pytest.mark.parametrize("mapped", [True, False])
def test_what_is_permanent_trips_no_breaker(
    work: Callable[..., int], settings: Any, mapped: bool
) -> None:
    settings.TASKCLAIM = {"BREAKER": 0.5, "BREAKER_OUTCOMES": 2}
    make(Photo, 6)

    def refuse(photo: Photo) -> None:
        raise LookupError if mapped else Permanent("no such picture")

    assert work(Photo, refuse, errors={LookupError: Permanent}) == 0
    assert len(Photo.objects.failed()) == 6


@pytest.mark.promise(11)
def test_a_drain_ends_behind_a_failed_row_that_keeps_back_its_key(
    work: Callable[..., int],
) -> None:
    make(Photo, 3, country="NZ")
    assert work(Photo, lambda photo: 1 / 0, serial_by="country", max_attempts=1) == 3
    assert Photo.objects.progress().open == 2


@pytest.mark.once
@pytest.mark.promise(10)
def test_a_batch_that_raises_is_halved_until_the_bad_row_is_alone(start_worker: Start) -> None:
    """Only that one is charged, as is one that leaves a transaction open; what the handler ended is not run again."""
    good = jobs(15)
    (ended,) = jobs(1, "end")
    bad = [*jobs(1, "raise"), *jobs(1, "leave_open")]
    good += jobs(14)
    drain(start_worker, "BatchJob", "--batch-size", "32")
    assert states() == {"complete": 30, "failed": 2}
    assert [*Job.objects.filter(pk__in=bad).values_list("attempts", flat=True)] == [3, 3]
    assert set(Job.objects.filter(pk__in=good).values_list("attempts", "iteration")) == {(0, 0)}
    assert Ledger.objects.filter(key=str(ended)).count() == 1


@pytest.mark.once
@pytest.mark.long
@pytest.mark.promise(10)
def test_a_batch_that_hangs_charges_only_the_row_that_hangs(start_worker: Start) -> None:
    """Nobody can know which row it was, so each is claimed alone."""
    good = jobs(2)
    (bad,) = jobs(1, "sleep:600")
    good += jobs(2)
    worker = start_worker("--drain", "--grace", "1", model="testapp.BatchJob", **IN_TEN_SECONDS)
    assert worker.wait() == 0
    assert states() == {"complete": 4, "failed": 1}
    assert "ran longer" in Job.objects.get(pk=bad).last_error
    assert set(Job.objects.filter(pk__in=good).values_list("attempts", flat=True)) == {0}


# Coroutine functions


@pytest.mark.once
@pytest.mark.promise(10)
def test_coroutines_run_side_by_side(start_worker: Start) -> None:
    """Some sleep until one is cancelled at its timeout; the others end in between, each in its own way."""
    (slow,) = jobs(1, "sleep:600", priority=1)
    jobs(5)
    failing = jobs(5, "fail")
    jobs(5, "complete")
    drain(start_worker, "AsyncJob", TASKCLAIM_TEST_TIMEOUT="20", **ONE_TRY)
    assert states() == {"complete": 10, "failed": 6}
    stored = Job.objects.in_bulk()
    assert "ran longer" in stored[slow].last_error
    assert all(stored[key].error_class == "ValueError" for key in failing)


#: What lets the session write nothing, by vendor.
READ_ONLY = {
    "postgresql": "SET default_transaction_read_only = on",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
    "sqlite": "PRAGMA query_only = on",
}


def test_no_connection_stays_open_after_coroutines(work: Callable[..., int]) -> None:
    """Whether the database or the row is to blame, a thread of a pool has asked on a connection of its own."""
    opened: list[BaseDatabaseWrapper] = []

    def note(connection: BaseDatabaseWrapper, **kwargs: object) -> None:
        opened.append(connection)

    def write() -> None:
        with connection.cursor() as cursor:
            cursor.execute(READ_ONLY[connection.vendor])
        Effect.objects.create(key="never")

    async def function(photo: Photo) -> None:
        await sync_to_async(write)()

    (row,) = make(Photo)
    with connected(connection_created, note):
        assert work(Photo, function, max_attempts=1) == 0
    row.refresh_from_db()
    assert (row.status, Effect.objects.count()) == ("failed", 0)
    others = [one for one in opened if one is not connections["default"]]
    assert len(others) >= 3
    assert all(one.connection is None for one in others)


@pytest.mark.promise(13)
@pytest.mark.django_db(transaction=True)
def test_coroutines_beside_other_handlers_open_the_connections_that_are_announced() -> None:
    make(Photo, 4)
    make(UuidKey, 4)
    labels, threads = ("testapp.Photo", "testapp.UuidKey"), set[str]()

    def note(connection: BaseDatabaseWrapper, **kwargs: object) -> None:
        threads.add(current_thread().name)

    async def function(row: UuidKey) -> None:
        await sync_to_async(Photo.objects.count)()

    connection_created.connect(note)
    try:
        with handling(Photo, lambda row: Photo.objects.count()), handling(UuidKey, function):
            announced = WorkerOptions(labels, "w", "default").connections
            call_command("claimworker", *labels, "--in-process", "--drain", "--poll", "0.2")
    finally:
        connection_created.disconnect(note)
    # The command asks for the tables in this one, which ends before the worker starts.
    threads.discard("taskclaim-question")
    assert len(threads) == announced == 4


@pytest.mark.once
@pytest.mark.long
@pytest.mark.promise(10)
def test_a_coroutine_that_blocks_the_loop_fails_alone(start_worker: Start) -> None:
    """It cannot be cancelled, so its process is replaced; its neighbours are not charged."""
    neighbours = jobs(3, "sleep:1")
    (blocking,) = jobs(1, "block:600")
    worker = start_worker("--drain", "--grace", "1", model="testapp.AsyncJob", **IN_TEN_SECONDS)
    assert worker.wait() == 0
    assert states() == {"complete": 3, "failed": 1}
    assert Job.objects.failed().get().pk == blocking
    stacks = [event["text"] for event in worker.events() if "it is here" in event["text"]]
    assert len(stacks) > 1
    assert all("in do_asynchronously" in text for text in stacks)
    assert set(Job.objects.filter(pk__in=neighbours).values_list("attempts", flat=True)) == {0}


@pytest.mark.once
@pytest.mark.promise(10)
@pytest.mark.parametrize("calls", [3, 1])
def test_a_blocked_loop_charges_only_a_row_that_must_have_done_it(calls: int, db: None) -> None:
    """What it has not begun goes back as not started; of rows that were called together each is claimed alone next."""

    async def block(photo: Photo) -> None: ...

    make(Photo, 3)
    handler, inflight = Handler(Photo, block, batch=calls == 1), InFlight()
    inflight.add(hold(handler, Photo.objects.claim_batch(3)))
    items: list[Any] = [inflight.take(0, Event(), is_async=True) for _ in range(calls)]
    items[0].begin(items[0].rows)
    items[0].started -= 3600
    options = WorkerOptions((), "w", "default")
    LeaseKeeper("default", [Feed(handler, options)], inflight).end_overrun()
    outcomes = [(held.outcome, held.ran) for held in inflight.held()]
    assert isinstance(outcomes[0][0], Failed if calls == 3 else PutBack)
    assert outcomes[len(items[0].rows) :] == [(NOT_STARTED, 0.0)] * (calls - 1)


# Atomic handlers


def effects() -> list[int]:
    return sorted(int(key) for key in Effect.objects.values_list("key", flat=True))


@pytest.mark.promise(5)
def test_an_atomic_handler_and_its_completion_are_one_transaction(start_worker: Start) -> None:
    """Nothing stays of a run that raises, or whose transaction is broken, doomed, lost or left open."""
    good = jobs(10)
    # A verb of the handler ends the claim; a hook that raises comes after the commit; a savepoint ends an error. The
    # effects stay.
    good += jobs(1, "complete") + jobs(1, "hook") + jobs(1, "undo")
    deleted = jobs(1, "delete")
    broken = [jobs(1, act)[0] for act in ("lose", "doom")]
    acts = ["fail", "leave_open"] + ["swallow"] * (connection.vendor == "postgresql")
    others = [jobs(1, act)[0] for act in acts]
    worker = drain(start_worker, "AtomicJob", "--batch-size", "8", **ONE_TRY)
    assert states() == {"complete": 13, "failed": len(broken) + len(others)}
    assert effects() == sorted(good + deleted)
    assert set(Job.objects.filter(pk__in=good[:10]).values_list("counter", flat=True)) == {1}
    for row in Job.objects.filter(pk__in=broken):
        assert "nothing it wrote was kept" in row.last_error
    assert [event for event in worker.events() if "hook raised" in event["text"]]


@pytest.mark.promise(5, 10)
def test_an_atomic_batch_is_all_or_nothing(start_worker: Start) -> None:
    """A batch with a row that is not done leaves nothing; the others are done once each in smaller transactions."""
    good = jobs(5)
    jobs(1, "permanent")
    good += jobs(4)
    drain(start_worker, "AtomicBatchJob")
    assert states() == {"complete": 9, "failed": 1}
    assert effects() == good
    assert set(Job.objects.filter(pk__in=good).values_list("attempts", flat=True)) == {0}


@pytest.mark.promise(3, 5)
@pytest.mark.skipif(not connection.features.has_select_for_update, reason="needs row locks")
def test_a_lost_claim_undoes_what_an_atomic_handler_wrote(start_worker: Start) -> None:
    """An operator resets the row while it runs: that run leaves nothing, and the next one its effect."""
    (key,) = jobs(1, "stay")
    worker = start_worker("--in-process", "--drain", model="testapp.AtomicJob")
    wait_until(lambda: worker.events("stays"))
    assert Job.objects.filter(pk=key).reset(running=True) == 1
    Job.objects.filter(pk=key).update(act="work")
    assert worker.wait() == 0
    assert states() == {"complete": 1}
    assert effects() == [key]
    assert worker.events("lost")
