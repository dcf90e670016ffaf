"""The token is kept where nothing else writes, and stands until a verb has ended its claim."""

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction

from django_taskclaim.exceptions import ClaimLost
from tests.factories import make
from tests.querysets.late_writes import Write, assert_refused, claimed, twin
from tests.querysets.support import facts, fresh, lose, names
from tests.testapp.models import Child, ChildOwnsClaim, CompositeKey, Photo

pytestmark = [pytest.mark.django_db, pytest.mark.promise(3)]

TABLES = pytest.mark.parametrize("model", [Photo, Child, ChildOwnsClaim, CompositeKey])

#: One of each kind of write.
KINDS = ["complete", "renew", "save", "delete", "bulk_update"]


def test_a_row_that_was_only_read_carries_no_claim(shape: Any) -> None:
    row = claimed(shape)
    read = fresh(row)
    calls: list[Any] = [
        lambda: shape.objects.complete(read),
        lambda: shape.objects.renew(read),
        lambda: shape.objects.release(read),
        lambda: shape.objects.fail(read, "no"),
        lambda: read.claim.check(),
    ]
    for call in calls:
        with pytest.raises(ClaimLost, match="carries no claim"):
            call()
    assert row.claim.check()


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


TOUCHES = pytest.mark.parametrize(
    "touch", [twin, copy.copy, copy.deepcopy, refreshed, refreshed_in_part, assigned]
)


@TOUCHES
@TABLES
def test_the_token_survives_what_an_instance_goes_through(model: Any, touch: Write) -> None:
    row = claimed(model)
    token = row.claim.token
    touched = touch(row)
    assert touched.claim.token == token
    touched.note = "in time"
    touched.save()
    touched.claim.complete()
    assert fresh(row).note == "in time"


@TOUCHES
@TABLES
def test_nothing_an_instance_goes_through_brings_a_lost_claim_back(
    model: Any, touch: Write
) -> None:
    row = claimed(model)
    late = {kind: twin(row) for kind in KINDS}
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


def test_a_token_travels_as_text_tuple_or_itself(shape: Any) -> None:
    make(shape, 3)
    rows = shape.objects.claim_batch(3, claimed_by="a:b:c 1:2")
    for row, spell in zip(rows, (str, tuple, lambda token: token), strict=True):
        assert row.claim.token == ("a:b:c 1:2", 0)
        again = shape.objects.with_token(row.pk, spell(row.claim.token))
        assert again.claim.token == row.claim.token
        again.claim.complete()
        assert facts(row).status == "complete"


def test_a_token_that_no_longer_stands_is_lost_at_the_first_verb(shape: Any) -> None:
    late = claimed(shape)
    token = str(late.claim.token)
    lose(late)
    for kind in KINDS:
        assert_refused(kind, shape.objects.with_token(late.pk, token))


@TABLES
def test_a_token_of_a_row_that_is_gone_is_does_not_exist(model: Any) -> None:
    row = claimed(model)
    key, token = row.pk, row.claim.token
    row.delete()
    with pytest.raises(model.DoesNotExist):
        model.objects.with_token(key, token)


WRONG = ["", "user:1", "x:user:1", "-1:user:1", "1:", "1.5:user:1", "0:nul\x00", "0:" + "x" * 300]
WRONG += [f"{10**30}:user:1", ("user:1",), ("user:1", "x"), ("user:1", 10**30), (None, 0), None]


@pytest.mark.once
@pytest.mark.parametrize("given", WRONG)
def test_what_is_no_token_is_a_value_error(given: Any) -> None:
    """A token comes back from a form, so from anyone."""
    row = claimed(Photo)
    with pytest.raises(ValueError, match="is no claim token"):
        Photo.objects.with_token(row.pk, given)


# Ended claims


@pytest.mark.parametrize("verb", ["complete", "fail", "release", "delete"])
@TABLES
def test_a_claim_that_a_verb_has_ended_serves_no_second_time(model: Any, verb: str) -> None:
    row = claimed(model)
    if verb == "delete":
        row.delete()
    else:
        getattr(row.claim, verb)(*(["boom"] if verb == "fail" else []))
    with pytest.raises(ClaimLost, match="carries no claim"):
        row.claim.complete()
    with pytest.raises(ClaimLost):
        _ = row.claim.token


@contextmanager
def autocommit_off() -> Iterator[None]:
    """Let the block manage its transactions by hand."""
    connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    try:
        yield
    finally:
        connection.set_autocommit(True)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("model", [Photo, ChildOwnsClaim])
class TestEndingAndTheTransaction:
    """What a verb has ended stays ended if the transaction commits, and stands again if it does not."""

    def test_after_the_commit_the_instance_is_an_ordinary_one(self, model: Any) -> None:
        row = claimed(model)
        with transaction.atomic():
            row.claim.complete()
            with pytest.raises(ClaimLost):
                row.claim.complete()
            row.note = "after its completion"
            row.save()
        assert (fresh(row).note, facts(row).status) == ("after its completion", "complete")
        model.objects.reset(complete=True)
        (again,) = model.objects.claim_batch(1)
        row.note = "an ordinary save"
        row.save()
        assert fresh(row).note == "an ordinary save"
        assert again.claim.check()

    @pytest.mark.parametrize("kind", ["complete", "delete"])
    def test_a_rollback_lets_the_token_stand_again(self, model: Any, kind: str) -> None:
        row = claimed(model)
        key = row.pk
        with transaction.atomic():
            row.claim.complete() if kind == "complete" else row.delete()
            transaction.set_rollback(True)
        row.pk = key
        assert row.claim.check()
        late = pickle.dumps(row)
        row.note = "second try"
        row.claim.complete(update_fields=["note"])
        assert (fresh(row).note, facts(row).status) == ("second try", "complete")
        assert_refused("save", pickle.loads(late))

    def test_a_savepoint_that_is_rolled_back_lets_the_token_stand_again(self, model: Any) -> None:
        row = claimed(model)
        with transaction.atomic():
            with transaction.atomic():
                row.claim.release()
                transaction.set_rollback(True)
            assert row.claim.check()
            row.claim.complete()
        assert facts(row).status == "complete"
        with pytest.raises(ClaimLost):
            row.claim.check()

    def test_without_autocommit_a_commit_or_rollback_by_hand_decides(self, model: Any) -> None:
        row = claimed(model)
        with autocommit_off():
            row.claim.complete()
            transaction.rollback()
        assert row.claim.check()
        with autocommit_off():
            row.claim.complete()
            with pytest.raises(ClaimLost):
                row.claim.complete()
            transaction.commit()
        assert facts(row).status == "complete"
