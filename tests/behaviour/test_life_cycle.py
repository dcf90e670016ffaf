"""Every transition of a row, and exactly what each leaves in the claim columns."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.fields import CRASHED, CRASHED_UNBEGUN, NEVER_WAITED
from django_taskclaim.querysets.claiming import Request, new_holder
from tests.behaviour.support import clock, facts, has, lose, names, set_raw, stored_moment
from tests.factories import make
from tests.testapp.models import ClaimOnly, Photo

pytestmark = pytest.mark.django_db

Lapse = Callable[[Any], None]
Rule = Callable[..., None]


def claimed(model: Any, **options: Any) -> Any:
    """Make one row and claim it."""
    make(model)
    (row,) = model.objects.claim_batch(1, **options)
    return row


def test_rows_that_fail_together_are_written_in_one_transaction(rule: Rule) -> None:
    """Those that are put back and those whose tries are used up: after a crash in between, one call is one answer."""
    rule(Photo, max_attempts=2)
    make(Photo, 2)
    old = Photo.objects.claim_batch(1)
    Photo.objects.fail(old, "first")
    set_raw(old[0], "not_before", clock("-1 HOUR"))
    rows = Photo.objects.claim_batch(2)
    with CaptureQueriesContext(connection) as sent:
        assert Photo.objects.fail(rows, "second") == 2
    assert sorted(facts(row).status for row in rows) == ["failed", "open"]
    assert sum(query["sql"].startswith("SAVEPOINT") for query in sent) == 1


def assert_nobody_holds(row: Any) -> None:
    now = facts(row)
    assert (now.claimed_by, now.claimed_at, now.expires_at) == (None, None, None)


def test_a_new_row_is_open_and_held_by_nobody(shape: Any) -> None:
    (row,) = make(shape)
    assert (facts(row).status, facts(row).iteration) == ("open", 0)
    assert_nobody_holds(row)


def test_claiming_writes_holder_and_lease_and_counts_nothing(shape: Any) -> None:
    row = claimed(shape, lease=90)
    now = facts(row)
    assert now.status == "processing"
    assert now.claimed_by == row.claim.token.holder
    assert now.expires_at - now.claimed_at == timedelta(seconds=90)
    assert now.iteration == row.claim.token.iteration == 0
    assert getattr(now, "attempts", 0) == 0


def test_the_instance_returned_shows_what_is_stored(shape: Any) -> None:
    row = claimed(shape)
    shown = {role: getattr(row, name) for role, name in names(shape).items()}
    assert shown == vars(facts(row))


def test_complete_keeps_holder_and_iteration_and_ends_the_lease(shape: Any) -> None:
    row = claimed(shape)
    token = row.claim.token
    assert shape.objects.complete([row]) == 1
    now = facts(row)
    assert (now.status, now.claimed_by, now.iteration) == ("complete", *token)
    assert now.expires_at is None
    assert getattr(now, "attempts", 0) == 0
    if has(shape, "completed_at"):
        assert abs(now.completed_at - timezone.now()) < timedelta(seconds=30)


def test_release_opens_the_row_again_uncounted_and_in_its_place(shape: Any) -> None:
    row = claimed(shape)
    assert shape.objects.release([row]) == 1
    now = facts(row)
    assert (now.status, now.iteration) == ("open", 1)
    assert getattr(now, "attempts", 0) == 0
    assert getattr(now, "not_before", NEVER_WAITED) == NEVER_WAITED
    assert_nobody_holds(row)


def test_release_with_a_delay_makes_the_row_wait_that_long(shape: Any) -> None:
    row = claimed(shape)
    row.claim.release(delay=300)
    assert facts(row).status == "open"
    assert getattr(facts(row), "attempts", 0) == 0
    if has(shape, "not_before"):
        wait = facts(row).not_before - timezone.now()
        assert timedelta(seconds=270) < wait <= timedelta(seconds=301)
        assert shape.objects.claim_batch(1) == []


def test_fail_with_tries_left_puts_the_row_back_to_wait(shape: Any, rule: Rule) -> None:
    rule(shape, backoff=lambda failures: 100 * failures)
    row = claimed(shape)
    assert shape.objects.fail([row], ValueError("no such picture")) == 1
    now = facts(row)
    assert (now.status, now.iteration) == ("open", 1)
    assert_nobody_holds(row)
    if has(shape, "attempts"):
        assert now.attempts == 1
        assert (now.error_class, now.last_error) == ("ValueError", "no such picture")
        wait = now.not_before - timezone.now()
        assert timedelta(seconds=70) < wait <= timedelta(seconds=101)


def test_fail_without_retry_ends_the_row_and_keeps_its_holder(shape: Any) -> None:
    row = claimed(shape)
    token = row.claim.token
    row.claim.fail("gone for good", retry=False)
    now = facts(row)
    assert (now.status, now.claimed_by, now.iteration) == ("failed", *token)
    assert now.expires_at is None
    assert getattr(now, "attempts", 1) == 1
    assert getattr(now, "last_error", "gone for good") == "gone for good"


def test_a_row_whose_tries_are_used_up_ends_in_failed(shape: Any, rule: Rule) -> None:
    rule(shape, max_attempts=3, backoff=lambda failures: 0)
    row = claimed(shape)
    states = []
    for _ in range(3):
        row.claim.fail("again")
        states.append(facts(row).status)
        row = next(iter(shape.objects.claim_batch(1)), row)
    assert states == ["open", "open", "failed"]
    assert getattr(facts(row), "attempts", 3) == 3
    assert facts(row).iteration == 2


def test_without_attempts_every_putting_back_counts_and_a_reset_leaves_one_try(rule: Rule) -> None:
    rule(ClaimOnly, max_attempts=2, backoff=lambda failures: 0)
    row = claimed(ClaimOnly)
    row.claim.release()
    (row,) = ClaimOnly.objects.claim_batch(1)
    row.claim.fail("second put-back would be the second try")
    assert facts(row).status == "failed"
    assert ClaimOnly.objects.reset() == 1
    (row,) = ClaimOnly.objects.claim_batch(1)
    row.claim.fail("the one try that a reset leaves")
    assert facts(row).status == "failed"


def test_each_row_waits_as_long_as_its_own_failures_say(rule: Rule) -> None:
    rule(Photo, backoff=lambda failures: 1000 * failures - 1000, max_attempts=9)
    veteran = claimed(Photo)
    veteran.claim.fail("first")
    make(Photo)
    rows = Photo.objects.claim_batch(2)
    Photo.objects.fail(rows, "together")
    waits = [facts(row).not_before - timezone.now() for row in rows]
    assert [round(wait.total_seconds(), -3) for wait in sorted(waits)] == [0, 1000]
    assert sorted(facts(row).attempts for row in rows) == [1, 2]


@pytest.mark.parametrize("ended", ["failed", "complete", "processing"])
def test_reset_makes_a_row_as_good_as_new_but_for_its_iteration(shape: Any, ended: str) -> None:
    row = claimed(shape)
    if has(shape, "attempts"):
        set_raw(row, "attempts", "3")
        set_raw(row, "last_error", "'boom'")
        set_raw(row, "error_class", "'Boom'")
        set_raw(row, "not_before", clock("-1 HOUR"))
    if ended == "failed":
        row.claim.fail("boom", retry=False)
    if ended == "complete":
        row.claim.complete()
    named = {"complete": ended == "complete", "running": ended == "processing"}
    assert shape.objects.reset(**named) == 1
    now = facts(row)
    assert (now.status, now.iteration) == ("open", 1)
    assert_nobody_holds(row)
    if has(shape, "attempts"):
        assert (now.attempts, now.last_error, now.error_class) == (0, "", "")
        assert (now.not_before, now.completed_at) == (NEVER_WAITED, None)


def test_reset_leaves_complete_and_running_rows_alone_unless_they_are_named(shape: Any) -> None:
    make(shape, 2)
    done, running = shape.objects.claim_batch(2)
    done.claim.complete()
    assert shape.objects.reset() == 0
    assert shape.objects.reset(complete=True) == 1
    assert (facts(done).status, facts(running).status) == ("open", "processing")


def test_a_reset_takes_a_running_row_from_its_holder(shape: Any) -> None:
    row = claimed(shape)
    assert shape.objects.reset(running=True) == 1
    with pytest.raises(ClaimLost):
        row.claim.complete()
    assert facts(row).status == "open"


def test_pausing_rows_takes_them_out_of_the_queue_and_resuming_puts_them_back(shape: Any) -> None:
    running = claimed(shape)
    waiting, _ = make(shape, 2)
    assert shape.objects.pause_rows() == 2
    assert (facts(waiting).status, facts(waiting).iteration) == ("paused", 0)
    assert_nobody_holds(waiting)
    assert facts(running).status == "processing"
    assert shape.objects.claim_batch(5) == []
    assert shape.objects.resume_rows() == 2
    assert (facts(waiting).status, facts(waiting).iteration) == ("open", 1)
    assert_nobody_holds(waiting)
    assert len(shape.objects.claim_batch(5)) == 2


@pytest.mark.parametrize("verb", ["reset", "pause_rows", "release_expired"])
def test_a_verb_over_a_queryset_keeps_to_its_filter(
    shape: Any, verb: str, let_lease_lapse: Lapse
) -> None:
    make(shape, 4, note=lambda i: "mine" if i % 2 else "yours")
    if verb != "pause_rows":
        rows = shape.objects.claim_batch(4)
        if verb == "reset":
            shape.objects.fail(rows, "all", retry=False)
        let_lease_lapse(rows)
    before = {row.pk: facts(row) for row in shape._base_manager.filter(note="yours")}
    assert getattr(shape.objects.filter(note="mine"), verb)() == 2
    assert {row.pk: facts(row) for row in shape._base_manager.filter(note="yours")} == before


def test_an_expired_row_of_a_worker_goes_back_charged(shape: Any, let_lease_lapse: Lapse) -> None:
    row = claimed(shape)
    let_lease_lapse(row)
    assert shape.objects.release_expired() == 1
    now = facts(row)
    assert (now.status, now.iteration, getattr(now, "attempts", 1)) == ("open", 1, 1)
    assert getattr(now, "not_before", NEVER_WAITED) == NEVER_WAITED
    assert_nobody_holds(row)


def test_a_live_lease_is_not_reaped(shape: Any) -> None:
    row = claimed(shape)
    assert shape.objects.release_expired() == 0
    assert row.claim.check()


def test_a_processing_row_without_expiry_counts_as_expired(shape: Any) -> None:
    row = claimed(shape)
    set_raw(row, "expires_at", "NULL")
    assert [one.pk for one in shape._default_manager.expired()] == [row.pk]
    assert shape.objects.release_expired() == 1


def test_expiry_alone_loses_nothing(shape: Any, let_lease_lapse: Lapse) -> None:
    """Until the reaper acts the token stands, for ``renew`` as for every verb."""
    make(shape, 3)
    rows = shape.objects.claim_batch(3)
    let_lease_lapse(rows)
    assert shape.objects.renew(rows[:1]) == 1
    rows[1].claim.complete()
    rows[2].claim.fail("late, but first")
    assert shape.objects.release_expired() == 0


def test_the_last_try_under_a_shared_claim_goes_back_uncharged_and_marked(
    rule: Rule, let_lease_lapse: Lapse
) -> None:
    rule(Photo, max_attempts=1)
    row = claimed(Photo)
    let_lease_lapse(row)
    assert Photo.objects.release_expired() == 1
    now = facts(row)
    assert (now.status, now.attempts, now.not_before) == ("open", 0, CRASHED)


def test_only_the_expiry_of_a_marked_row_fails_it(rule: Rule, let_lease_lapse: Lapse) -> None:
    rule(Photo, max_attempts=1)
    row = claimed(Photo)
    let_lease_lapse(row)
    Photo.objects.release_expired()
    (again,) = Photo.objects.claim_batch(1)
    holder = again.claim.token.holder
    let_lease_lapse(again)
    assert Photo.objects.release_expired() == 1
    now = facts(row)
    assert (now.status, now.attempts, now.claimed_by) == ("failed", 1, holder)
    assert (now.iteration, now.expires_at) == (again.claim.token.iteration, None)
    assert now.error_class
    assert now.last_error


def test_the_expiry_of_a_marked_row_that_was_not_begun_charges_nothing(
    rule: Rule, let_lease_lapse: Lapse
) -> None:
    """A worker that dies between claiming such a row and running it was not killed by the row."""
    rule(Photo, max_attempts=1)
    (row,) = make(Photo)
    set_raw(row, "not_before", "%s", [stored_moment(CRASHED)])
    request = Request(
        1, new_holder("worker"), timedelta(seconds=60), False, True, tells_beginning=True
    )
    for _ in range(3):
        (held,) = Photo.objects.all()._claim(replace(request, holder=new_holder("worker")))
        let_lease_lapse(held)
        assert Photo.objects.release_expired() == 1
        assert (facts(row).status, facts(row).attempts) == ("open", 0)
    (held,) = Photo.objects.all()._claim(replace(request, holder=new_holder("worker")))
    Photo.objects.all()._begin(held)
    let_lease_lapse(held)
    assert Photo.objects.release_expired() == 1
    assert (facts(row).status, facts(row).attempts) == ("failed", 1)


def test_a_claim_that_tells_no_beginning_takes_the_blame(
    rule: Rule, let_lease_lapse: Lapse
) -> None:
    """A loop by hand that dies with such a row is taken to be killed by it, whoever held the row before."""
    rule(Photo, max_attempts=1)
    (row,) = make(Photo)
    set_raw(row, "not_before", "%s", [stored_moment(CRASHED_UNBEGUN)])
    let_lease_lapse(Photo.objects.claim_batch(1))
    assert Photo.objects.release_expired() == 1
    assert facts(row).status == "failed"


def test_a_beginning_is_fenced() -> None:
    row = claimed(Photo)
    lose(row)
    with pytest.raises(ClaimLost):
        Photo.objects.all()._begin(row)
    assert facts(row).not_before == NEVER_WAITED


def test_without_the_retry_columns_the_last_expiry_fails_the_row(
    rule: Rule, let_lease_lapse: Lapse
) -> None:
    rule(ClaimOnly, max_attempts=1)
    row = claimed(ClaimOnly)
    let_lease_lapse(row)
    assert ClaimOnly.objects.release_expired() == 1
    assert (facts(row).status, facts(row).iteration) == ("failed", 0)


def test_a_marked_row_is_claimed_alone(rule: Rule) -> None:
    make(Photo, 6)
    for row in Photo.objects.order_by("pk")[:2]:
        set_raw(row, "not_before", "%s", [stored_moment(CRASHED)])
    marked = {row.pk for row in Photo.objects.order_by("pk")[:2]}
    batches = [
        {row.pk for row in batch} for _ in range(4) if (batch := Photo.objects.claim_batch(10))
    ]
    assert sorted(len(batch) for batch in batches) == [1, 1, 4]
    assert all(len(batch) == 1 for batch in batches if batch & marked)
    assert set().union(*batches) == set(Photo.objects.values_list("pk", flat=True))


def test_an_expired_row_of_a_person_is_never_charged(
    shape: Any, rule: Rule, let_lease_lapse: Lapse
) -> None:
    rule(shape, max_attempts=1)
    row = claimed(shape, claimed_by="user:17")
    for _ in range(2):
        let_lease_lapse(row)
        assert shape.objects.release_expired() == 1
        now = facts(row)
        assert (now.status, getattr(now, "attempts", 0)) == ("open", 0)
        assert getattr(now, "not_before", NEVER_WAITED) == NEVER_WAITED
        shape.objects.claim_batch(1, claimed_by="user:17")


def test_iteration_never_decreases_and_no_token_is_issued_twice(
    shape: Any, rule: Rule, let_lease_lapse: Lapse
) -> None:
    """One holder, one row, every way back to open: each claim has a token of its own."""
    rule(shape, max_attempts=99, backoff=lambda failures: 0)
    (row,) = make(shape)
    ways_back: list[Callable[[Any], Any]] = [
        lambda row: row.claim.release(),
        lambda row: row.claim.fail("again"),
        lambda row: (let_lease_lapse(row), shape.objects.release_expired()),
        lambda row: shape.objects.reset(running=True),
        lambda row: (row.claim.complete(), shape.objects.reset(complete=True)),
        lambda row: (row.claim.fail("for good", retry=False), shape.objects.reset()),
        lambda row: (row.claim.release(), shape.objects.pause_rows(), shape.objects.resume_rows()),
    ]
    tokens = []
    iterations = [facts(row).iteration]
    for way_back in ways_back:
        (held,) = shape.objects.claim_batch(1, claimed_by="user:1")
        tokens.append(held.claim.token)
        way_back(held)
        assert facts(row).status == "open"
        iterations.append(facts(row).iteration)
    assert iterations == sorted(set(iterations))
    assert len(set(tokens)) == len(tokens)


def test_verbs_return_how_many_rows_they_wrote(shape: Any) -> None:
    make(shape, 6)
    rows = shape.objects.claim_batch(6)
    assert shape.objects.renew(rows) == 6
    assert shape.objects.complete(rows[:2]) == 2
    assert shape.objects.fail(rows[2:4], "twice") == 2
    assert shape.objects.release(rows[4:]) == 2
    assert shape.objects.complete([]) == 0


def test_a_row_given_twice_is_written_and_counted_once(shape: Any) -> None:
    make(shape, 2)
    first, second = shape.objects.claim_batch(2)
    assert shape.objects.renew([first, second, first]) == 2
    assert shape.objects.complete([first, second, first]) == 2


def test_progress_counts_the_states_of_the_rows_asked_for(shape: Any) -> None:
    make(shape, 6, counter=1)
    make(shape, 1, counter=2)
    running, done, bad = shape.objects.filter(counter=1).claim_batch(3)
    done.claim.complete()
    bad.claim.fail("bad", retry=False)
    shape.objects.filter(pk=shape.objects.filter(counter=1).open().first().pk).pause_rows()
    assert running.claim.check()
    progress = shape.objects.filter(counter=1).progress()
    assert (progress.open, progress.processing, progress.complete) == (2, 1, 1)
    assert (progress.failed, progress.paused, progress.total) == (1, 1, 6)


def test_the_filters_read_as_they_are_named(shape: Any, let_lease_lapse: Lapse) -> None:
    make(shape, 5)
    mine, theirs, bad, later = [
        shape.objects.claim_batch(1, claimed_by=f"user:{number}")[0] for number in range(4)
    ]
    bad.claim.fail("bad", retry=False)
    later.claim.release(delay=600)
    let_lease_lapse(theirs)
    manager = shape.objects
    waits = has(shape, "not_before")
    assert [row.pk for row in manager.held_by("user:0")] == [mine.pk]
    assert [row.pk for row in manager.expired()] == [theirs.pk]
    assert [row.pk for row in manager.failed()] == [bad.pk]
    assert {row.pk for row in manager.open()} >= {later.pk}
    assert manager.open().count() == 2
    assert manager.due().count() == (1 if waits else 2)
    assert manager.held_by("user:2").count() == 0
