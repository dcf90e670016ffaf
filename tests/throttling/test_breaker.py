"""The circuit breaker's arithmetic, by a clock that the test turns."""

import threading
from datetime import timedelta

import pytest

from django_taskclaim.throttling.breaker import LONGEST_REST, PARTS, TRIAL, CircuitBreaker, Rule

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


def rests_for(breaker: CircuitBreaker, clock: Clock) -> float | None:
    hold = breaker.hold()
    return None if hold is None else hold.until - clock.now


def try_again(breaker: CircuitBreaker, clock: Clock, *, good: int = 0, bad: int = 0) -> None:
    """Let the rest pass, and the rows of a trial end like this."""
    clock.wait(rests_for(breaker, clock) or 0)
    breaker.claimed(good + bad)
    breaker.heard(good=good, bad=bad)


def test_half_of_twenty_failures_trip_it(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.heard(good=10, bad=9)
    assert breaker.hold() is None
    assert breaker.room() is None
    breaker.heard(bad=1)
    hold = breaker.hold()
    assert hold is not None
    assert hold.reason == "10 of the last 20 tries failed"
    assert hold.gives_back
    assert rests_for(breaker, clock) == 30


def test_few_outcomes_say_nothing(breaker: CircuitBreaker) -> None:
    breaker.heard(bad=19)
    assert breaker.hold() is None
    breaker.heard(bad=1)
    assert breaker.hold() is not None


def test_a_smaller_rate_does_not_trip_it(breaker: CircuitBreaker) -> None:
    for _ in range(50):
        breaker.heard(good=51, bad=49)
    assert breaker.hold() is None


def test_a_success_never_trips_it(breaker: CircuitBreaker) -> None:
    breaker.heard(bad=19)
    breaker.heard(good=1)
    assert breaker.hold() is None


def test_old_outcomes_are_forgotten(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.heard(bad=15)
    clock.wait(61)
    breaker.heard(bad=15)
    assert breaker.hold() is None
    clock.wait(50)
    breaker.heard(bad=5)
    assert breaker.hold() is not None


def test_memory_does_not_grow_with_the_rows(breaker: CircuitBreaker, clock: Clock) -> None:
    for _ in range(10_000):
        breaker.heard(good=1)
        clock.wait(0.01)
    assert len(breaker._parts) <= PARTS + 1


def test_after_the_rest_a_few_rows_are_let_through(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.heard(bad=20)
    clock.wait(29)
    assert breaker.hold() is not None
    clock.wait(1)
    assert breaker.hold() is None
    assert breaker.room() == TRIAL
    # A claim that finds nothing leaves the trial to the next one.
    breaker.claimed(0)
    assert breaker.hold() is None
    breaker.claimed(TRIAL)
    hold = breaker.hold()
    assert hold is not None
    assert hold.reason == f"waiting for what becomes of {TRIAL} rows"
    assert not hold.gives_back


def test_a_success_of_the_trial_closes_it(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.heard(bad=20)
    clock.wait(30)
    breaker.claimed(TRIAL)
    breaker.heard(bad=TRIAL - 1)
    assert breaker.hold() is not None
    breaker.heard(good=1)
    assert breaker.hold() is None
    assert breaker.room() is None
    # And it counts from nothing.
    breaker.heard(bad=19)
    assert breaker.hold() is None


def test_late_outcomes_neither_close_nor_prolong_it(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.heard(bad=20)
    clock.wait(10)
    breaker.heard(good=5, bad=50)
    assert rests_for(breaker, clock) == 20
    clock.wait(20)
    breaker.heard(good=5)
    assert breaker.room() == TRIAL


def test_it_rests_longer_each_time_up_to_a_limit(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.heard(bad=20)
    rests = []
    for _ in range(7):
        rests.append(rests_for(breaker, clock))
        try_again(breaker, clock, bad=TRIAL)
    assert rests == [30, 60, 120, 240, 300, 300, 300]
    assert rests[-1] == 30 * LONGEST_REST


def test_a_success_alone_does_not_shorten_the_next_rest(
    breaker: CircuitBreaker, clock: Clock
) -> None:
    """One lucky row in between must not have it knock every 30 s for hours."""
    breaker.heard(bad=20)
    try_again(breaker, clock, good=1)
    breaker.heard(bad=20)
    assert rests_for(breaker, clock) == 60
    try_again(breaker, clock, good=1)
    clock.wait(61)
    breaker.heard(bad=20)
    assert rests_for(breaker, clock) == 30


def test_a_trial_whose_rows_are_lost_is_made_again(breaker: CircuitBreaker, clock: Clock) -> None:
    breaker.heard(bad=20)
    clock.wait(30)
    breaker.claimed(TRIAL)
    clock.wait(60)
    assert breaker.hold() is None
    assert breaker.room() == TRIAL
    try_again(breaker, clock, good=1)
    assert breaker.room() is None


def test_threads_may_tell_it_at_once() -> None:
    breaker = CircuitBreaker(Rule(rate=1.0, outcomes=10**9, within=RULE.within, rest=RULE.rest))
    line = threading.Barrier(8)

    def tell() -> None:
        line.wait()
        for _ in range(2000):
            breaker.heard(good=1, bad=1)

    threads = [threading.Thread(target=tell) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(part.good for part in breaker._parts) == 16_000
    assert sum(part.bad for part in breaker._parts) == 16_000


def test_the_settings_may_name_some_keys(settings) -> None:  # type: ignore[no-untyped-def]
    settings.TASKCLAIM = {"BREAKER": {"rate": 0.9, "rest": timedelta(minutes=1)}}
    rule = Rule.configured()
    assert rule == Rule(
        rate=0.9, outcomes=20, within=timedelta(seconds=60), rest=timedelta(minutes=1)
    )
    settings.TASKCLAIM = {}
    assert Rule.configured() is None
