"""An operator's word over rows that somebody else may hold: ``fail_rows`` and ``take_back``."""

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_taskclaim.exceptions import ClaimLost
from tests.behaviour.support import ROW_LOCKS, Rival, facts, has, stored
from tests.factories import make
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db


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


def test_what_nobody_holds_is_failed_and_the_rest_only_when_named(shape: Any) -> None:
    rows = in_each_state(shape)
    before = {state: stored(rows[state]) for state in ("processing", "complete", "failed")}
    assert shape.objects.fail_rows("not wanted") == 2
    assert {state: stored(rows[state]) for state in before} == before
    assert shape.objects.fail_rows("not wanted", complete=True) == 1
    assert shape.objects.fail_rows("not wanted", running=True) == 1
    assert shape.objects.fail_rows("not wanted", running=True, complete=True) == 0
    assert {facts(row).status for row in rows.values()} == {"failed"}


@pytest.mark.parametrize("state", ["open", "paused", "processing", "complete"])
def test_a_failed_row_keeps_who_and_how_often_and_says_why(shape: Any, state: str) -> None:
    row = in_each_state(shape)[state]
    before = facts(row)
    assert shape.objects.filter(pk=row.pk).fail_rows("no <use>", running=True, complete=True) == 1
    now = facts(row)
    assert (now.status, now.expires_at) == ("failed", None)
    assert (now.claimed_by, now.iteration) == (before.claimed_by, before.iteration + 1)
    if has(shape, "attempts"):
        assert now.attempts == before.attempts
        assert (now.error_class, now.last_error) == ("FailedByOperator", "no <use>")
        assert now.completed_at is None
    assert shape.objects.filter(pk=row.pk).reset() == 1


def test_an_exception_is_recorded_as_one() -> None:
    (row,) = make(Photo)
    assert Photo.objects.fail_rows(LookupError("gone")) == 1
    assert (facts(row).error_class, facts(row).last_error) == ("LookupError", "gone")


def test_the_holder_of_a_failed_row_has_lost_it(shape: Any) -> None:
    row = in_each_state(shape)["processing"]
    shape.objects.fail_rows("stop", running=True)
    for verb in (row.claim.complete, row.claim.release, row.claim.renew, row.save):
        with pytest.raises(ClaimLost), transaction.atomic():
            verb()
    assert facts(row).status == "failed"


def test_running_rows_are_released_uncounted_and_no_others(shape: Any) -> None:
    rows = in_each_state(shape)
    held = rows.pop("processing")
    before = {state: stored(row) for state, row in rows.items()}
    told = facts(held)
    assert shape.objects.take_back() == 1
    assert {state: stored(row) for state, row in rows.items()} == before
    now = facts(held)
    assert (now.status, now.iteration) == ("open", told.iteration + 1)
    assert (now.claimed_by, now.claimed_at, now.expires_at) == (None, None, None)
    if has(shape, "attempts"):
        assert (now.attempts, now.not_before) == (told.attempts, told.not_before)
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


def test_the_reason_may_be_any_text() -> None:
    (row,) = make(Photo)
    assert Photo.objects.fail_rows("a\x00b \ud800 🎈") == 1
    assert facts(row).last_error == "a\\x00b \\ud800 🎈"


async def _both() -> tuple[int, int]:
    rows: Any = Photo.objects.all()
    return await rows.atake_back(), await rows.afail_rows("no")


@pytest.mark.django_db(transaction=True)
def test_async_twins() -> None:
    make(Photo, 2)
    Photo.objects.claim_batch(1)
    assert async_to_sync(_both)() == (1, 2)
