"""What an error means for its row: the nearest class that the policy names decides, in ``fail()`` as in workers."""

import logging
import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from django_taskclaim import Retry, policy
from django_taskclaim.conf import LONGEST
from django_taskclaim.exceptions import ClaimLost, Permanent, RetryLater
from django_taskclaim.fields import NEVER_WAITED
from django_taskclaim.policy import Policy, policy_for
from django_taskclaim.signals import rows_failed, rows_released
from tests.behaviour.support import DEADLINE, elsewhere, facts, has, lose, set_raw
from tests.factories import make
from tests.testapp.models import Child, ClaimOnly, Photo, PhotoProxy

pytestmark = pytest.mark.django_db

Rule = Callable[..., None]
Lapse = Callable[[Any], None]


class NotFound(LookupError):
    pass


class RateLimited(Exception):
    pass


class Gone(NotFound):
    pass


ERRORS = {
    LookupError: Permanent,
    NotFound: Retry(max_attempts=2, backoff=lambda failures: 500),
    RateLimited: Retry(max_attempts=20, backoff=lambda failures: 30 * failures),
    OSError: RetryLater(60),
}


def claimed(model: Any = Photo, **options: Any) -> Any:
    make(model)
    (row,) = model.objects.claim_batch(1, **options)
    return row


def wait_of(row: Any) -> float:
    """Return for how many seconds from now the row waits."""
    return float((facts(row).not_before - timezone.now()).total_seconds())


@pytest.fixture
def heard(transactional_db: None) -> Iterator[list[tuple[str, int]]]:
    told: list[tuple[str, int]] = []

    def failed(rows: Any, **_: Any) -> None:
        told.append(("failed", len(rows)))

    def released(rows: Any, **_: Any) -> None:
        told.append(("released", len(rows)))

    rows_failed.connect(failed)
    rows_released.connect(released)
    yield told
    rows_failed.disconnect(failed)
    rows_released.disconnect(released)


# The nearest class decides


@pytest.mark.parametrize("model", [Photo, PhotoProxy, Child, ClaimOnly])
def test_permanent_fails_the_row_at_its_first_try(model: Any, rule: Rule) -> None:
    rule(model, errors=ERRORS)
    row = claimed(model)
    row.claim.fail(KeyError("x"))
    now = facts(row)
    assert now.status == "failed"
    if has(model, "attempts"):
        assert (now.attempts, now.error_class) == (1, "KeyError")


def test_a_subclass_that_is_named_itself_is_judged_by_its_own_rule(rule: Rule) -> None:
    rule(Photo, errors=ERRORS)
    row = claimed()
    row.fail(Gone("x"))
    assert facts(row).status == "open"
    assert 470 < wait_of(row) <= 501


def test_tries_of_their_own_count_every_failure_of_the_row(rule: Rule) -> None:
    """Two tries for this error, but the row has failed with another one before."""
    rule(Photo, errors=ERRORS, backoff=lambda failures: 0)
    row = claimed()
    row.fail(ValueError("something else"))
    (row,) = Photo.objects.claim_batch(1)
    row.fail(NotFound("x"))
    assert (facts(row).status, facts(row).attempts) == ("failed", 2)


def test_more_tries_than_the_model_allows_others(rule: Rule) -> None:
    rule(Photo, errors={RateLimited: Retry(max_attempts=3, backoff=lambda n: 0)}, max_attempts=1)
    row = claimed()
    states = []
    for _ in range(3):
        row.fail(RateLimited())
        states.append(facts(row).status)
        row = next(iter(Photo.objects.claim_batch(1)), row)
    assert states == ["open", "open", "failed"]


def test_what_a_rule_leaves_open_is_as_for_any_error(rule: Rule) -> None:
    rule(Photo, errors={RateLimited: Retry()}, max_attempts=2, backoff=lambda failures: 300)
    row = claimed()
    row.fail(RateLimited())
    assert 270 < wait_of(row) <= 301
    assert policy_for(Photo).judge(RateLimited(), 2).final


def test_an_error_that_is_not_named_and_a_text_follow_the_policy(rule: Rule) -> None:
    rule(Photo, errors=ERRORS, max_attempts=1)
    for error in (ValueError("x"), "a text", ""):
        row = claimed()
        row.fail(error)
        assert facts(row).status == "failed"


def test_what_is_said_of_every_exception_does_not_undo_permanent_and_retry_later(
    rule: Rule,
) -> None:
    rule(Photo, errors={Exception: Retry(max_attempts=99)})
    permanent, later = claimed(), claimed()
    permanent.fail(Permanent("no"))
    later.fail(RetryLater(5))
    assert facts(permanent).status == "failed"
    assert (facts(later).status, facts(later).attempts) == ("open", 0)


def test_a_kind_of_permanent_may_be_given_tries(rule: Rule) -> None:
    kind = type("NotYet", (Permanent,), {})
    rule(Photo, errors={kind: Retry()})
    row = claimed()
    row.fail(kind("x"))
    assert facts(row).status == "open"


# Put back uncounted


@pytest.mark.parametrize("error", [RetryLater(60, "busy"), TimeoutError("named by the policy")])
@pytest.mark.parametrize("model", [Photo, Child])
def test_retry_later_puts_the_row_back_uncounted(
    model: Any, error: Exception, rule: Rule, heard: list[tuple[str, int]]
) -> None:
    rule(model, errors=ERRORS)
    row = claimed(model)
    row.claim.fail(error)
    now = facts(row)
    assert (now.status, now.attempts, now.iteration) == ("open", 0, 1)
    assert (now.claimed_by, now.last_error, now.error_class) == (None, "", "")
    assert 30 < wait_of(row) <= 61
    assert heard == [("released", 1)]
    assert (row.status, row.attempts) == ("open", 0)


def test_retry_later_without_a_waiting_time_of_its_model(rule: Rule) -> None:
    row = claimed(ClaimOnly)
    row.fail(RetryLater(60))
    assert (facts(row).status, facts(row).iteration) == ("open", 1)


def test_retry_later_does_not_overrule_a_caller_who_wants_no_retry() -> None:
    row = claimed()
    row.fail(RetryLater(60), retry=False)
    assert (facts(row).status, facts(row).attempts) == ("failed", 1)


def test_retry_later_of_a_lost_row_is_a_loss() -> None:
    rows = [claimed(), claimed()]
    lose(rows[0])
    with pytest.raises(ClaimLost) as lost:
        Photo.objects.fail(rows, RetryLater(60))
    assert (lost.value.lost, lost.value.written) == (rows[:1], rows[1:])
    assert facts(rows[1]).status == "open"


def test_the_class_alone_is_enough() -> None:
    permanent, later = claimed(), claimed()
    permanent.fail(Permanent)
    later.fail(RetryLater)
    assert facts(permanent).status == "failed"
    assert (facts(later).status, facts(later).attempts) == ("open", 0)


def test_rows_of_one_call_are_judged_each_by_its_own_model(
    rule: Rule, heard: list[tuple[str, int]]
) -> None:
    rule(Photo, errors={ValueError: RetryLater(60)})
    rule(PhotoProxy, errors={ValueError: Permanent})
    rows = [claimed(), claimed(PhotoProxy)]
    assert Photo.objects.fail(rows, ValueError("x")) == 2
    assert [facts(row).status for row in rows] == ["open", "failed"]
    assert heard == [("failed", 1), ("released", 1)]


# Delays and back-offs that make no sense


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        (-5, 0),
        (-math.inf, 0),
        (timedelta(days=-1), 0),
        (1e300, LONGEST.total_seconds()),
        (10**400, LONGEST.total_seconds()),
        (math.inf, LONGEST.total_seconds()),
        (timedelta.max, LONGEST.total_seconds()),
        (0.5, 0.5),
    ],
)
def test_a_delay_out_of_reach_is_brought_within_it(delay: Any, seconds: float) -> None:
    error = RetryLater(delay)
    assert error.delay.total_seconds() == seconds
    row = claimed()
    row.fail(error)
    assert facts(row).status == "open"
    assert abs(wait_of(row) - seconds) < 30
    other = claimed()
    other.release(delay=delay)
    assert facts(other).status == "open"


@pytest.mark.parametrize("delay", [math.nan, "soon", None, True])
def test_a_delay_that_is_no_duration_is_refused_in_a_sentence(delay: Any) -> None:
    with pytest.raises(ValueError, match=r"^delay must be seconds or a timedelta, not .*\.$"):
        RetryLater(delay)


def test_a_retry_later_that_never_set_its_delay_is_put_back_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Careless(RetryLater):
        def __init__(self) -> None:
            """Leave everything out."""

    row = claimed()
    before = timezone.now()
    row.fail(Careless())
    assert (facts(row).status, facts(row).attempts) == ("open", 0)
    assert facts(row).not_before - before > timedelta(seconds=0.9)
    assert wait_of(row) <= 1.1
    assert [record.event for record in caplog.records] == ["trouble"]  # type: ignore[attr-defined]


def raises(failures: int) -> float:
    raise RuntimeError("the back-off is broken")


@pytest.mark.parametrize("where", ["policy", "rule"])
@pytest.mark.parametrize(
    "backoff",
    [
        lambda n: None,
        lambda n: -1,
        lambda n: math.nan,
        lambda n: math.inf,
        lambda n: "soon",
        lambda n: True,
        lambda n: timedelta(seconds=-1),
        lambda: 5,
        raises,
    ],
)
def test_a_back_off_that_makes_no_sense_loses_no_failure(
    backoff: Any, where: str, rule: Rule, caplog: pytest.LogCaptureFixture
) -> None:
    """The row waits as the settings say, and the log says why."""
    rule(
        Photo,
        **(
            {"backoff": backoff}
            if where == "policy"
            else {"errors": {OSError: Retry(backoff=backoff)}}
        ),
    )
    row = claimed()
    row.fail(OSError("x"))
    now = facts(row)
    assert (now.status, now.attempts, now.error_class) == ("open", 1, "OSError")
    assert wait_of(row) <= 1.1
    (record,) = caplog.records
    assert (record.levelno, record.event) == (logging.WARNING, "trouble")  # type: ignore[attr-defined]
    assert "back-off" in record.getMessage()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_during_a_back_off_passes_on_in_the_main_thread_alone(
    kind: type[BaseException], rule: Rule
) -> None:
    """A worker judges in other threads, and must not end because of a function of the user's."""

    def interrupted(failures: int) -> float:
        raise kind

    rule(Photo, backoff=interrupted)
    row = claimed()
    with pytest.raises(kind):
        row.fail("x")
    assert (facts(row).status, facts(row).attempts, row.claim.check()) == ("processing", 0, True)
    verdict = policy_for(Photo).judge("x", 1)
    assert elsewhere(verdict.wait).result(DEADLINE) <= timedelta(seconds=1)


def test_the_last_failure_asks_no_back_off(rule: Rule, caplog: pytest.LogCaptureFixture) -> None:
    rule(Photo, backoff=raises, max_attempts=1)
    row = claimed()
    row.fail("x")
    assert facts(row).status == "failed"
    assert caplog.records == []


def test_a_back_off_of_ages_is_brought_within_the_calendar(rule: Rule) -> None:
    rule(Photo, backoff=lambda failures: 1e15)
    row = claimed()
    row.fail("x")
    assert facts(row).not_before > NEVER_WAITED
    assert wait_of(row) > 0.99 * LONGEST.total_seconds()


def test_the_usual_wait_doubles_with_full_jitter_up_to_its_bound(settings: Any) -> None:
    settings.TASKCLAIM = {"BACKOFF_FIRST": 2, "BACKOFF_MAX": 60}
    waits = [
        [Policy().wait_after(failures).total_seconds() for _ in range(300)]
        for failures in (1, 2, 5, 9, 5000)
    ]
    assert [max(one) <= bound for one, bound in zip(waits, (2, 4, 32, 60, 60), strict=True)]
    assert [min(one) < bound / 10 for one, bound in zip(waits, (2, 4, 32, 60, 60), strict=True)]
    assert all(max(one) > bound * 0.9 for one, bound in zip(waits, (2, 4, 32, 60, 60), strict=True))


# What is refused


@pytest.mark.parametrize(
    ("make_it", "error"),
    [
        (lambda: Retry(max_attempts=0), ValueError),
        (lambda: Retry(max_attempts=True), ValueError),
        (lambda: Retry(max_attempts=2.5), ValueError),  # type: ignore[arg-type]
        (lambda: Retry(backoff=5), TypeError),  # type: ignore[arg-type]
        (lambda: Retry(3), TypeError),  # type: ignore[misc]
        (lambda: Policy(own_errors=[ValueError]), TypeError),  # type: ignore[arg-type]
        (lambda: Policy(own_errors={"ValueError": Permanent}), TypeError),  # type: ignore[dict-item]
        (lambda: Policy(own_errors={int: Permanent}), TypeError),  # type: ignore[dict-item]
        (lambda: Policy(own_errors={ValueError: 5}), TypeError),  # type: ignore[dict-item]
        (lambda: Policy(own_errors={ValueError: RetryLater}), TypeError),  # type: ignore[dict-item]
        (lambda: Policy(own_errors={ValueError("x"): Permanent}), TypeError),  # type: ignore[dict-item]
    ],
)
def test_rules_that_make_no_sense_are_refused_in_a_sentence(
    make_it: Callable[[], Any], error: type[Exception]
) -> None:
    with pytest.raises(error) as refused:
        make_it()
    assert "\n" not in str(refused.value)


def test_a_policy_keeps_the_rules_that_it_was_given() -> None:
    rules: dict[type[BaseException], Any] = {ValueError: Permanent}
    policy = Policy(own_errors=rules)
    rules.clear()
    assert policy.judge(ValueError(), 1).final
    assert hash(policy) == hash(Policy())


# Tries that ended by expiry


def expire(row: Any, lapse: Lapse) -> None:
    lapse(row)
    assert type(row).objects.release_expired() == 1


@pytest.mark.parametrize("model", [Photo, Child])
def test_tries_that_ended_by_expiry_and_by_failure_are_counted_together(
    model: Any, rule: Rule, let_lease_lapse: Lapse
) -> None:
    rule(model, max_attempts=3, backoff=lambda failures: 0)
    row = claimed(model)
    expire(row, let_lease_lapse)
    (row,) = model.objects.claim_batch(1)
    row.claim.fail("x")
    assert (facts(row).status, facts(row).attempts) == ("open", 2)
    (row,) = model.objects.claim_batch(1)
    row.claim.fail("y")
    assert (facts(row).status, facts(row).attempts) == ("failed", 3)


def test_a_row_that_only_ever_expires_ends_in_failed(rule: Rule, let_lease_lapse: Lapse) -> None:
    """The last one under a claim of its own, so one more than the tries it has."""
    rule(Photo, max_attempts=3)
    row = claimed()
    seen = []
    for _ in range(4):
        expire(row, let_lease_lapse)
        seen.append((facts(row).status, facts(row).attempts))
        row = next(iter(Photo.objects.claim_batch(1)), row)
    assert seen == [("open", 1), ("open", 2), ("open", 2), ("failed", 3)]
    assert facts(row).error_class == "LeaseExpired"


def test_put_back_uncounted_between_expiries_costs_no_try(
    rule: Rule, let_lease_lapse: Lapse
) -> None:
    rule(Photo, max_attempts=2)
    row = claimed()
    expire(row, let_lease_lapse)
    for _ in range(5):
        (row,) = Photo.objects.claim_batch(1)
        row.fail(RetryLater(0))
    assert (facts(row).status, facts(row).attempts) == ("open", 1)


def test_without_the_retry_columns_every_way_back_counts_as_a_try(
    rule: Rule, let_lease_lapse: Lapse
) -> None:
    """``iteration`` stands in for ``attempts``: an expiry, a failure, and being put back uncounted."""
    rule(ClaimOnly, max_attempts=4)
    row = claimed(ClaimOnly)
    ways: list[Callable[[Any], Any]] = [
        lambda row: expire(row, let_lease_lapse),
        lambda row: row.claim.fail("x"),
        lambda row: row.claim.fail(RetryLater(5)),
        lambda row: expire(row, let_lease_lapse),
    ]
    seen = []
    for way in ways:
        way(row)
        seen.append((facts(row).status, facts(row).iteration))
        row = next(iter(ClaimOnly.objects.claim_batch(1)), row)
    assert seen == [("open", 1), ("open", 2), ("open", 3), ("failed", 3)]


@pytest.mark.parametrize("end", ["fail", "expire"])
def test_without_the_retry_columns_one_try_is_left_after_a_reset(
    end: str, rule: Rule, let_lease_lapse: Lapse
) -> None:
    rule(ClaimOnly, max_attempts=3)
    row = claimed(ClaimOnly)
    for _ in range(3):
        expire(row, let_lease_lapse)
        row = next(iter(ClaimOnly.objects.claim_batch(1)), row)
    assert facts(row).status == "failed"
    assert ClaimOnly.objects.reset() == 1
    (row,) = ClaimOnly.objects.claim_batch(1)
    if end == "fail":
        row.claim.fail("again")
    else:
        expire(row, let_lease_lapse)
    assert facts(row).status == "failed"


def test_where_the_rules_are_not_known_nobody_follows_others(
    let_lease_lapse: Lapse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler could not be registered: a row may have more tries than usual, and may not be there when done."""
    row = claimed(Photo)
    set_raw(row, "attempts", "7")
    monkeypatch.setattr(policy, "faults", [(Photo, "measure is not registered")])
    for verb in (row.claim.complete, lambda: row.claim.fail("broken")):
        with pytest.raises(ImproperlyConfigured, match="measure is not registered"):
            verb()
    let_lease_lapse(row)
    # The reaper continues: other models have expired rows, too.
    for attempts in (8, 9):
        assert Photo.objects.release_expired() == 1
        assert (facts(row).status, facts(row).attempts) == ("open", attempts)
        monkeypatch.setattr(policy, "faults", [])
        (row,) = Photo.objects.claim_batch(1)
        monkeypatch.setattr(policy, "faults", [(Photo, "measure is not registered")])
        let_lease_lapse(row)
