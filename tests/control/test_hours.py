"""The hours of a window, and the pace of a rate."""

from datetime import UTC, datetime, time, timedelta

import pytest

from django_taskclaim.control.hours import Window
from django_taskclaim.worker import limits
from django_taskclaim.worker.limits import Limit, Pace


@pytest.mark.parametrize(
    ("opens", "closes", "now", "closed_for"),
    [
        ("09:00", "17:00", "09:00", None),
        ("09:00", "17:00", "16:59", None),
        ("09:00", "17:00", "17:00", 16 * 60),
        ("09:00", "17:00", "08:59", 1),
        ("22:00", "06:00", "23:30", None),
        ("22:00", "06:00", "00:00", None),
        ("22:00", "06:00", "05:59", None),
        ("22:00", "06:00", "06:00", 16 * 60),
        ("22:00", "06:00", "21:59", 1),
    ],
)
def test_a_window_opens_and_closes(
    opens: str, closes: str, now: str, closed_for: int | None
) -> None:
    at = datetime.combine(datetime(2026, 3, 29, tzinfo=UTC), time.fromisoformat(now), tzinfo=UTC)
    window = Window(time.fromisoformat(opens), time.fromisoformat(closes))
    wanted = None if closed_for is None else timedelta(minutes=closed_for)
    assert window.closed_for(at) == wanted
    assert str(window) == f"{opens}–{closes} UTC"


@pytest.mark.parametrize("rate", [0.1, 0.7, 3.0, 50.0, 2000.0])
def test_a_pace_is_kept_and_not_wasted(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a claimer that looks when it is told to, over a while."""
    moment = [1000.0]
    monkeypatch.setattr(limits, "clock", lambda: moment[0])
    pace, rows, began = Pace(rate), 0, moment[0]
    while rows < max(100, 20 * rate):
        moment[0] = max(moment[0] + 0.001, pace.next_at())
        claimed = min(50, pace.room())
        pace.took(claimed)
        rows += claimed
        # A burst is what one second allows, or a row.
        assert rows <= max(1.0, rate) + rate * (moment[0] - began) + 1e-6
    assert rows / (moment[0] - began) == pytest.approx(rate, rel=0.1)


def test_what_is_tighter() -> None:
    assert Limit(concurrency=2).is_tighter_than(Limit())
    assert Limit(rate=1.0).is_tighter_than(Limit(rate=2.0))
    assert not Limit(rate=2.0).is_tighter_than(Limit(rate=1.0))
    assert not Limit().is_tighter_than(Limit(concurrency=2))
    assert not Limit(batch_size=2).is_tighter_than(Limit())
