"""The rows that a process holds are counted without being looked at, for the claimer asks at every change."""

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_taskclaim.handlers import Handler
from django_taskclaim.states import Status
from django_taskclaim.tokens import COMPLETED, clock
from django_taskclaim.worker import writer
from django_taskclaim.worker.claimer import Claimer
from django_taskclaim.worker.inflight import InFlight, Result, units_of
from django_taskclaim.worker.limits import Limit
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.outcomes import DONE, Done
from django_taskclaim.worker.service import Service, _is_renewable
from tests.behaviour.support import fresh
from tests.factories import claimed, make
from tests.testapp.models import Job, Photo

JOBS, PHOTOS = Handler(Job, print), Handler(Photo, print, batch=True)


def calls_made(job: Callable[[], Any]) -> int:
    """Return how many calls of Python functions *job* costs."""
    calls = []
    # What the collector of garbage happens to call is none of it.
    gc.disable()
    sys.setprofile(lambda frame, event, arg: calls.append(event) if event == "call" else None)
    try:
        job()
    finally:
        sys.setprofile(None)
        gc.enable()
    return len(calls)


def claimer_with(rows: int, *, limit: int) -> Claimer:
    inflight = InFlight()
    options = WorkerOptions(("testapp.Job",), "worker", "default")
    service = Service(options, [JOBS], inflight)
    service.limits.keep(Job, Limit(concurrency=limit))
    inflight.add(units_of(JOBS, [claimed(Job()) for _ in range(rows)]))
    return Claimer(options, [JOBS], inflight, service)


@pytest.mark.django_db(databases="__all__")
def test_a_limit_costs_no_more_where_many_rows_are_held() -> None:
    """The claimer asks after each row that is taken or settled."""
    few, many = claimer_with(3, limit=5000), claimer_with(3000, limit=5000)
    few._has_room(JOBS)  # what is known of the model from now on
    assert calls_made(lambda: many._has_room(JOBS)) <= calls_made(lambda: few._has_room(JOBS))
    counted = [
        calls_made(lambda one=one: one.service.limits.is_full(Job, one.inflight.held_of))
        for one in (few, many)
    ]
    assert counted[0] == counted[1]


def test_rows_are_counted_until_they_are_written() -> None:
    """At every step, whatever became of them, the count is that of the rows themselves."""
    inflight, leaving = InFlight(), threading.Event()
    steps = []

    def look() -> None:
        held = inflight.held()
        for model in (Job, Photo):
            assert inflight.held_of(model) == sum(task.handler.model is model for task in held)
        steps.append((inflight.held_of(Job), inflight.held_of(Photo)))

    inflight.add(units_of(JOBS, [claimed(Job()) for _ in range(5)]))
    inflight.add(units_of(PHOTOS, [claimed(Photo()) for _ in range(4)]))
    look()
    job = inflight.take(1, lambda handler, inflight: handler is JOBS, leaving)
    batch = inflight.take(1, lambda handler, inflight: handler is PHOTOS, leaving)
    assert job is not None
    assert batch is not None
    look()
    last = inflight._waiting[Job][-1].tasks[0]
    inflight.withdraw(lambda task: task is last)
    look()
    results = [Result(task, Done(), 0.1) for task in [*job.tasks, *batch.tasks[:3]]]
    inflight.settle(job, results[:1])
    inflight.settle(batch, results[1:])
    look()
    inflight.postpone(results[:2], 9)
    look()
    inflight.written(results)
    inflight.written(results)
    look()
    inflight.close()
    look()
    assert steps == [(5, 4), (5, 4), (4, 4), (4, 3), (4, 3), (3, 0), (0, 0)]


def test_a_row_that_is_lost_while_rows_are_withdrawn_is_held_or_taken_back() -> None:
    """Another thread may find it lost at any moment; it never slips through, and is counted once."""
    inflight, asked = InFlight(), []

    def lost_meanwhile(task: Any) -> bool:
        asked.append(task)
        return asked.count(task) > 1

    inflight.add(units_of(JOBS, [claimed(Job())]))
    taken = inflight.withdraw(lost_meanwhile)
    assert len(taken) + len(inflight.held()) == 1
    assert inflight.held_of(Job) == len(inflight.held())


def test_a_wait_is_as_long_as_it_is_to_be_after_the_last_change() -> None:
    """The first result that comes is to be written soon, however long the wait was to be before it came."""
    inflight, end = InFlight(), [clock() + 60]

    def result_comes() -> None:
        end[0] = clock() + 0.02
        inflight.wake()

    threading.Timer(0.05, result_comes).start()
    began = clock()
    inflight.wait_until(lambda: False, lambda: end[0] - clock())
    assert clock() - began < 30


@pytest.mark.django_db
def test_an_instance_that_its_handler_saved_as_a_copy_does_no_harm() -> None:
    """It denotes another row now; the one that was claimed is still held, renewed, and finished by its claim."""
    make(Job)
    (row,) = Job.objects.claim_batch(1)
    ((task,),) = (unit.tasks for unit in units_of(JOBS, [row]))
    row.pk, row._state.adding = None, True
    row.save()
    assert _is_renewable(task)
    carrier = task.carrier()
    assert (carrier.pk, carrier.act) == (task.claim.pk, row.act)
    carrier.claim.complete()
    assert task.claim.how_ended() == COMPLETED
    assert not _is_renewable(task)
    assert (Job.objects.get(pk=task.claim.pk).status, fresh(row).status) == ("complete", "open")


@pytest.mark.django_db
def test_results_wait_for_those_of_rows_about_to_be_claimed() -> None:
    """Nothing runs, but more is to come: they are written with it, or when they have waited for long enough."""
    inflight = InFlight(enough=500)
    assert inflight.write_at(60.0) is None
    (unit,) = units_of(JOBS, [claimed(Job())])
    inflight.add([unit])
    taken = inflight.take(0, lambda handler, held: True, threading.Event())
    assert taken is unit
    result = Result(unit.tasks[0], Done(), 0.0)
    inflight.settle(unit, [result])
    assert inflight.write_at(60.0) == 0.0
    assert inflight.write_at(60.0, more_to_come=True) == result.came + 60.0
    inflight.enough = 1
    assert inflight.write_at(60.0, more_to_come=True) == 0.0


@pytest.mark.django_db(transaction=True)
def test_what_became_of_a_row_that_ran_alone_is_written_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds up everything else, so its result waits for no others, although more could be claimed meanwhile."""
    monkeypatch.setattr(writer, "LINGER", 60.0)
    make(Job)
    inflight = InFlight()
    options = WorkerOptions(("testapp.Job",), "worker", "default")
    claimer = Claimer(options, [JOBS], inflight, Service(options, [JOBS], inflight))
    units = units_of(JOBS, Job.objects.claim_batch(1))
    inflight.add(units)
    inflight.take(0, lambda handler, held: True, threading.Event())
    inflight.settle(units[0], [Result(units[0].tasks[0], DONE, 0.0)])
    began = clock()
    assert claimer._write_until_empty()
    assert clock() - began < 30
    assert Job.objects.get().status == Status.COMPLETE
