"""No write through a lost claim ever lands, of one row or of several."""

from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from django_taskclaim.exceptions import ClaimLost
from tests.factories import make
from tests.querysets.late_writes import (
    LOSSES,
    USERS_WRITES,
    WRITES,
    assert_refused,
    claimed,
    twin,
)
from tests.querysets.models import GrandChild, HiddenFromAll, MixinFirst, MixinLast
from tests.querysets.support import execute, facts, fresh, lose, stored, table_of
from tests.testapp.models import (
    Child,
    ChildOwnsClaim,
    CompositeKey,
    HiddenRows,
    Photo,
    PhotoProxy,
    UuidKey,
)

pytestmark = [pytest.mark.django_db, pytest.mark.promise(3)]

TABLES = pytest.mark.parametrize("model", [Photo, Child, ChildOwnsClaim, CompositeKey])
INHERITING = pytest.mark.parametrize("model", [Child, ChildOwnsClaim, GrandChild])


# One row


@pytest.mark.parametrize("loss", LOSSES)
@TABLES
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


#: The state in which each write leaves its row; None where it is gone.
LEAVES = {
    "complete": "complete",
    "complete with results": "complete",
    "fail": "open",
    "fail for good": "failed",
    "release": "open",
    "release with delay": "open",
    "delete": None,
}


def test_every_write_lands_while_the_claim_stands(shape: Any) -> None:
    make(shape, len(WRITES))
    rows = shape.objects.claim_batch(len(WRITES))
    for (name, write), row in zip(WRITES.items(), rows, strict=True):
        row.note, key, token = "in time", row.pk, row.claim.token
        write(row)
        after = stored(row, key)
        assert bool(after) is (name != "delete")
        if after:
            assert facts(row).status == LEAVES.get(name, "processing"), name
            stores_note = name in (*USERS_WRITES, "complete with results")
            assert (fresh(row).note == "in time") is stores_note, name
        if name in (*USERS_WRITES, "renew"):
            assert row.claim.check()
            assert (facts(row).claimed_by, facts(row).iteration) == token


@pytest.mark.parametrize("model", [Photo, PhotoProxy, UuidKey])
@pytest.mark.parametrize("how", ["save", "force_insert", "bulk_create", "upsert"])
@pytest.mark.parametrize("ended", [True, False])
def test_an_instance_that_was_claimed_never_inserts_its_own_key(
    model: Any, how: str, ended: bool
) -> None:
    """Otherwise ``row.complete(); row.save()`` under the policy "delete" would loop for ever."""
    row = claimed(model)
    if ended:
        row.claim.complete()
    model._base_manager.filter(pk=row.pk).delete()
    with pytest.raises(ClaimLost), transaction.atomic():
        insert(row, how)
    assert not model._base_manager.exists()


def insert(row: Any, how: str) -> None:
    manager = type(row).objects
    if how == "save":
        row.save()
    elif how == "force_insert":
        row.save(force_insert=True)
    elif how == "bulk_create":
        manager.bulk_create([row])
    else:
        unique = {"unique_fields": ["pk"]} if connection.vendor != "mysql" else {}
        manager.bulk_create([row], update_conflicts=True, update_fields=["note"], **unique)


def test_an_upsert_of_a_lost_instance_changes_nothing() -> None:
    late = claimed(Photo)
    lose(late)
    before = stored(late)
    late.note = "late"
    with pytest.raises(ClaimLost), transaction.atomic():
        insert(late, "upsert")
    assert stored(late) == before


def test_a_key_given_as_text_is_fenced_like_the_number_it_spells() -> None:
    late = claimed(Photo)
    lose(late)
    late.pk = str(late.pk)
    before = stored(late)
    late.note = "late"
    with pytest.raises(ClaimLost), transaction.atomic():
        late.save()
    assert stored(late) == before


def test_a_save_that_changes_nothing_is_no_loss(shape: Any) -> None:
    row = claimed(shape)
    row.save()
    row.save()
    row.save(update_fields=["note"])
    row.claim.complete()


@pytest.mark.skipif(connection.vendor != "mysql", reason="counts rows found, in every client")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("model", [Photo, CompositeKey])
def test_a_connection_that_counts_only_changed_rows_reports_no_false_loss(model: Any) -> None:
    """``client_flag`` in OPTIONS replaces Django's own, and an UPDATE to equal values then counts 0."""
    options = connection.settings_dict["OPTIONS"]
    connection.close()
    options["client_flag"] = 0
    try:
        row = claimed(model, lease=60)
        assert execute(f"UPDATE {table_of(model)} SET note = note") == 0
        row.save()
        assert row.claim.renew(lease=1)
        assert row.claim.renew(lease=1)
        row.claim.complete()
    finally:
        del options["client_flag"]
        connection.close()
    assert facts(row).status == "complete"


# Inherited tables, and bases of other packages


@INHERITING
@pytest.mark.parametrize("columns", [["extra"], ["note"], ["extra", "note"], None])
def test_a_save_of_columns_on_either_table_is_fenced(model: Any, columns: Any) -> None:
    row = claimed(model)
    late = [twin(row), twin(row)]
    row.extra = row.note = "in time"
    row.save(update_fields=columns)
    again = fresh(row)
    written = [
        "in time" if columns is None or name in columns else "" for name in ("extra", "note")
    ]
    assert [again.extra, again.note] == written
    lose(row)
    before = stored(row)
    for one in late:
        one.extra = one.note = "late"
    with pytest.raises(ClaimLost), transaction.atomic():
        late[0].save(update_fields=columns)
    with pytest.raises(ClaimLost):
        model.objects.bulk_update([late[1]], columns or ["extra", "note"])
    assert stored(row) == before


@INHERITING
@pytest.mark.parametrize("ended", [True, False])
def test_an_inheriting_instance_never_inserts_a_key_it_had_claimed(model: Any, ended: bool) -> None:
    row = claimed(model)
    if ended:
        row.claim.complete()
    model._base_manager.filter(pk=row.pk).delete()
    # Where the claim has ended, Django itself may notice first that the parent's row is gone.
    with pytest.raises((ClaimLost, DatabaseError)), transaction.atomic():
        row.save()
    assert not stored(row)


@pytest.mark.parametrize("model", [MixinFirst, MixinLast])
def test_a_base_whose_methods_take_arguments_of_their_own_is_fenced(model: Any) -> None:
    row = model(note="new")
    assert row.save(False, "zoe", using="default") == ("saved", False, "zoe")
    (row,) = model.objects.claim_batch(1)
    assert row.save(user="zoe", update_fields=["note"]) == ("saved", True, "zoe")
    late = twin(row)
    assert row.delete("reason", user="zoe") == ("deleted", ("reason",), "zoe", {})
    with pytest.raises(ClaimLost):
        row.claim.complete()
    with pytest.raises(ClaimLost), transaction.atomic():
        late.save(False, "zoe")
    late = claimed(model)
    lose(late)
    before = stored(late)
    with pytest.raises(ClaimLost):
        late.delete()
    assert stored(late) == before


# Rows that managers hide


def test_rows_that_the_default_manager_hides_while_they_run_are_not_lost() -> None:
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


def test_a_row_that_its_base_manager_hides_is_written_and_fenced() -> None:
    row = claimed(HiddenFromAll)
    HiddenFromAll.everything.update(hidden=True)
    row.hidden = True
    late = {name: twin(row) for name in WRITES}
    for name in USERS_WRITES:
        row.note = name
        WRITES[name](row)
        assert HiddenFromAll.everything.get().note == name
    row.refresh_from_db()
    row.complete()
    row.note = "after"
    row.save()
    assert HiddenFromAll.everything.get().note == "after"
    HiddenFromAll.everything.reset(complete=True)
    for name, instance in late.items():
        assert_refused(name, instance)


# Several rows


@pytest.mark.parametrize("verb", ["complete", "fail", "release", "renew", "hand_over"])
@TABLES
def test_a_verb_over_several_claims_writes_rows_still_held_and_names_the_others(
    model: Any, verb: str
) -> None:
    make(model, 5)
    rows = [*model.objects.claim_batch(3), *model.objects.claim_batch(2)]
    for number in (1, 3):
        lose_among(rows[number])
    before = [stored(row) for row in rows]
    arguments = {"fail": {"error": "boom"}, "hand_over": {"to": "user:2"}, "renew": {"lease": 999}}
    with pytest.raises(ClaimLost) as lost:
        getattr(model.objects, verb)(rows, **arguments.get(verb, {}))
    assert lost.value.lost == [rows[1], rows[3]]
    assert set(lost.value.written) == {rows[0], rows[2], rows[4]}
    unchanged = [stored(row) == old for row, old in zip(rows, before, strict=True)]
    assert unchanged == [False, True, False, True, False]


def lose_among(row: Any) -> Any:
    """Take one row of several away: put back by an operator, and claimed by somebody."""
    row_alone = type(row)._default_manager.filter(pk=row.pk)
    row_alone.reset(running=True)
    (taken,) = row_alone.claim_batch(1)
    assert taken.pk == row.pk
    return taken


def test_a_row_that_was_lost_and_claimed_again_is_written_by_its_new_token_alone() -> None:
    make(Photo, 3)
    late, *others = Photo.objects.claim_batch(3)
    again = lose_among(late)
    late.url, again.url = "late", "again"
    with pytest.raises(ClaimLost) as caught:
        Photo.objects.complete([late, again, *others], update_fields=["url"])
    assert caught.value.lost == [late]
    assert (fresh(again).url, fresh(again).status) == ("again", "complete")


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


def test_rows_of_several_models_may_be_given_together_whatever_the_queryset_filters() -> None:
    make(Photo, 3)
    rows = [*Photo.objects.claim_batch(1), *Photo.objects.claim_batch(2), claimed(UuidKey)]
    assert Photo.objects.filter(country="ZZ").complete(rows) == 4
    assert {facts(row).status for row in rows} == {"complete"}


@pytest.mark.parametrize("verb", ["complete", "fail", "release", "renew", "hand_over"])
@pytest.mark.parametrize("model", [Photo, Child])
def test_two_instances_of_one_claim_are_one_row(model: Any, verb: str) -> None:
    make(model, 2)
    row, other = model.objects.claim_batch(2)
    again = model.objects.with_token(row.pk, row.claim.token)
    arguments = {"fail": {"error": "no"}, "hand_over": {"to": "user:2"}, "renew": {"lease": 3600}}
    assert getattr(model.objects, verb)([row, again, other], **arguments.get(verb, {})) == 2
    assert row.status == again.status == facts(row).status
    assert facts(row).attempts == (verb == "fail")
    for one in (row, again):
        if verb == "renew":
            assert one.claim.check()
        else:
            with pytest.raises(ClaimLost):
                one.claim.check()


# The caller's transaction


@pytest.mark.parametrize("model", [Photo, Child])
def test_a_loss_leaves_the_callers_transaction_usable(model: Any) -> None:
    """It does so for the verbs, ``delete()`` and ``bulk_update()``."""
    row = claimed(model)
    late = {name: twin(row) for name in WRITES if "save" not in name and name != "force_update"}
    lose(row)
    for name, instance in late.items():
        with transaction.atomic():
            with pytest.raises(ClaimLost):
                WRITES[name](instance)
            (other,) = make(model, note=name)
        assert fresh(other).note == name


def test_a_lost_save_makes_the_callers_transaction_roll_back() -> None:
    """A multi-table save may have written the parent by then, so nothing of the transaction may stay."""
    late = claimed(Photo)
    lose(late)

    def request() -> None:
        with transaction.atomic():
            Photo.objects.create(note="not to stay")
            late.save()

    with pytest.raises(ClaimLost):
        request()
    assert not Photo.objects.filter(note="not to stay").exists()
