"""A claim asks for what takes about a second, for no more than a third of the lease, and for what somebody allowed."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from django_taskclaim import policy
from django_taskclaim.handlers import Handler
from django_taskclaim.policy import Policy
from django_taskclaim.worker.sizing import BatchSize
from tests.testapp.models import IntRange, Job
from tests.worker.conftest import Worker, jobs

Start = Callable[..., Worker]


def sizes(of: Handler, threads: int = 1, *, each: float, claims: int = 8) -> list[int]:
    """Return what a worker asks for one claim after the other, of rows that take *each* seconds."""
    size, asked = BatchSize(of, threads), []
    for _ in range(claims):
        asked.append(size.most(None))
        size.note(asked[-1], asked[-1] * each)
    return asked


async def later(job: Job) -> None: ...


@pytest.mark.parametrize(
    ("options", "threads", "each", "asked"),
    [
        pytest.param({}, 1, 1e-5, [50, 100, 200, 400, 500, 500], id="quick"),
        pytest.param({}, 1, 0.005, [50, 100, 200, 200], id="a second"),
        pytest.param({}, 1, 0.1, [50, 10, 10], id="slow"),
        pytest.param({}, 4, 0.1, [50, 40, 40], id="side by side"),
        pytest.param({}, 1, 90.0, [50, 1, 1], id="longer than the lease"),
        pytest.param({"batch": True}, 4, 1e-5, [50, 50], id="quick batches"),
        pytest.param({"batch": True}, 4, 2.0, [50, 50], id="slow batches"),
        pytest.param({"own_batch_size": 100}, 1, 1e-5, [100, 100], id="given"),
        pytest.param({"own_batch_size": 100}, 1, 0.1, [100, 100], id="given, slow"),
        pytest.param({"own_batch_size": 100}, 1, 2.0, [100, 10, 10], id="a third of the lease"),
        pytest.param({"own_batch_size": 100}, 2, 2.0, [100, 20], id="side by side, of the lease"),
        pytest.param(
            {"function": later, "own_concurrency": 8}, 1, 0.1, [50, 80, 80], id="coroutines"
        ),
    ],
)
def test_the_size_follows_what_rows_take(
    options: dict[str, Any],
    threads: int,
    each: float,
    asked: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(policy._policies, Job, Policy(own_lease=timedelta(seconds=60)))
    given = Handler(**{"model": Job, "function": print, **options})
    assert sizes(given, threads, each=each, claims=len(asked)) == asked


def test_what_the_settings_say_is_the_most() -> None:
    with override_settings(TASKCLAIM={"BATCH_SIZE": 20}):
        assert sizes(Handler(Job, print), each=1e-5) == [20] * 8


def test_what_is_set_while_it_runs_is_the_most() -> None:
    size = BatchSize(Handler(Job, print), 1)
    size.note(50, 1.0)
    assert size.most(20) == 20
    size.note(20, 200.0)
    assert size.most(20) < 20


def test_ranges_come_one_by_one() -> None:
    assert sizes(Handler(IntRange, print), each=1e-5) == [1] * 8
    assert sizes(Handler(IntRange, print, own_batch_size=3), each=1e-5) == [3] * 8


def test_looks_in_vain_are_no_reason_to_ask_for_more() -> None:
    """One quick row says little of the five hundred that may come in next."""
    size = BatchSize(Handler(Job, print), 1)
    size.note(1, 1e-5)
    assert [size.most(None) for _ in range(5)] == [50] * 5
    size.note(49, 1e-5)
    assert [size.most(None) for _ in range(5)] == [100] * 5


def test_one_slow_row_among_many_changes_little() -> None:
    size = BatchSize(Handler(Job, print), 1)
    for _ in range(5):
        size.note(size.most(None), 0.5)
    size.note(1, 1.0)
    assert size.most(None) > 10


@pytest.mark.processes
@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_worker_claims_less_of_what_is_slow_and_more_of_what_is_quick(
    start_worker: Start,
) -> None:
    jobs(50, "sleep:0.1", priority=2)
    jobs(40, "sleep:0.1", priority=1)
    # What they took is told with their results, and those wait for each other: not all may be over by then.
    jobs(300, "sleep:0.002")
    worker = start_worker("--drain", "--in-process")
    assert worker.wait(240) == 0
    events = worker.events("claimed", "completed")
    first, second, *more = (at for at, one in enumerate(events) if one["event"] == "claimed")
    assert events[first]["rows"] == 50
    # However slow the machine is: between those of the quickest and of the slowest of the rows before.
    each = [one["ran"] / one["rows"] for one in events[first + 1 : second]]
    # One may have stood still for more than a second.
    assert max(1, int(1 / max(each))) <= events[second]["rows"] <= max(1, 1 / min(each)) <= 10
    assert max(events[at]["rows"] for at in more) > events[second]["rows"]
