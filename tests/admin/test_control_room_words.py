"""How the control room puts numbers, forecasts, charts and kinds of errors."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import translation

from django_taskclaim import policy
from django_taskclaim.admin.control_room import words
from django_taskclaim.admin.control_room.chart import charts
from django_taskclaim.admin.control_room.crew import lines
from django_taskclaim.admin.control_room.failures import normalised
from django_taskclaim.admin.control_room.progress import bar_of, forecast
from django_taskclaim.completion import Clear, Delete
from django_taskclaim.completion import Mark as Marking
from django_taskclaim.control.reading import Mark, Slot
from django_taskclaim.overview import ALIVE_WITHIN, Overview, Worker
from django_taskclaim.querysets import Progress
from tests.testapp.models import Job

AT = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (0, "0"),
        (9_999, "9,999"),
        (12_345, "12.3 k"),
        (100_000, "100 k"),
        (999_999, "1 M"),
        (1_240_000, "1.24 M"),
        (50_000_000, "50 M"),
        (5_000_000_000, "5 G"),
    ],
)
def test_large_numbers_have_three_digits(number: int, told: str) -> None:
    assert words.short(number) == told


def test_large_numbers_are_spelled_as_the_locale_does() -> None:
    with translation.override("de"):
        assert words.short(1_240_000) == "1,24 M"
        assert words.number(1_204) == "1.204"


@pytest.mark.parametrize(
    ("share", "told"), [(0, "0 %"), (0.00001, "< 0.1 %"), (0.9999, "99.9 %"), (1, "100 %")]
)
def test_no_share_is_rounded_to_nothing_or_to_all(share: float, told: str) -> None:
    assert words.percent(share) == told


def test_a_forecast_is_a_range() -> None:
    rows = Progress(open=60_000, complete=40_000)
    assert forecast(rows, [100.0, 50.0]) == "between 10 min and 20 min left"
    assert forecast(rows, [100.0, 99.0]) == "about 10 min left"


def test_nothing_is_foretold_of_less_than_a_hundredth_or_of_no_rate() -> None:
    assert forecast(Progress(open=100_000, complete=900), [100.0]) == ""
    assert forecast(Progress(open=1_000, complete=900), []) == ""
    assert forecast(Progress(complete=900), [100.0]) == ""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("job 17 has no width", "job 4,711 has no width"),
        ("no such file: '/srv/a.png'", "no such file: '/srv/b.png'"),
        ("GET https://a.example/1 timed out", "GET https://b.example/2 timed out"),
        ("<Lock at 0x7f01> is held", "<Lock at 0x7fff> is held"),
        ("12 rows of 40 are missing", "17 rows of 90 are missing"),
        ("timed out after 30 s", "timed out after 31 s"),
        ("HTTP 404 for job 17", "HTTP 404 for job 18"),
        ("(1213, 'Deadlock found') in row 5", "(1213, 'Deadlock found') in row 6"),
        (
            "no row 0b7c7c1e-9a3e-4a54-9d8f-0a1f2e3d4c5b",
            "no row ffffffff-9a3e-4a54-9d8f-0a1f2e3d4c5b\nTraceback",
        ),
    ],
)
def test_errors_of_one_kind_are_told_as_one(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("the disk is full", "the disk is slow"),
        ("HTTP 404", "HTTP 503"),
        ("HTTP Error 404: Not Found", "HTTP Error 410: Not Found"),
        ("HTTP/1.1 500 for https://a.example/", "HTTP/1.1 502 for https://a.example/"),
        ("404 Client Error: no for url: https://a/1", "410 Client Error: no for url: https://a/2"),
        ("503 Service Unavailable", "504 Service Unavailable"),
        ("404 for https://a.example/1", "410 for https://a.example/2"),
        ("bad answer (status code: 429)", "bad answer (status code: 403)"),
        ("the server returned 500", "the server returned 503"),
        ("[Errno 111] refused", "[Errno 113] refused"),
        ("convert exited with code 1", "convert exited with code 137"),
        ("(1213, 'lost')", "(1205, 'lost')"),
    ],
)
def test_errors_of_two_kinds_are_told_apart(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


def slots(*done: int) -> list[Slot]:
    return [
        Slot(AT + timedelta(minutes=i), n, 0, n / 60, 0.5 if n else None, 0.9 if n else None)
        for i, n in enumerate(done)
    ]


def test_a_chart_has_a_step_for_each_slot_and_a_mark_at_its_place() -> None:
    marks = [Mark(AT + timedelta(minutes=2), "pause", "Paused by Ada"), Mark(AT, "old", "")]
    hour, day = charts(slots(60, 120, 0, 60), [], marks, AT + timedelta(minutes=4))
    assert not hour.empty
    assert hour.area.count("L") == 9
    assert hour.top == "2.0"
    assert next((tick.x, tick.sign) for tick in hour.ticks) == ("500.0", "❚❚")
    assert len(hour.rows) == 3
    assert day.empty


def test_a_gap_in_the_work_is_a_gap_in_the_lines() -> None:
    hour, _day = charts(slots(60, 60, 0, 60, 60), [], [], AT + timedelta(minutes=5))
    assert hour.p50.count("M") == 2


@pytest.mark.parametrize(
    ("minutes", "ends", "last_begins"),
    [(6.5, "12:06", 923.1), (6, "12:06", 997.2), (30, "12:07", 857.1)],
)
def test_a_chart_ends_now_and_never_later(minutes: float, ends: str, last_begins: float) -> None:
    """The last slot is as wide as its part that is over; in figures of half an hour ago that is the whole."""
    now = AT + timedelta(minutes=minutes)
    hour, _day = charts(slots(60, 0, 0, 0, 0, 0, 60), [], [], now)
    assert hour.ends.endswith(ends)
    assert f"L{last_begins} " in hour.area
    assert "L1000.0 " in hour.area


@pytest.mark.parametrize("last", [0, 1, 6000])
def test_the_average_is_never_above_what_is_shown_as_the_most(last: int) -> None:
    """The rate of a slot that has only begun may be anything, and is left out of both."""
    hour, _day = charts(slots(60, 120, last), [], [], AT + timedelta(minutes=2, seconds=1))
    assert (hour.average, hour.top) == ("1.5", "2.0")
    alone, _day = charts(slots(0, 0, 90), [], [], AT + timedelta(minutes=2, seconds=30))
    assert (alone.average, alone.top) == ("1.5", "1.5")


def test_the_rate_of_a_forecast_leaves_pauses_and_what_is_not_over_out() -> None:
    hour = slots(600, 0, 0, 600, 1)
    bar = bar_of(seen_with(Progress(open=60_000, complete=40_000)), hour, slots(1, 1, 1))
    assert bar is not None
    assert bar.forecast == "about 1 h 40 min left"


@pytest.mark.parametrize(
    ("completion", "fate", "forecast"),
    [
        (Marking(), "", ""),
        (Delete(), "rows that are done are deleted", "about 1 h 40 min left"),
        (Clear(), "rows that are done are open again", ""),
    ],
)
def test_rows_that_do_not_stay_are_not_counted_as_progress(
    completion: Any, fate: str, forecast: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(policy._policies, Job, policy.Policy(completion=completion))
    bar = bar_of(seen_with(Progress(open=60_000)), slots(600, 600, 1))
    assert bar is not None
    assert (bar.fate, bar.left, bar.forecast) == (fate, "60,000", forecast)


def seen_with(progress: Progress) -> Overview:
    return Overview(
        model=Job,
        alias="default",
        now=AT,
        progress=progress,
        pause=None,
        due=0,
        due_since=None,
        next_due=None,
        expired=0,
        expired_since=None,
    )


@pytest.mark.parametrize(
    ("held", "seconds", "told"),
    [
        (1, 5, "working"),
        (1, 8, "last heard of 8 s ago"),
        (0, 8, "working"),
        (0, 13, "last heard of 13 s ago"),
        (0, 21, "silent"),
    ],
)
def test_of_a_worker_that_missed_a_report_is_told_when_it_was_last_heard_of(
    held: int, seconds: int, told: str
) -> None:
    """One that held rows when it last reported does so again within 5 s, another within 10."""
    worker = Worker(
        name="worker@web-1:41",
        labels=("testapp.Job",),
        state="running",
        started_at=AT - timedelta(hours=1),
        seen_at=AT - timedelta(seconds=seconds),
        held=held,
        done=0,
        failed=0,
        last_error="",
        alive=timedelta(seconds=seconds) <= ALIVE_WITHIN,
    )
    (line,) = lines(Job, [worker], seen_with(Progress()), {}, None, now=AT, sees_all=True)
    assert line.state == told
