"""What an error means for its row: the nearest class that the policy names decides."""

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_taskclaim.conf import LONGEST
from django_taskclaim.exceptions import ClaimLost, Permanent, RetryLater
from django_taskclaim.handlers import handler
from django_taskclaim.models import Switch
from django_taskclaim.switch import paused_by, resume
from django_taskclaim.testing import run_due
from tests.factories import make, make_claimed
from tests.querysets.late_writes import claimed
from tests.querysets.support import Rule, clock, execute, expire, facts, lose, table_of
from tests.testapp.models import Child, ClaimOnly, Parent, Photo, PhotoProxy, UuidKey

pytestmark = pytest.mark.django_db


class NotFound(LookupError):
    pass


class Gone(NotFound):
    pass


class Busy(Exception):
    pass


class NotYet(Permanent):
    pass


ERRORS = {
    LookupError: Permanent,
    NotFound: RetryLater(500),
    Busy: None,
    OSError: RetryLater(60),
    NotYet: None,
    Exception: RetryLater(1),
}


def wait_of(row: Any) -> float:
    """Return for how many seconds from now the row waits."""
    return max(float((facts(row).not_before - timezone.now()).total_seconds()), 0)


@pytest.mark.parametrize(
    ("error", "status", "attempts", "wait"),
    [
        (KeyError("a kind of LookupError"), "failed", 1, 0),
        (Gone("a kind of NotFound, which is nearer"), "open", 0, 500),
        (Busy("the rule leaves the wait to the policy"), "open", 1, 300),
        (TimeoutError("a kind of OSError"), "open", 0, 60),
        (NotYet("named, although it is a kind of Permanent"), "open", 1, 300),
        (Permanent("not undone by Exception"), "failed", 1, 0),
        (RetryLater, "open", 0, 1),
        ("a text", "open", 1, 300),
    ],
)
def test_the_nearest_class_that_is_named_decides(
    error: Any, status: str, attempts: int, wait: float, rule: Rule
) -> None:
    rule(Photo, errors=ERRORS, max_attempts=5, backoff=lambda failures: 300)
    row = claimed(Photo)
    row.fail(error)
    assert (facts(row).status, facts(row).attempts) == (status, attempts)
    # With jitter, it may wait a little less.
    assert 0.8 * wait - 60 < wait_of(row) <= wait + 1


@pytest.mark.promise(3)
def test_retry_later_puts_the_row_back_as_if_it_had_not_been_claimed() -> None:
    """A caller who wants no retry is not overruled, and a lost row is lost."""
    row, other, late = make_claimed(Photo, 3)
    other.fail(RetryLater(60), retry=False)
    assert (facts(other).status, facts(other).attempts) == ("failed", 1)
    lose(late)
    with pytest.raises(ClaimLost) as lost:
        Photo.objects.fail([late, row], RetryLater(60, "busy"))
    assert (lost.value.lost, lost.value.written) == ([late], [row])
    now = facts(row)
    assert (now.status, now.attempts, now.iteration) == ("open", 0, 1)
    assert (now.claimed_by, now.last_error, now.error_class) == (None, "", "")
    assert (row.status, row.attempts) == ("open", 0)


# Delays, back-offs and rules that make no sense


def test_a_delay_out_of_reach_is_brought_within_it() -> None:
    for delay, seconds in ((timedelta(days=-1), 0), (math.inf, LONGEST.total_seconds())):
        row, other = claimed(Photo), claimed(Photo)
        row.fail(RetryLater(delay))
        other.release(delay=delay)
        for one in (row, other):
            assert facts(one).status == "open"
            assert abs(wait_of(one) - seconds) < 90
            one.delete()


def raises(failures: int) -> float:
    raise RuntimeError("the back-off is broken")


@pytest.mark.once
@pytest.mark.parametrize("backoff", [lambda n: math.nan, lambda n: "soon", raises])
def test_a_broken_back_off_loses_no_failure(backoff: Any, rule: Rule, caplog: Any) -> None:
    """The row waits as the settings say, and the log says why."""
    rule(Photo, backoff=backoff)
    row = claimed(Photo)
    row.fail(OSError("x"))
    now = facts(row)
    assert (now.status, now.attempts, now.error_class) == ("open", 1, "OSError")
    assert wait_of(row) <= 1.1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "back-off" in caplog.text


@pytest.mark.once
def test_delays_and_rules_that_make_no_sense_are_refused() -> None:
    for delay in (math.nan, "soon", None, True):
        with pytest.raises(ValueError, match="delay must be seconds or a timedelta"):
            RetryLater(delay)
    wrong: list[Any] = [[ValueError], {"ValueError": Permanent}, {ValueError: RetryLater}]
    for errors in wrong:
        with pytest.raises(ValueError, match="errors must"):
            handler(Photo, errors=errors)(lambda photo: None)


# Tries that ended by expiry


def test_expiries_and_failures_are_counted_together_and_other_returns_are_not(rule: Rule) -> None:
    rule(Photo, max_attempts=3, backoff=lambda failures: 0)
    row = claimed(Photo)
    expire(row)
    for give_back in (lambda row: row.fail(RetryLater(0)), lambda row: row.release()):
        (row,) = Photo.objects.claim_batch(1)
        give_back(row)
        assert (facts(row).status, facts(row).attempts) == ("open", 1)
    for status, attempts in (("open", 2), ("failed", 3)):
        (row,) = Photo.objects.claim_batch(1)
        row.fail("x")
        assert (facts(row).status, facts(row).attempts) == (status, attempts)


@pytest.mark.promise(10)
def test_without_the_retry_columns_every_way_back_counts_and_a_reset_leaves_one_try(
    rule: Rule,
) -> None:
    rule(ClaimOnly, max_attempts=4)
    row = claimed(ClaimOnly)
    ways: list[Callable[[Any], Any]] = [
        expire,
        lambda row: row.claim.fail("x"),
        lambda row: row.claim.fail(RetryLater(5)),
        expire,
    ]
    seen = []
    for way in ways:
        way(row)
        seen.append((facts(row).status, facts(row).iteration))
        row = next(iter(ClaimOnly.objects.claim_batch(1)), row)
    assert seen == [("open", 1), ("open", 2), ("open", 3), ("failed", 3)]
    assert ClaimOnly.objects.reset() == 1
    (row,) = ClaimOnly.objects.claim_batch(1)
    row.claim.fail("x")
    assert facts(row).status == "failed"


# ``RetryLater(everyone=True)``: an upstream asks everybody to wait, and nobody claims rows of the model meanwhile

STOP = RetryLater(3600, "the API said 429", everyone=True)


@pytest.mark.usefixtures("strategy")
def test_everybody_waits_and_goes_on_by_itself() -> None:
    """A stop is no pause, so no resume ends it."""
    row = claimed(Photo)
    row.claim.fail(STOP)
    make(Photo, 2)
    make(UuidKey)
    assert (facts(row).status, facts(row).attempts, facts(row).iteration) == ("open", 0, 1)
    assert paused_by(Photo) is None
    resume(Photo, using="default")
    assert Photo.objects.claim_batch(3) == []
    assert PhotoProxy.objects.claim_batch(3, claimed_by="user:17") == []
    assert len(UuidKey.objects.claim_batch(1)) == 1
    execute(f"UPDATE {table_of(Switch)} SET until = {clock('-1 SECOND')}")
    # The row itself waits for its own moment.
    assert len(Photo.objects.claim_batch(3)) == 2


def test_a_stop_of_a_parent_holds_for_its_children_and_not_the_other_way_round() -> None:
    make(Child, 3)
    claimed(Child).claim.fail(STOP)
    assert Child.objects.claim_batch(1) == []
    (row,) = Parent.objects.claim_batch(1)
    execute(f"UPDATE {table_of(Switch)} SET until = {clock('-1 SECOND')}")
    row.claim.fail(STOP)
    assert Child.objects.claim_batch(1) == []


def test_only_an_error_that_says_everyone_stops_everyone(rule: Callable[..., None]) -> None:
    """Of two stops the longer one counts, a person keeps what it holds, and learns why it gets no more."""
    rule(Photo, errors={ConnectionError: RetryLater(3600, everyone=True)})
    make(Photo, 4)
    mine: dict[str, Any] = {"claimed_by": "user:17", "include_held": True}
    alone, short, long = Photo.objects.claim_batch(3)
    alone.claim.fail(RetryLater(60))
    held = Photo.objects.claim_batch(1, **mine)
    assert len(held) == 1
    make(Photo)
    long.claim.fail(ConnectionRefusedError("come back later"))
    short.claim.fail(RetryLater(1, "short", everyone=True))
    assert "come back later" in str(Photo.objects.why_empty("user:1"))
    assert Photo.objects.claim_batch(3, **mine) == held


@pytest.mark.promise(3)
def test_a_lost_claim_stops_nobody() -> None:
    late = claimed(Photo)
    lose(late)
    with pytest.raises(ClaimLost):
        late.claim.fail(STOP)
    make(Photo)
    assert len(Photo.objects.claim_batch(1)) == 1


@pytest.mark.once
def test_a_worker_stops_everyone_also_beside_a_row_that_waits_alone(monkeypatch: Any) -> None:
    """Results that are alike are written together, and the first row asks for less than the second."""
    _, stop, _ = make(Photo, 3)

    def process(photo: Photo) -> None:
        raise RetryLater(3600, "busy", everyone=photo == stop)

    monkeypatch.setattr(Photo, "process", process, raising=False)
    assert run_due(Photo, limit=2).released == 2
    assert Photo.objects.claim_batch(3) == []
