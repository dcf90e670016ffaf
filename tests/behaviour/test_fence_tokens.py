"""The token is kept where nothing else writes, and stands until a verb has ended its claim."""

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction

from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.states import Token
from tests.behaviour.late_writes import KINDS, TABLES, WRITES, Write, assert_refused, claimed
from tests.behaviour.support import facts, fresh, lose, names
from tests.factories import make
from tests.testapp.models import ChildOwnsClaim, Photo

pytestmark = pytest.mark.django_db


# The token


def test_a_row_that_was_only_read_carries_no_claim(shape: Any) -> None:
    row = claimed(shape)
    read = fresh(row)
    for verb in ("complete", "renew", "release"):
        with pytest.raises(ClaimLost, match="carries no claim"):
            getattr(shape.objects, verb)(read)
    with pytest.raises(ClaimLost, match="carries no claim"):
        shape.objects.fail(read, "no")
    with pytest.raises(ClaimLost, match="carries no claim"):
        read.claim.check()
    assert row.claim.check()


def pickled(row: Any) -> Any:
    return pickle.loads(pickle.dumps(row))


def refreshed(row: Any) -> Any:
    row.refresh_from_db()
    return row


def refreshed_in_part(row: Any) -> Any:
    row.refresh_from_db(fields=["note"])
    return row


def assigned(row: Any) -> Any:
    """Spell the next holder's claim in the fields, as refresh_from_db() would."""
    row.__dict__.update(
        {name: value for name, value in fresh(row).__dict__.items() if name != "_state"}
    )
    return row


@pytest.mark.parametrize("touch", [pickled, copy.copy, copy.deepcopy, refreshed, refreshed_in_part])
def test_the_token_survives_what_an_instance_goes_through(shape: Any, touch: Write) -> None:
    row = claimed(shape)
    token = row.claim.token
    touched = touch(row)
    assert touched.claim.token == token
    touched.note = "in time"
    touched.save()
    touched.claim.complete()
    assert fresh(row).note == "in time"


@KINDS
@TABLES
@pytest.mark.parametrize("touch", [pickled, copy.deepcopy, refreshed, refreshed_in_part, assigned])
def test_nothing_an_instance_goes_through_brings_a_lost_claim_back(
    model: Any, touch: Write, kind: str
) -> None:
    late = claimed(model)
    lose(late)
    assert_refused(WRITES[kind], touch(late))


@KINDS
@TABLES
@pytest.mark.parametrize("narrow", ["only", "defer"])
def test_deferred_claim_columns_are_no_part_of_the_token(
    model: Any, narrow: str, kind: str
) -> None:
    make(model)
    columns = ["note"] if narrow == "only" else list(names(model).values())[:5]
    (late,) = getattr(model.objects, narrow)(*columns).claim_batch(1)
    lose(late)
    assert late.iteration == 1  # read only now, so it is the next holder's
    assert_refused(WRITES[kind], late)


def test_a_token_travels_as_text_tuple_or_token(shape: Any) -> None:
    make(shape, 3)
    for row, spell in zip(shape.objects.claim_batch(3), (str, tuple, Token._make), strict=True):
        again = shape.objects.with_token(row.pk, spell(row.claim.token))
        assert again.claim.token == row.claim.token
        again.claim.complete()
        assert facts(row).status == "complete"


@KINDS
def test_a_token_that_no_longer_stands_is_lost_at_the_first_verb(shape: Any, kind: str) -> None:
    late = claimed(shape)
    token = str(late.claim.token)
    lose(late)
    assert_refused(WRITES[kind], shape.objects.with_token(late.pk, token))


def test_a_token_of_a_row_that_is_gone_is_does_not_exist(shape: Any) -> None:
    row = claimed(shape)
    key, token = row.pk, row.claim.token
    row.delete()
    with pytest.raises(shape.DoesNotExist):
        shape.objects.with_token(key, token)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "user:1",
        "x:user:1",
        "-1:user:1",
        "1:",
        ":",
        "1.5:user:1",
        "1 :user:1",
        "0:nul\x00",
        f"{10**30}:user:1",
        "0:" + "x" * 300,
        (),
        ("user:1",),
        ("user:1", "x"),
        ("user:1", 10**30),
        (None, 0),
        ("", 0),
        None,
        7,
    ],
)
def test_what_is_no_token_is_a_value_error(text: Any) -> None:
    """A token comes back from a form, so from anyone; whatever it holds, it is an answer and no crash."""
    row = claimed(Photo)
    with pytest.raises(ValueError, match="is no claim token"):
        Photo.objects.with_token(row.pk, text)


def test_a_token_is_the_holder_and_the_iteration(shape: Any) -> None:
    row = claimed(shape, claimed_by="user:17")
    assert row.claim.token == ("user:17", 0)
    assert Token.parse(str(row.claim.token)) == row.claim.token


def test_a_holder_with_a_colon_survives_the_way_through_a_form() -> None:
    row = claimed(Photo, claimed_by="a:b:c 1:2")
    Photo.objects.with_token(row.pk, str(row.claim.token)).complete()


# Ended claims


@pytest.mark.parametrize("verb", ["complete", "fail", "release", "delete"])
def test_a_claim_that_a_verb_has_ended_serves_no_second_time(shape: Any, verb: str) -> None:
    row = claimed(shape)
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
        row.claim.complete()
        model.objects.reset(complete=True)
        lose_again = model.objects.claim_batch(1)
        row.note = "an ordinary save"
        row.save()
        assert fresh(row).note == "an ordinary save"
        assert lose_again[0].claim.check()

    def test_within_the_transaction_the_claim_has_ended(self, model: Any) -> None:
        row = claimed(model)
        with transaction.atomic():
            row.claim.complete()
            with pytest.raises(ClaimLost):
                row.claim.complete()
            row.note = "after its completion"
            row.save()
        assert (fresh(row).note, facts(row).status) == ("after its completion", "complete")

    def test_a_rollback_lets_the_token_stand_again(self, model: Any) -> None:
        row = claimed(model)
        with transaction.atomic():
            row.claim.complete()
            transaction.set_rollback(True)
        assert facts(row).status == "processing"
        assert row.claim.check()
        row.note = "second try"
        row.claim.complete(update_fields=["note"])
        assert (fresh(row).note, facts(row).status) == ("second try", "complete")

    def test_a_rolled_back_claim_is_fenced_again(self, model: Any) -> None:
        row = claimed(model)
        with transaction.atomic():
            row.claim.complete()
            transaction.set_rollback(True)
        lose(row)
        assert_refused(WRITES["save"], row)

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

    def test_a_delete_that_is_rolled_back_lets_the_token_stand_again(self, model: Any) -> None:
        row = claimed(model)
        key = row.pk
        with transaction.atomic():
            row.delete()
            transaction.set_rollback(True)
        row.pk = key
        assert row.claim.check()

    def test_a_hook_of_the_users_finds_the_instance_an_ordinary_one(self, model: Any) -> None:
        row = claimed(model)
        seen = []
        with transaction.atomic():
            transaction.on_commit(lambda: seen.append(row.claim.lost))
            row.claim.complete()
            transaction.on_commit(lambda: seen.append(row.claim.lost))
        assert seen == [True, True]

    def test_without_autocommit_a_rollback_lets_the_token_stand_again(self, model: Any) -> None:
        row = claimed(model)
        with autocommit_off():
            row.claim.complete()
            transaction.rollback()
        assert row.claim.check()
        row.claim.complete()
        assert facts(row).status == "complete"

    def test_without_autocommit_the_claim_has_ended_until_then(self, model: Any) -> None:
        row = claimed(model)
        with autocommit_off():
            row.claim.complete()
            with pytest.raises(ClaimLost):
                row.claim.complete()
            transaction.commit()
        assert facts(row).status == "complete"


def test_callbacks_that_testcase_captures_are_the_users_own(
    django_capture_on_commit_callbacks: Callable[..., Any],
) -> None:
    row = claimed(Photo)
    ran: list[str] = []
    transaction.on_commit(lambda: ran.append("before"))
    with django_capture_on_commit_callbacks(execute=True):
        transaction.on_commit(lambda: ran.append("inside"))
        row.complete()
    assert ran == ["inside"]
