"""Every transition of a row, and exactly what each leaves in the claim columns."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.fields import NEVER_WAITED
from tests.factories import make, make_claimed
from tests.querysets.late_writes import claimed
from tests.querysets.support import Rule, clock, expire, facts, has, keys, lapse, names, set_raw
from tests.testapp.models import Child, ClaimOnly, CompositeKey, Photo, PrefixedOwnStatus

pytestmark = pytest.mark.django_db
#: Models whose claim columns differ: all of them, the least, on another table, under other names.
MODELS = pytest.mark.parametrize("model", [Photo, ClaimOnly, Child, PrefixedOwnStatus])


def assert_nobody_holds(row: Any) -> None:
    now = facts(row)
    assert (now.claimed_by, now.claimed_at, now.expires_at) == (None, None, None)


def assert_waits(row: Any, least: int, most: int) -> None:
    if has(type(row), "not_before"):
        wait = facts(row).not_before - timezone.now()
        assert timedelta(seconds=least) < wait <= timedelta(seconds=most)


def test_a_claim_writes_holder_and_lease_and_a_completion_ends_the_lease(shape: Any) -> None:
    (row,) = make(shape)
    assert (facts(row).status, facts(row).iteration) == ("open", 0)
    assert_nobody_holds(row)
    (row,) = shape.objects.claim_batch(1, lease=90)
    now, token = facts(row), row.claim.token
    assert (now.status, now.claimed_by, now.iteration) == ("processing", *token)
    assert (now.expires_at - now.claimed_at, token.iteration) == (timedelta(seconds=90), 0)
    assert {role: getattr(row, name) for role, name in names(shape).items()} == vars(now)
    assert shape.objects.complete([row]) == 1
    now = facts(row)
    assert (now.status, now.claimed_by, now.iteration) == ("complete", *token)
    assert (now.expires_at, getattr(now, "attempts", 0)) == (None, 0)
    if has(shape, "completed_at"):
        assert abs(now.completed_at - timezone.now()) < timedelta(minutes=2)
    assert shape.objects.reset() == 0
    assert shape.objects.claim_batch(1) == []


@MODELS
def test_a_release_opens_the_row_again_uncounted(model: Any) -> None:
    row = claimed(model)
    assert model.objects.release([row]) == 1
    now = facts(row)
    assert (now.status, now.iteration, getattr(now, "attempts", 0)) == ("open", 1, 0)
    assert getattr(now, "not_before", NEVER_WAITED) == NEVER_WAITED
    assert_nobody_holds(row)
    (row,) = model.objects.claim_batch(1)
    row.claim.release(delay=3600)
    assert (facts(row).status, getattr(facts(row), "attempts", 0)) == ("open", 0)
    assert_waits(row, 3400, 3601)
    assert len(model.objects.claim_batch(1)) == (not has(model, "not_before"))


@MODELS
def test_a_failure_puts_the_row_back_to_wait_until_its_tries_are_used_up(
    model: Any, rule: Rule
) -> None:
    """One that has failed keeps its holder."""
    rule(model, max_attempts=2, backoff=lambda failures: 1000 * failures)
    row = claimed(model)
    assert model.objects.fail([row], ValueError("no such picture")) == 1
    now = facts(row)
    assert (now.status, now.iteration) == ("open", 1)
    assert_nobody_holds(row)
    assert_waits(row, 800, 1001)
    if has(model, "attempts"):
        expected = (1, "ValueError", "no such picture")
        assert (now.attempts, now.error_class, now.last_error) == expected
        set_raw(row, "not_before", clock("-1 HOUR"))
    (row,) = model.objects.claim_batch(1)
    token = row.claim.token
    row.claim.fail("again")
    now = facts(row)
    assert (now.status, now.claimed_by, now.iteration) == ("failed", *token)
    assert (now.expires_at, getattr(now, "attempts", 2)) == (None, 2)
    assert getattr(now, "last_error", "again") == "again"


@pytest.mark.promise(4)
@MODELS
def test_only_a_reset_that_names_it_opens_a_row_again(model: Any) -> None:
    failed, complete, running = make_claimed(model, 3)
    if has(model, "attempts"):
        set_raw(complete, "last_error", "'boom'")
        set_raw(complete, "not_before", clock("-1 HOUR"))
    failed.claim.fail("boom", retry=False)
    complete.claim.complete()
    for row, named in ((failed, {}), (complete, {"complete": True}), (running, {"running": True})):
        assert model.objects.reset(**named) == 1
        now = facts(row)
        assert (now.status, now.iteration) == ("open", 1)
        assert_nobody_holds(row)
        if has(model, "attempts"):
            assert (now.attempts, now.last_error, now.error_class) == (0, "", "")
            assert (now.not_before, now.completed_at) == (NEVER_WAITED, None)
        with pytest.raises(ClaimLost):
            row.claim.complete()


@pytest.mark.parametrize("model", [Photo, Child, CompositeKey])
def test_a_verb_over_a_queryset_keeps_to_its_filter(model: Any) -> None:
    make(model, 4, note=lambda i: "mine" if i % 2 else "yours")
    yours = model._base_manager.filter(note="yours")
    mine = model.objects.filter(note="mine")
    lapse(model.objects.claim_batch(4))
    for verb in ("release_expired", "pause_rows", "resume_rows"):
        before = [facts(row) for row in yours]
        assert getattr(mine, verb)() == 2, verb
        assert [facts(row) for row in yours] == before, verb
        if verb == "pause_rows":
            assert mine.claim_batch(2) == []
    assert len(mine.claim_batch(4)) == 2
    assert mine.reset(running=True) == 2
    assert [facts(row) for row in yours] == before


# Expiry


@pytest.mark.promise(1)
@MODELS
def test_an_expired_row_of_a_worker_goes_back_charged_and_a_live_one_stays(model: Any) -> None:
    """Until the reaper acts the token stands, for ``renew`` as for every verb."""
    row, live, *late = make_claimed(model, 5)
    assert model.objects.release_expired() == 0
    lapse(late)
    assert model.objects.renew(late[:1]) == 1
    late[1].claim.complete()
    late[2].claim.fail("late, but first")
    lapse(row)
    assert keys(model._default_manager.expired()) == [row.pk]
    assert model.objects.release_expired() == 1
    now = facts(row)
    assert (now.status, now.iteration, getattr(now, "attempts", 1)) == ("open", 1, 1)
    assert getattr(now, "not_before", NEVER_WAITED) == NEVER_WAITED
    assert_nobody_holds(row)
    set_raw(live, "expires_at", "NULL")
    assert model.objects.release_expired() == 1


@pytest.mark.promise(10)
def test_a_row_is_failed_only_by_the_expiry_of_a_claim_that_it_had_alone(rule: Rule) -> None:
    """The last try under a shared claim goes back uncharged, and the row is then claimed alone."""
    rule(Photo, max_attempts=1)
    make(Photo, 4)
    quarantined = Photo.objects.claim_batch(2)
    lapse(quarantined)
    assert Photo.objects.release_expired() == 2
    assert {(facts(row).status, facts(row).attempts) for row in quarantined} == {("open", 0)}
    batches = [rows for _ in range(4) if (rows := Photo.objects.claim_batch(10))]
    assert sorted(len(batch) for batch in batches) == [1, 1, 2]
    alone = [row for batch in batches if len(batch) == 1 for row in batch]
    assert set(alone) == set(quarantined)
    expire(alone[0])
    now = facts(alone[0])
    assert (now.status, now.attempts, now.claimed_by) == ("failed", 1, alone[0].claimed_by)
    assert now.error_class
    assert now.last_error


@pytest.mark.parametrize("model", [Photo, ClaimOnly])
def test_an_expired_row_of_a_person_is_never_charged(model: Any, rule: Rule) -> None:
    rule(model, max_attempts=1)
    row = claimed(model, claimed_by="user:17")
    for _ in range(2):
        expire(row)
        assert (facts(row).status, getattr(facts(row), "attempts", 0)) == ("open", 0)
        assert getattr(facts(row), "not_before", NEVER_WAITED) == NEVER_WAITED
        model.objects.claim_batch(1, claimed_by="user:17")


# Tokens and counts


@pytest.mark.promise(1, 3, 4)
def test_iteration_never_decreases_and_no_token_is_issued_twice(shape: Any, rule: Rule) -> None:
    """One holder, one row, every way back to open: each claim has a token of its own."""
    rule(shape, max_attempts=99, backoff=lambda failures: 0)
    (row,) = make(shape)
    objects = shape.objects
    ways_back: list[Callable[[Any], Any]] = [
        lambda row: row.claim.release(),
        lambda row: row.claim.fail("again"),
        lambda row: (lapse(row), objects.release_expired()),
        lambda row: objects.reset(running=True),
        lambda row: (row.claim.complete(), objects.reset(complete=True)),
        lambda row: (row.claim.fail("for good", retry=False), objects.reset()),
        lambda row: (row.claim.release(), objects.pause_rows(), objects.resume_rows()),
        lambda row: (row.claim.hand_over("user:2"), objects.reset(running=True)),
        lambda row: (objects.take_over(by="user:2", reason="ill"), objects.reset(running=True)),
    ]
    tokens, iterations = [], [facts(row).iteration]
    for way_back in ways_back:
        (held,) = objects.claim_batch(1, claimed_by="user:1")
        tokens.append(held.claim.token)
        way_back(held)
        assert facts(row).status == "open"
        iterations.append(facts(row).iteration)
    assert iterations == sorted(set(iterations))
    assert len(set(tokens)) == len(tokens)


@MODELS
def test_filters_and_progress_tell_the_states_of_the_rows(model: Any) -> None:
    make(model, 6)
    mine, theirs, bad, later, done = [
        model.objects.claim_batch(1, claimed_by=f"user:{number}")[0] for number in range(5)
    ]
    bad.claim.fail("bad", retry=False)
    done.claim.complete()
    later.claim.release(delay=600)
    lapse(theirs)
    manager = model.objects
    assert keys(manager.held_by("user:0")) == [mine.pk]
    assert keys(manager.expired()) == [theirs.pk]
    assert keys(manager.failed()) == [bad.pk]
    assert manager.open().count() == 2
    assert manager.due().count() == (1 if has(model, "not_before") else 2)
    assert manager.held_by("user:2").count() == 0
    manager.filter(pk=later.pk).pause_rows()
    found = manager.progress()
    assert (found.open, found.processing, found.complete) == (1, 2, 1)
    assert (found.failed, found.paused, found.total) == (1, 1, 6)
