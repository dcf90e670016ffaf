"""An operator's verbs over rows that somebody else may hold: ``fail_rows`` and ``take_back``."""

from typing import Any

import pytest
from django.db import transaction

from django_taskclaim.exceptions import ClaimLost
from tests.factories import make
from tests.querysets.support import ROW_LOCKS, Rival, facts, has, stored
from tests.testapp.models import Child, ClaimOnly, CompositeKey, Photo

pytestmark = pytest.mark.django_db

TABLES = pytest.mark.parametrize("model", [Photo, ClaimOnly, Child, CompositeKey])


def in_each_state(model: Any) -> dict[str, Any]:
    """Return one row of *model* in each of the five states; the one that is processing carries its claim."""
    rows = make(model, 4)
    complete, failed, processing = model.objects.claim_batch(3)
    complete.claim.complete()
    failed.claim.fail("no use", retry=False)
    (paused,) = (row for row in rows if facts(row).status == "open")
    model.objects.filter(pk=paused.pk).pause_rows()
    (waiting,) = make(model)
    return {
        "open": waiting,
        "processing": processing,
        "complete": complete,
        "failed": failed,
        "paused": paused,
    }


@TABLES
def test_rows_that_run_or_are_complete_are_failed_only_when_named(model: Any) -> None:
    rows = in_each_state(model)
    before = {state: stored(rows[state]) for state in ("processing", "complete", "failed")}
    assert model.objects.fail_rows("not wanted") == 2
    assert {state: stored(rows[state]) for state in before} == before
    assert model.objects.fail_rows("not wanted", complete=True) == 1
    assert model.objects.fail_rows("not wanted", running=True) == 1
    assert model.objects.fail_rows("not wanted", running=True, complete=True) == 0
    assert {facts(row).status for row in rows.values()} == {"failed"}


@pytest.mark.promise(3)
@TABLES
def test_a_failed_row_keeps_who_and_how_often_and_its_holder_has_lost_it(model: Any) -> None:
    rows = in_each_state(model)
    before = {state: facts(row) for state, row in rows.items()}
    model.objects.fail_rows("no <use>\x00 🎈", running=True, complete=True)
    for state in ("open", "paused", "processing", "complete"):
        now, then = facts(rows[state]), before[state]
        assert (now.status, now.expires_at) == ("failed", None)
        assert (now.claimed_by, now.iteration) == (then.claimed_by, then.iteration + 1)
        if has(model, "attempts"):
            assert (now.attempts, now.completed_at) == (then.attempts, None)
            assert (now.error_class, now.last_error) == ("FailedByOperator", "no <use>\\x00 🎈")
    row = rows["processing"]
    for verb in (row.claim.complete, row.claim.release, row.claim.renew, row.save):
        with pytest.raises(ClaimLost), transaction.atomic():
            verb()
    assert facts(row).status == "failed"
    assert model.objects.reset() == 5


def test_an_exception_is_recorded_as_one() -> None:
    (row,) = make(Photo)
    assert Photo.objects.fail_rows(LookupError("gone")) == 1
    assert (facts(row).error_class, facts(row).last_error) == ("LookupError", "gone")


@pytest.mark.promise(3)
@TABLES
def test_running_rows_are_taken_back_uncounted_and_no_others(model: Any) -> None:
    rows = in_each_state(model)
    held = rows.pop("processing")
    before, then = {state: stored(row) for state, row in rows.items()}, facts(held)
    assert model.objects.take_back() == 1
    assert {state: stored(row) for state, row in rows.items()} == before
    now = facts(held)
    assert (now.status, now.iteration) == ("open", then.iteration + 1)
    assert (now.claimed_by, now.claimed_at, now.expires_at) == (None, None, None)
    if has(model, "attempts"):
        assert (now.attempts, now.not_before) == (then.attempts, then.not_before)
    with pytest.raises(ClaimLost):
        held.claim.complete()


@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("verb", ["fail_rows", "take_back"])
def test_a_locked_row_is_left_alone_and_not_waited_for(rival: Rival, verb: str) -> None:
    make(Photo, 3)
    first, *_ = Photo.objects.claim_batch(3)
    rival.lock(first)
    rows: Any = Photo.objects.all()
    done = rows.take_back() if verb == "take_back" else rows.fail_rows("no", running=True)
    assert done == 2
    assert facts(first).status == "processing"
