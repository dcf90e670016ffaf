"""No write made through a lost claim ever lands, of one row or of several."""

from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_taskclaim.exceptions import ClaimLost
from tests.behaviour.late_writes import TABLES, USERS_WRITES, WRITES, Write, assert_refused, claimed
from tests.behaviour.models import HiddenFromAll, HiddenFromAllChild
from tests.behaviour.support import facts, fresh, lose, stored
from tests.factories import make
from tests.testapp.models import Child, ChildOwnsClaim, HiddenRows, Photo, UuidKey

pytestmark = pytest.mark.django_db


@pytest.fixture(params=WRITES)
def write(request: pytest.FixtureRequest) -> Write:
    return WRITES[request.param]


def test_a_late_write_changes_nothing_once_another_holds_the_row(shape: Any, write: Write) -> None:
    late = claimed(shape)
    lose(late)
    error = assert_refused(write, late)
    assert str(late.claim.token) in str(error)


@TABLES
def test_a_late_write_changes_nothing_once_the_row_is_open_again(model: Any, write: Write) -> None:
    late = claimed(model)
    model.objects.reset(running=True)
    assert_refused(write, late)


@TABLES
def test_a_late_write_changes_nothing_once_the_row_is_complete(model: Any, write: Write) -> None:
    late = claimed(model)
    lose(late).claim.complete()
    assert_refused(write, late)


@pytest.mark.parametrize("model", [Photo, Child, ChildOwnsClaim, UuidKey])
def test_the_same_holder_claiming_again_does_not_revive_an_old_token(
    model: Any, write: Write
) -> None:
    late = claimed(model, claimed_by="user:1")
    lose(late, to="user:1")
    assert_refused(write, late)


@pytest.mark.parametrize("model", [Photo, Child, ChildOwnsClaim, UuidKey])
def test_nothing_inserts_a_row_that_has_gone(model: Any, write: Write) -> None:
    late = claimed(model)
    key = late.pk
    model._base_manager.filter(pk=key).delete()
    assert not stored(late)
    with pytest.raises(ClaimLost):
        write(late)
    assert not stored(late, key)


def test_the_token_stands_for_every_write_while_the_claim_does(shape: Any, write: Write) -> None:
    row = claimed(shape)
    row.note = "in time"
    write(row)


def test_a_save_of_a_claimed_row_writes_the_users_columns_only(shape: Any) -> None:
    row = claimed(shape)
    before = facts(row)
    row.note, row.counter = "in time", 7
    row.save()
    assert (fresh(row).note, fresh(row).counter) == ("in time", 7)
    assert facts(row) == before
    row.claim.complete()


def test_deleting_a_claimed_row_ends_its_claim(shape: Any) -> None:
    row = claimed(shape)
    key = row.pk
    row.delete()
    row.pk = key
    assert not stored(row)
    with pytest.raises(ClaimLost):
        row.claim.complete()


# Several rows


@pytest.mark.parametrize("model", [HiddenFromAll, HiddenFromAllChild])
def test_a_row_that_its_base_manager_hides_is_written(model: Any, write: Write) -> None:
    row = hidden_after_claim(model)
    row.note = "in time"
    write(row)
    if write in (WRITES[name] for name in USERS_WRITES):
        again = model.everything.get(pk=row.pk)
        assert (again.note, again.claimed_by) == ("in time", row.claim.token.holder)
        assert row.claim.check()


@pytest.mark.parametrize("model", [HiddenFromAll, HiddenFromAllChild])
def test_a_late_write_of_a_row_that_its_base_manager_hides_changes_nothing(
    model: Any, write: Write
) -> None:
    late = hidden_after_claim(model)
    model.everything.reset(running=True)
    assert_refused(write, late)


@pytest.mark.parametrize("model", [HiddenFromAll, HiddenFromAllChild])
def test_a_row_that_its_base_manager_hides_can_be_read_and_saved_once_it_is_done(
    model: Any,
) -> None:
    row = hidden_after_claim(model)
    row.refresh_from_db()
    assert row.hidden
    row.complete()
    assert row.completed_at
    row.note = "after"
    row.save()
    assert model.everything.get(pk=row.pk).note == "after"


def hidden_after_claim(model: Any) -> Any:
    row = claimed(model)
    model.everything.update(hidden=True)
    row.hidden = True
    return row


@pytest.mark.parametrize("verb", ["complete", "fail", "release", "renew"])
def test_a_verb_over_several_rows_writes_those_still_held_and_names_the_others(
    shape: Any, verb: str
) -> None:
    make(shape, 4)
    rows = shape.objects.claim_batch(4)
    for number in (1, 3):
        lose_among(rows[number])
    before = [stored(row) for row in rows]
    arguments = ["boom"] if verb == "fail" else []
    with pytest.raises(ClaimLost) as lost:
        getattr(shape.objects, verb)(rows, *arguments)
    assert lost.value.lost == [rows[1], rows[3]]
    assert {row.pk for row in lost.value.written} == {rows[0].pk, rows[2].pk}
    after = [stored(row) for row in rows]
    assert [one == other for one, other in zip(before, after, strict=True)] == [
        False,
        True,
        False,
        True,
    ]


def lose_among(row: Any) -> None:
    """Take one row of several away: put back by an operator, and claimed by somebody."""
    type(row)._default_manager.filter(pk=row.pk).reset(running=True)
    (taken,) = type(row)._default_manager.filter(pk=row.pk).claim_batch(1)
    assert taken.pk == row.pk


def test_a_bulk_update_with_one_lost_row_writes_none() -> None:
    make(Photo, 3)
    rows = Photo.objects.claim_batch(3)
    lose_among(rows[1])
    before = [stored(row) for row in rows]
    for row in rows:
        row.note = "late"
    with pytest.raises(ClaimLost) as lost:
        Photo.objects.bulk_update(rows, ["note"])
    assert lost.value.lost == [rows[1]]
    assert [stored(row) for row in rows] == before


def test_a_bulk_update_locks_the_claims_of_a_batch_by_one_statement(
    django_assert_num_queries: Any,
) -> None:
    make(Photo, 40)
    rows = [*Photo.objects.claim_batch(20), *Photo.objects.claim_batch(20)]
    with CaptureQueriesContext(connection) as few:
        Photo.objects.bulk_update([rows[0], rows[20]], ["note"])
    with django_assert_num_queries(len(few)):
        Photo.objects.bulk_update(rows, ["note"])


def test_rows_of_several_models_and_tokens_may_be_given_together() -> None:
    make(Photo, 3)
    rows = [*Photo.objects.claim_batch(1), *Photo.objects.claim_batch(2), claimed(UuidKey)]
    assert Photo.objects.complete(rows) == 4
    assert {facts(row).status for row in rows} == {"complete"}


def test_a_verb_given_rows_ignores_the_filters_of_the_queryset() -> None:
    row = claimed(Photo)
    assert Photo.objects.filter(country="ZZ").complete(row) == 1


def test_rows_hidden_by_the_default_manager_while_they_run_are_not_lost() -> None:
    make(HiddenRows, 6)
    rows = HiddenRows.objects.claim_batch(6)
    HiddenRows.everything.update(hidden=True)
    assert not HiddenRows.objects.exists()
    assert HiddenRows.objects.renew(rows) == 6
    rows[0].complete(update_fields=["note"])
    rows[1].fail("bad")
    rows[2].release()
    rows[3].note = "saved"
    rows[3].save()
    assert rows[4].claim.check()
    assert rows[5].delete()[0] == 1


@pytest.mark.parametrize("rows", [[object()], ["text"], [None]])
def test_what_is_no_row_is_a_type_error(rows: Any) -> None:
    with pytest.raises(TypeError):
        Photo.objects.complete(rows)


# The caller's transaction


@pytest.mark.parametrize(
    "name",
    ["complete", "complete with results", "fail", "release", "renew", "delete", "bulk_update"],
)
def test_a_loss_leaves_the_callers_transaction_usable(shape: Any, name: str) -> None:
    make(shape)
    late = claimed_late(shape)
    with transaction.atomic():
        with pytest.raises(ClaimLost):
            WRITES[name](late)
        (other,) = make(shape, note="written after the loss")
    assert fresh(other).note == "written after the loss"


def claimed_late(model: Any) -> Any:
    rows = model.objects.claim_batch(1)
    lose_among(rows[0])
    return rows[0]


def test_a_lost_save_makes_the_callers_transaction_roll_back() -> None:
    """Multi-table saves may have written the parent by then, so nothing of the transaction may stay."""
    late = claimed(Photo)
    lose(late)

    def request() -> None:
        with transaction.atomic():
            Photo.objects.create(note="not to stay")
            late.save()

    with pytest.raises(ClaimLost):
        request()
    assert not Photo.objects.filter(note="not to stay").exists()
