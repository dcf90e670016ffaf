"""The rows that a process holds are counted without being looked at, for the claimer asks at every change."""

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_taskclaim.handlers import Handler
from django_taskclaim.worker.claimer import Claimer
from django_taskclaim.worker.inflight import InFlight, Result, units_of
from django_taskclaim.worker.limits import Limit
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.outcomes import Done
from django_taskclaim.worker.service import Service
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
    inflight.add(units_of(JOBS, [Job() for _ in range(rows)]))
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

    inflight.add(units_of(JOBS, [Job() for _ in range(5)]))
    inflight.add(units_of(PHOTOS, [Photo() for _ in range(4)]))
    look()
    job = inflight.take(1, lambda handler, running: handler is JOBS, leaving)
    batch = inflight.take(1, lambda handler, running: handler is PHOTOS, leaving)
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
