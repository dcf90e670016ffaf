"""The token is kept where nothing else writes, and stands until a verb has ended its claim."""

import copy
import pickle
from typing import Any

import pytest
from django.db import transaction

from django_taskclaim.columns import claim_columns
from django_taskclaim.exceptions import ClaimLost
from tests.factories import make, make_claimed
from tests.meanwhile import autocommit_off
from tests.querysets.late_writes import Write, assert_refused, claimed, twin
from tests.querysets.support import facts, fresh, lose, names
from tests.testapp.models import Child, ChildOwnsClaim, CompositeKey, Photo

pytestmark = [pytest.mark.django_db, pytest.mark.promise(3)]

TABLES = pytest.mark.parametrize("model", [Photo, Child, CompositeKey])

#: One of each kind of write.
KINDS = ["complete", "renew", "save", "delete", "bulk_update"]


def ending(verb: str, row: Any) -> Any:
    if verb == "delete":
        return row.delete()
    return getattr(row.claim, verb)(*(["boom"] if verb == "fail" else []))


@TABLES
def test_a_row_that_was_only_read_or_whose_claim_has_ended_carries_no_claim(model: Any) -> None:
    for verb in ("complete", "fail", "release", "delete"):
        row = claimed(model)
        read = fresh(row)
        for late in ("complete", "renew", "release", "fail", "check"):
            with pytest.raises(ClaimLost, match="carries no claim"):
                ending(late, read)
        ending(verb, row)
        with pytest.raises(ClaimLost, match="carries no claim"):
            row.claim.complete()
        with pytest.raises(ClaimLost):
            _ = row.claim.token
        model._base_manager.all().delete()


def refreshed(row: Any) -> Any:
    row.refresh_from_db()
    return row


def refreshed_in_part(row: Any) -> Any:
    row.refresh_from_db(fields=["note"])
    return row


def assigned(row: Any) -> Any:
    """Set the next holder's claim on the fields, as refresh_from_db() would."""
    stored = {name: value for name, value in fresh(row).__dict__.items() if name != "_state"}
    row.__dict__.update(stored)
    return row


@pytest.mark.parametrize(
    "touch", [twin, copy.copy, copy.deepcopy, refreshed, refreshed_in_part, assigned]
)
@TABLES
def test_no_touch_takes_the_token_or_brings_a_lost_one_back(model: Any, touch: Write) -> None:
    row = claimed(model)
    late = {kind: twin(row) for kind in KINDS}
    touched = touch(twin(row))
    assert touched.claim.token == row.claim.token
    touched.note = "in time"
    touched.save()
    assert fresh(row).note == "in time"
    lose(row)
    for kind, instance in late.items():
        assert_refused(kind, touch(instance))


@TABLES
@pytest.mark.parametrize("narrow", ["only", "defer"])
def test_deferred_claim_columns_are_no_part_of_the_token(model: Any, narrow: str) -> None:
    make(model)
    columns = ["note"] if narrow == "only" else list(names(model).values())[:5]
    (row,) = getattr(model.objects, narrow)(*columns).claim_batch(1)
    late = {kind: twin(row) for kind in KINDS}
    lose(row)
    for kind, instance in late.items():
        assert instance.iteration == 1  # read only now, so it is the next holder's
        assert_refused(kind, instance)


# Tokens that travel


def test_a_token_travels_as_text_tuple_or_itself_and_is_lost_with_its_claim(shape: Any) -> None:
    rows = make_claimed(shape, 3, claimed_by="a:b:c 1:2")
    for row, spell in zip(rows, (str, tuple, lambda token: token), strict=True):
        assert row.claim.token == ("a:b:c 1:2", 0)
        again = shape.objects.with_token(row.pk, spell(row.claim.token))
        assert again.claim.token == row.claim.token
        again.claim.complete()
        assert facts(row).status == "complete"
    late = claimed(shape)
    key, token = late.pk, str(late.claim.token)
    current = lose(late)
    for kind in KINDS:
        assert_refused(kind, shape.objects.with_token(key, token))
    current.delete()
    with pytest.raises(shape.DoesNotExist):
        shape.objects.with_token(key, token)


WRONG = ["", "user:1", "x:user:1", "-1:user:1", "1:", "1.5:user:1", "0:nul\x00", "0:" + "x" * 300]
WRONG += [f"{10**30}:user:1", ("user:1",), ("user:1", "x"), ("user:1", 10**30), (None, 0), None]


@pytest.mark.once
def test_what_is_no_token_is_a_value_error() -> None:
    """A token comes back from a form, so from anyone."""
    row = claimed(Photo)
    for given in WRONG:
        with pytest.raises(ValueError, match="is no claim token"):
            Photo.objects.with_token(row.pk, given)


@pytest.mark.parametrize("model", [Child, ChildOwnsClaim])
def test_a_child_that_leaves_its_parent_ends_the_claim_only_with_the_claimed_row(
    model: Any,
) -> None:
    row = claimed(model)
    owner, key = claim_columns(model).owner, row.pk
    row.delete(keep_parents=True)
    stays = owner is not model
    assert row.claim.lost is not stays
    if stays:
        row.claim.complete()
        assert owner.objects.get(pk=key).status == "complete"


# What a verb has ended stays ended if the transaction commits, and stands again if it does not.


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("model", [Photo, ChildOwnsClaim])
def test_after_the_commit_the_instance_is_an_ordinary_one(model: Any) -> None:
    row = claimed(model)
    token = row.claim.token
    with transaction.atomic():
        row.claim.complete()
        with pytest.raises(ClaimLost):
            row.claim.complete()
        # What is not committed does not travel.
        assert twin(row).claim.token == token
        row.note = "after its completion"
        row.save()
    assert (fresh(row).note, facts(row).status) == ("after its completion", "complete")
    model.objects.reset(complete=True)
    (again,) = model.objects.claim_batch(1)
    row.note = "an ordinary save"
    row.save()
    assert fresh(row).note == "an ordinary save"
    assert again.claim.check()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("model", [Photo, ChildOwnsClaim])
@pytest.mark.parametrize("kind", ["complete", "delete"])
def test_a_rollback_lets_the_token_stand_again(model: Any, kind: str) -> None:
    row = claimed(model)
    key = row.pk
    with transaction.atomic():
        ending(kind, row)
        transaction.set_rollback(True)
    row.pk = key
    assert row.claim.check()
    with transaction.atomic():
        with transaction.atomic():
            row.claim.release()
            transaction.set_rollback(True)
        assert row.claim.check()
    with autocommit_off():
        row.claim.complete()
        transaction.rollback()
    assert row.claim.check()
    late = pickle.dumps(row)
    row.note = "second try"
    with autocommit_off():
        row.claim.complete(update_fields=["note"])
        with pytest.raises(ClaimLost):
            row.claim.complete()
        transaction.commit()
    assert (fresh(row).note, facts(row).status) == ("second try", "complete")
    assert_refused("save", pickle.loads(late))
