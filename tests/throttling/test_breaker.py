"""The arithmetic of the circuit breaker, by a clock that the test turns."""

from datetime import timedelta

import pytest

from django_taskclaim.throttling.breaker import CircuitBreaker, Rule

pytestmark = pytest.mark.once

RULE = Rule(rate=0.5, outcomes=20, within=timedelta(seconds=60), rest=timedelta(seconds=30))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(RULE, clock)


def rest_of(breaker: CircuitBreaker, clock: Clock) -> float:
    hold = breaker.hold()
    return 0.0 if hold is None else hold.until - clock.now


def try_again(breaker: CircuitBreaker, clock: Clock, *, good: int = 0, bad: int = 0) -> None:
    """Let the rest pass, and the rows of a trial end like this."""
    clock.wait(rest_of(breaker, clock))
    breaker.claimed(good + bad)
    breaker.heard(good=good, bad=bad)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ([(10, 9), (0, 1)], "10 of the last 20 tries failed"),
        ([(0, 19)], None),
        ([(51, 49)] * 50, None),
        ([(0, 19), (1, 0)], None),
    ],
    ids=["half of twenty", "too few", "less than half", "a success"],
)
def test_it_trips_when_enough_tries_fail(
    breaker: CircuitBreaker, clock: Clock, told: list[tuple[int, int]], reason: str | None
) -> None:
    for good, bad in told:
        breaker.heard(good=good, bad=bad)
    hold = breaker.hold()
    assert (hold and hold.reason) == reason
    assert rest_of(breaker, clock) == (30 if reason else 0)


def test_after_the_rest_a_few_rows_decide(breaker: CircuitBreaker, clock: Clock) -> None:
    """Results of older claims do not count; a trial whose rows are lost is made again."""
    breaker.heard(bad=20)
    clock.wait(10)
    breaker.heard(good=5, bad=50)
    assert rest_of(breaker, clock) == 20
    clock.wait(20)
    assert (breaker.hold(), breaker.room()) == (None, 3)
    breaker.claimed(3)
    assert breaker.hold() is not None
    clock.wait(60)
    assert (breaker.hold(), breaker.room()) == (None, 3)
    try_again(breaker, clock, good=1)
    assert (breaker.hold(), breaker.room()) == (None, None)


def test_it_rests_longer_each_time_up_to_a_limit(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.heard(bad=20)
    rests = []
    for _ in range(6):
        rests.append(rest_of(breaker, clock))
        try_again(breaker, clock, bad=3)
    assert rests == [30, 60, 120, 240, 300, 300]
