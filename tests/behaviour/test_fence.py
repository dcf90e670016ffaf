"""No write made through a lost claim ever lands, and the token is kept where nothing else writes."""

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.states import Token
from tests.behaviour.support import execute, facts, fresh, lose, names, stored, table_of
from tests.factories import make
from tests.testapp.models import (
    Child,
    ChildOwnsClaim,
    CompositeKey,
    HiddenRows,
    Photo,
    PhotoProxy,
    UuidKey,
)

pytestmark = pytest.mark.django_db

Write = Callable[[Any], Any]


def in_savepoint(write: Write) -> Write:
    """``save()`` of a lost claim asks for a rollback, so it gets a savepoint to roll back to."""

    def guarded(row: Any) -> None:
        with transaction.atomic():
            write(row)

    return guarded


WRITES: dict[str, Write] = {
    "complete": lambda row: row.claim.complete(),
    "complete with results": lambda row: row.claim.complete(update_fields=["note"]),
    "fail": lambda row: row.claim.fail("late"),
    "fail for good": lambda row: row.claim.fail("late", retry=False),
    "release": lambda row: row.claim.release(),
    "release with delay": lambda row: row.claim.release(delay=60),
    "renew": lambda row: row.claim.renew(),
    "save": in_savepoint(lambda row: row.save()),
    "save one column": in_savepoint(lambda row: row.save(update_fields=["note"])),
    "force_update": in_savepoint(lambda row: row.save(force_update=True)),
    "delete": lambda row: row.delete(),
    "bulk_update": lambda row: type(row).objects.bulk_update([row], ["note"]),
}


@pytest.fixture(params=WRITES)
def write(request: pytest.FixtureRequest) -> Write:
    return WRITES[request.param]


#: One of each kind of write, and of each kind of table, where all with all would only repeat itself.
KINDS = pytest.mark.parametrize("kind", ["complete", "renew", "save", "delete", "bulk_update"])
TABLES = pytest.mark.parametrize("model", [Photo, Child, ChildOwnsClaim, CompositeKey])


def claimed(model: Any, **options: Any) -> Any:
    make(model)
    (row,) = model.objects.claim_batch(1, **options)
    return row


def assert_refused(write: Write, row: Any) -> ClaimLost:
    """Assert that the write raises ClaimLost naming the row and leaves every column byte for byte."""
    before = stored(row)
    row.note, row.counter = "late", 99
    with pytest.raises(ClaimLost) as lost:
        write(row)
    assert lost.value.lost == [row]
    assert repr(row.pk) in str(lost.value)
    assert stored(row) == before
    return lost.value


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


# Never an INSERT


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("how", ["save", "force_insert", "bulk_create", "upsert"])
@pytest.mark.parametrize("model", [Photo, PhotoProxy, UuidKey])
def test_an_instance_that_was_claimed_never_inserts_its_own_key(
    model: Any, how: str, ended: bool
) -> None:
    """``row.complete(); row.save()`` under the policy "delete" would loop for ever."""
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


def test_an_upsert_of_a_claimed_instance_does_not_pass_the_fence() -> None:
    late = claimed(Photo)
    lose(late)
    before = stored(late)
    late.note = "late"
    with pytest.raises(ClaimLost), transaction.atomic():
        insert(late, "upsert")
    assert stored(late) == before


@pytest.mark.parametrize("model", [Child, ChildOwnsClaim])
@pytest.mark.parametrize("ended", [True, False])
def test_an_inheriting_instance_never_inserts_a_key_it_had_claimed(model: Any, ended: bool) -> None:
    row = claimed(model)
    if ended:
        row.claim.complete()
    model._base_manager.filter(pk=row.pk).delete()
    # Of an ended claim Django itself may notice first that the parent's row is gone.
    with pytest.raises((ClaimLost, DatabaseError)), transaction.atomic():
        row.save()
    assert not stored(row)


# Inheritance, both ways


@pytest.mark.parametrize("model", [Child, ChildOwnsClaim])
@pytest.mark.parametrize("columns", [["extra"], ["note"], ["extra", "note"], None])
def test_a_late_save_of_any_columns_changes_neither_table(model: Any, columns: Any) -> None:
    late = claimed(model)
    lose(late)
    before = stored(late)
    late.extra = late.note = "late"
    with pytest.raises(ClaimLost), transaction.atomic():
        late.save(update_fields=columns)
    assert stored(late) == before


@pytest.mark.parametrize("model", [Child, ChildOwnsClaim])
@pytest.mark.parametrize("columns", [["extra"], ["note"], ["extra", "note"], None])
def test_a_save_in_time_writes_the_columns_named_on_both_tables(model: Any, columns: Any) -> None:
    row = claimed(model)
    row.extra = row.note = "in time"
    row.save(update_fields=columns)
    again = fresh(row)
    expected = [
        "in time" if columns is None or name in columns else "" for name in ("extra", "note")
    ]
    assert [again.extra, again.note] == expected


@pytest.mark.parametrize("model", [Child, ChildOwnsClaim])
@pytest.mark.parametrize("column", ["extra", "note"])
def test_a_late_bulk_update_changes_neither_table(model: Any, column: str) -> None:
    late = claimed(model)
    lose(late)
    before = stored(late)
    setattr(late, column, "late")
    with pytest.raises(ClaimLost):
        model.objects.bulk_update([late], [column])
    assert stored(late) == before


def test_a_key_given_as_text_is_fenced_like_the_number_it_spells() -> None:
    late = claimed(Photo)
    lose(late)
    before = stored(late)
    late.pk, late.note = str(late.pk), "late"
    with pytest.raises(ClaimLost), transaction.atomic():
        late.save()
    assert stored(late) == before


def test_a_save_that_changes_nothing_is_no_loss(shape: Any) -> None:
    row = claimed(shape)
    row.save()
    row.save()
    row.save(update_fields=["note"])
    row.claim.complete()


@pytest.mark.skipif(
    connection.vendor != "mysql", reason="counts rows found, whatever a client asks"
)
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("model", [Photo, CompositeKey])
def test_a_connection_that_counts_changed_rows_only_reports_no_false_loss(model: Any) -> None:
    """``client_flag`` in OPTIONS takes away Django's own, and an UPDATE to equal values then counts 0.

    Multi-table children are left out: there Django itself takes 0 for a parent that must be inserted.
    """
    options = connection.settings_dict["OPTIONS"]
    connection.close()
    options["client_flag"] = 0
    try:
        row = claimed(model, lease=60)
        assert execute(f"UPDATE {table_of(model)} SET note = note") == 0
        row.save()
        row.save(update_fields=["note"])
        assert row.claim.renew(lease=1)
        assert row.claim.renew(lease=1)
        row.claim.complete()
    finally:
        del options["client_flag"]
        connection.close()
    assert facts(row).status == "complete"
