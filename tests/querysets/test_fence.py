"""No write through a lost claim ever lands, of one row or of several."""

from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_taskclaim.exceptions import ClaimLost
from tests.factories import make, make_claimed
from tests.querysets.late_writes import LOSSES, USERS_WRITES, WRITES, assert_refused, claimed, twin
from tests.querysets.models import GrandChild, HiddenFromAll
from tests.querysets.support import facts, fresh, lose, stored
from tests.testapp.models import Child, ChildOwnsClaim, ChildProxy, CompositeKey, Photo, UuidKey

pytestmark = [pytest.mark.django_db, pytest.mark.promise(3)]


# One row


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("model", [Photo, ChildOwnsClaim])
def test_a_late_write_changes_nothing(model: Any, loss: str) -> None:
    """Each write is tried by an instance of its own that has not heard of the loss."""
    row = claimed(model, claimed_by="user:1")
    late = {name: twin(row) for name in WRITES}
    LOSSES[loss](row)
    for name, instance in late.items():
        error = assert_refused(name, instance)
        assert str(row.claim.token) in str(error)


def test_a_late_write_to_any_table_changes_nothing_while_another_holds_the_row(shape: Any) -> None:
    row = claimed(shape)
    late = {name: twin(row) for name in WRITES}
    current = lose(row)
    for name, instance in late.items():
        assert_refused(name, instance)
    assert current.claim.check()


def test_every_write_lands_while_the_claim_stands(shape: Any) -> None:
    rows = make_claimed(shape, len(WRITES))
    for (name, write), row in zip(WRITES.items(), rows, strict=True):
        # A save that changes nothing is no loss.
        row.save()
        row.note, key, token = "in time", row.pk, row.claim.token
        write(row)
        after = stored(row, key)
        assert bool(after) is (name != "delete")
        if after:
            stores_note = name in (*USERS_WRITES, "complete with results")
            assert (fresh(row).note == "in time") is stores_note, name
        if name in (*USERS_WRITES, "renew"):
            assert row.claim.check()
            assert (facts(row).claimed_by, facts(row).iteration) == token


def upsert(row: Any) -> None:
    unique = {"unique_fields": ["pk"]} if connection.vendor != "mysql" else {}
    manager = type(row).objects
    manager.bulk_create([row], update_conflicts=True, update_fields=["note"], **unique)


INSERTS: list[Any] = [
    lambda row: row.save(),
    lambda row: row.save(force_insert=True),
    lambda row: type(row).objects.bulk_create([row]),
    upsert,
]


@pytest.mark.parametrize("model", [Photo, UuidKey, Child, ChildOwnsClaim])
@pytest.mark.parametrize("ended", [True, False])
def test_an_instance_that_was_claimed_never_inserts_its_own_key(model: Any, ended: bool) -> None:
    """Otherwise ``row.complete(); row.save()`` under the policy "delete" would loop for ever."""
    row = claimed(model)
    if ended:
        row.claim.complete()
    model._base_manager.filter(pk=row.pk).delete()
    inherits = bool(model._meta.parents)
    for insert in INSERTS[:1] if inherits else INSERTS:
        # Where the claim has ended, Django itself may notice first that the parent's row is gone.
        error = DatabaseError if inherits and ended else ClaimLost
        with pytest.raises((ClaimLost, error)), transaction.atomic():
            insert(row)
        assert not stored(row)


def test_an_upsert_and_a_key_given_as_text_are_fenced_as_well() -> None:
    late = claimed(Photo)
    lose(late)
    before = stored(late)
    late.note = "late"
    for key, write in ((late.pk, upsert), (str(late.pk), Photo.save)):
        late.pk = key
        with pytest.raises(ClaimLost), transaction.atomic():
            write(late)
        assert stored(late) == before


def test_a_uuid_given_as_text_without_hyphens_names_the_same_row() -> None:
    late = claimed(UuidKey)
    lose(late)
    late.pk = late.pk.hex
    with pytest.raises(ClaimLost):
        late.save()


# Inherited tables, and rows that managers hide


@pytest.mark.parametrize("model", [GrandChild, ChildOwnsClaim])
@pytest.mark.parametrize("columns", [["extra"], ["note"], None])
def test_a_save_of_columns_on_either_table_is_fenced(model: Any, columns: Any) -> None:
    row = claimed(model)
    late = [twin(row), twin(row)]
    row.extra = row.note = "in time"
    row.save(update_fields=columns)
    again = fresh(row)
    for name in ("extra", "note"):
        assert getattr(again, name) == ("in time" if name in (columns or [name]) else "")
    lose(row)
    before = stored(row)
    for one in late:
        one.extra = one.note = "late"
    with pytest.raises(ClaimLost), transaction.atomic():
        late[0].save(update_fields=columns)
    with pytest.raises(ClaimLost):
        model.objects.bulk_update([late[1]], columns or ["extra", "note"])
    assert stored(row) == before


def test_bulk_update_takes_two_instances_of_one_claimed_row() -> None:
    row = claimed(Photo)
    other = twin(row)
    row.note = other.note = "once"
    Photo.objects.bulk_update([row, other], ["note"])
    assert fresh(row).note == "once"


def test_rows_that_even_the_base_manager_hides_while_they_run_are_written_and_fenced() -> None:
    rows = make_claimed(HiddenFromAll, 6)
    late = {name: twin(rows[0]) for name in WRITES}
    HiddenFromAll.everything.update(hidden=True)
    rows[0].hidden = True
    assert HiddenFromAll.objects.renew(rows) == 6
    for name in USERS_WRITES:
        rows[0].note = name
        WRITES[name](rows[0])
        assert HiddenFromAll.everything.get(pk=rows[0].pk).note == name
    rows[0].refresh_from_db()
    rows[0].complete(update_fields=["note"])
    rows[0].save()
    rows[1].fail("bad")
    rows[2].release()
    assert rows[3].claim.check()
    assert rows[4].delete()[0] == 1
    HiddenFromAll.everything.filter(pk=rows[0].pk).reset(complete=True)
    for name, instance in late.items():
        assert_refused(name, instance)


# Several rows

ARGUMENTS: dict[str, dict[str, Any]] = {
    "complete": {},
    "fail": {"error": "boom"},
    "release": {},
    "renew": {"lease": 3600},
    "hand_over": {"to": "user:2"},
}


@pytest.mark.parametrize("verb", ARGUMENTS)
@pytest.mark.parametrize("model", [Photo, Child, CompositeKey])
def test_a_verb_writes_the_rows_still_held_and_names_the_others(model: Any, verb: str) -> None:
    make(model, 5)
    rows = [*model.objects.claim_batch(3), *model.objects.claim_batch(2)]
    for number in (1, 3):
        lose_among(rows[number])
    before = [stored(row) for row in rows]
    with pytest.raises(ClaimLost) as lost:
        getattr(model.objects, verb)(rows, **ARGUMENTS[verb])
    assert lost.value.lost == [rows[1], rows[3]]
    assert set(lost.value.written) == {rows[0], rows[2], rows[4]}
    unchanged = [stored(row) == old for row, old in zip(rows, before, strict=True)]
    assert unchanged == [False, True, False, True, False]


@pytest.mark.django_db(transaction=True)
def test_of_two_claims_in_one_statement_only_the_lost_one_is_named() -> None:
    make(Photo, 2)
    rows = [row for _ in range(2) for row in Photo.objects.claim_batch(1)]
    lose_among(rows[0])
    with pytest.raises(ClaimLost) as lost:
        Photo.objects.release(rows)
    assert (lost.value.lost, lost.value.written) == ([rows[0]], [rows[1]])


def lose_among(row: Any) -> Any:
    """Take one row of several away: put back by an operator, and claimed by somebody."""
    row_alone = type(row)._default_manager.filter(pk=row.pk)
    row_alone.reset(running=True)
    (taken,) = row_alone.claim_batch(1)
    assert taken.pk == row.pk
    return taken


@pytest.mark.parametrize("verb", ["complete", "fail", "renew"])
def test_two_instances_of_one_claim_are_one_row(verb: str) -> None:
    row, other = make_claimed(Photo, 2)
    again = Photo.objects.with_token(row.pk, row.claim.token)
    assert getattr(Photo.objects, verb)([row, again, other], **ARGUMENTS[verb]) == 2
    assert row.status == again.status == facts(row).status
    assert facts(row).attempts == (verb == "fail")
    if verb != "renew":
        with pytest.raises(ClaimLost):
            again.claim.check()


def test_a_claim_that_was_rolled_back_is_not_taken_for_the_next_holders() -> None:
    """Both are of one iteration, and the next holder has another row in the same statement."""
    make(Photo, 2)
    with transaction.atomic():
        (provisional, _) = Photo.objects.claim_batch(2, durable=False)
        transaction.set_rollback(True)
    again, other = Photo.objects.claim_batch(2)
    assert (again.pk, again.iteration) == (provisional.pk, provisional.iteration)
    with pytest.raises(ClaimLost) as caught:
        Photo.objects.complete([provisional, other])
    assert caught.value.lost == [provisional]
    again.claim.complete()


# The caller's transaction


@pytest.mark.parametrize("model", [Photo, Child])
def test_a_loss_leaves_the_callers_transaction_usable_unless_save_found_it(model: Any) -> None:
    """A multi-table save may have written the parent by then, so nothing of the transaction may stay."""
    row = claimed(model)
    late = {name: twin(row) for name in WRITES if "save" not in name and name != "force_update"}
    lose(row)
    for name, instance in late.items():
        with transaction.atomic():
            with pytest.raises(ClaimLost):
                WRITES[name](instance)
            (other,) = make(model, note=name)
        assert fresh(other).note == name

    def request() -> None:
        with transaction.atomic():
            make(model, note="not to stay")
            row.save()

    with pytest.raises(ClaimLost):
        request()
    assert not model.objects.filter(note="not to stay").exists()


@pytest.mark.promise(3)
@pytest.mark.parametrize("model", [ChildOwnsClaim, ChildProxy])
def test_a_late_save_over_two_tables_writes_neither(model: Any) -> None:
    """The token is locked first: a parent that is written before could deadlock with the holder that follows."""
    make(ChildOwnsClaim)
    (row,) = model.objects.claim_batch(1)
    model.objects.take_back()
    row.note = "late"
    with CaptureQueriesContext(connection) as sent, pytest.raises(ClaimLost):
        row.save()
    assert "late" not in str(sent.captured_queries)
