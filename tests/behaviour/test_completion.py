"""Completion policies: what is opened again, a function of the user's, and what is common to all."""

import datetime
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from django_taskclaim.completion import Archive, Clear, Delete, as_completion
from django_taskclaim.exceptions import ClaimLost, TaskClaimError
from django_taskclaim.signals import rows_completed
from tests.behaviour.completing import DELETES, claimed, gone, refused
from tests.behaviour.models import Complaint, Parcel, ParcelArchive
from tests.behaviour.support import (
    DEADLINE,
    clock,
    elsewhere,
    facts,
    fresh,
    has,
    lose,
    set_raw,
    stored,
)
from tests.factories import make
from tests.testapp.models import Child, ClaimOnly, CompositeKey, Photo

pytestmark = pytest.mark.django_db

Rule = Callable[..., None]


# Clearing


def test_what_is_done_is_open_again(shape: Any, rule: Rule) -> None:
    rule(shape, completion="clear", backoff=lambda failures: 0)
    (row,) = claimed(shape, 1)
    row.claim.fail("the first time")
    (row,) = shape.objects.claim_batch(1)
    row.note, before = "result", row.claim.token.iteration
    row.claim.complete(update_fields=["note"])
    now = facts(row)
    assert (now.status, now.iteration, fresh(row).note) == ("open", before + 1, "result")
    assert (now.claimed_by, now.claimed_at, now.expires_at) == (None, None, None)
    if has(shape, "attempts", "completed_at"):
        assert (now.attempts, now.last_error, now.error_class) == (0, "", "")
        assert now.completed_at is not None
    with pytest.raises(ClaimLost):
        row.claim.complete()
    (again,) = shape.objects.claim_batch(1)
    assert again.pk == row.pk


def test_a_lost_claim_clears_nothing(rule: Rule) -> None:
    rule(Photo, completion=Clear(every=5))
    rows = claimed(Photo, 3)
    lose(rows[1])
    before = stored(rows[1])
    refused(rows, [rows[1]])
    assert stored(rows[1]) == before
    assert facts(rows[0]).status == "open"


@pytest.mark.parametrize("every", [3600, datetime.timedelta(hours=1)])
def test_a_cleared_row_is_due_after_its_interval(every: Any, rule: Rule) -> None:
    rule(Photo, completion=Clear(every=every))
    (row,) = claimed(Photo, 1)
    row.claim.complete()
    assert Photo.objects.claim_batch(1) == []
    assert facts(row).not_before - facts(row).completed_at == datetime.timedelta(hours=1)
    assert row.not_before == facts(row).not_before
    set_raw(row, "not_before", clock("-1 SECOND"))
    assert Photo.objects.claim_batch(1) == [row]


def test_rows_that_are_cleared_take_turns(rule: Rule) -> None:
    """Those with the lowest keys would be claimed for ever otherwise."""
    rule(Photo, completion="clear")
    rows = make(Photo, 6)
    turns = []
    for _ in range(3):
        batch = Photo.objects.claim_batch(2)
        turns.append({row.pk for row in batch})
        Photo.objects.complete(batch)
    assert set.union(*turns) == {row.pk for row in rows}


def test_the_moment_of_the_last_completion_stays(rule: Rule) -> None:
    rule(Photo, completion="clear")
    (row,) = claimed(Photo, 1)
    row.claim.complete()
    (row,) = Photo.objects.claim_batch(1)
    assert row.completed_at is not None
    row.claim.release()
    assert facts(row).completed_at == row.completed_at


# A function of the user's


def test_a_function_gets_the_rows_just_completed(rule: Rule) -> None:
    """In the transaction that completes them, as rows that are ordinary again."""
    heard: list[Any] = []

    def tell(rows: list[Photo]) -> None:
        for row in rows:
            heard.append((row.pk, row.status, facts(row).status, connection.in_atomic_block))
            row.url = "seen"
            row.save()

    rule(Photo, completion=tell)
    rows = claimed(Photo, 3)
    lose(rows[1])
    refused(rows, [rows[1]])
    assert heard == [(row.pk, "complete", "complete", True) for row in (rows[0], rows[2])]
    assert fresh(rows[0]).url == "seen"
    assert facts(rows[0]).status == "complete"


def test_what_it_raises_rolls_the_completion_back(rule: Rule) -> None:
    def refuse(rows: list[Photo]) -> None:
        Complaint.objects.create()
        raise LookupError("not yet") from ValueError("why")

    rule(Photo, completion=refuse)
    (row,) = claimed(Photo, 1)
    before = stored(row)
    row.note = "result"
    with pytest.raises(LookupError, match="not yet") as caught:
        row.claim.complete(update_fields=["note"])
    assert isinstance(caught.value.__cause__, ValueError)
    assert stored(row) == before
    assert (row.status, Complaint.objects.exists()) == ("processing", False)
    assert row.claim.check()
    row.claim.fail(caught.value)
    assert facts(row).attempts == 1


def test_a_transaction_that_it_loses_is_noticed(transactional_db: None, rule: Rule) -> None:
    """A deadlock undoes all of it on MySQL and MariaDB, whoever swallows the error."""
    rule(Photo, completion=lambda rows: connection.connection.rollback())
    (row,) = claimed(Photo, 1)
    with pytest.raises(TaskClaimError, match="nothing was kept"):
        row.claim.complete()
    connection.close()
    assert facts(row).status == "processing"
    rule(Photo)
    row.claim.complete()


# What is common to all


@pytest.mark.parametrize(
    "how",
    ["mark", "delete", Delete(cascade=True), Archive(ParcelArchive), "clear", lambda rows: None],
    ids=["mark", "delete", "cascade", "archive", "clear", "function"],
)
def test_every_completion_is_told(
    how: Any, rule: Rule, django_capture_on_commit_callbacks: Any
) -> None:
    heard: list[Any] = []

    def hear(sender: Any, rows: list[Any], using: str, **kwargs: Any) -> None:
        heard.append((sender, rows, using))

    rule(Parcel, completion=how)
    rows = claimed(Parcel, 2)
    rows_completed.connect(hear, sender=Parcel)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            Parcel.objects.complete(rows)
    finally:
        rows_completed.disconnect(hear, sender=Parcel)
    assert heard == [(Parcel, rows, "default")]


def test_rows_of_several_models_each_follow_their_own_policy(rule: Rule) -> None:
    rule(Photo, completion="delete")
    rule(ClaimOnly, completion="clear")
    (photo,), (plain,), (child,) = claimed(Photo, 1), claimed(ClaimOnly, 1), claimed(Child, 1)
    assert Photo.objects.complete([photo, plain, child]) == 3
    assert gone(photo, photo.pk)
    assert (facts(plain).status, facts(child).status) == ("open", "complete")


@pytest.mark.parametrize("model", [Parcel, Child, CompositeKey])
@pytest.mark.parametrize("how", [*DELETES, Clear()], ids=["plain", "cascade", "clear"])
def test_a_completion_that_waited_for_the_reaper_has_lost(
    model: Any, how: Any, rule: Rule, transactional_db: None
) -> None:
    """What was true when the statement began is looked at again under the lock."""
    rule(model, completion=how)
    (row,) = claimed(model, 1)
    with transaction.atomic():
        set_raw(row, "expires_at", clock("-1 HOUR"))
        assert model.objects.release_expired() == 1
        completing = elsewhere(lambda: model.objects.complete([row]))
        assert not completing.done()
    with pytest.raises(ClaimLost):
        completing.result(DEADLINE)
    assert (facts(row).status, facts(row).iteration, facts(row).completed_at) == ("open", 1, None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("archive", "Archive"),
        ("remove", "not 'remove'"),
        (7, "not 7"),
        (Delete, "not <class"),
        (None, "not None"),
    ],
)
def test_what_is_no_policy_is_refused(given: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        as_completion(given)


def test_a_policy_that_makes_no_sense_is_refused() -> None:
    async def later(rows: list[Any]) -> None:
        pass

    with pytest.raises(TypeError, match="coroutine"):
        as_completion(later)
    with pytest.raises(ValueError, match="every must be longer than zero"):
        Clear(every=0)
    with pytest.raises(TypeError, match="model or its label"):
        Archive(7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="list of names"):
        Archive(ParcelArchive, leave_out="note")


@pytest.mark.parametrize("names", [None, "note"])
def test_names_of_columns_are_a_list(names: Any) -> None:
    """None is every column to Django's ``save()``; here it would be none of them."""
    (row,) = claimed(Photo, 1)
    with pytest.raises(TypeError, match="update_fields is a list of names, not "):
        Photo.objects.complete(row, update_fields=names)
    assert fresh(row).status == "processing"
