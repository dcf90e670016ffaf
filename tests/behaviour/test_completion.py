"""Completion policies: what becomes of a row that is done, in the transaction that checks its claim."""

import datetime
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from django.db import IntegrityError, connection, models, transaction
from django.db.models.signals import post_delete, pre_delete
from django.test.utils import CaptureQueriesContext

from django_taskclaim.completion import Archive, Clear, Delete, as_completion
from django_taskclaim.exceptions import ClaimLost, TaskClaimError
from django_taskclaim.signals import rows_completed
from tests.behaviour.models import (
    Back,
    ChildArchive,
    Complaint,
    CompositeArchive,
    Front,
    GrandChild,
    Parcel,
    ParcelArchive,
    Receipt,
    Sheet,
    Stamp,
)
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
from tests.testapp.models import (
    Child,
    ChildOwnsClaim,
    ClaimOnly,
    CompositeKey,
    Parent,
    Photo,
    PlainParent,
)

pytestmark = pytest.mark.django_db

Rule = Callable[..., None]

#: One of each way to delete.
DELETES = [Delete(), Delete(cascade=True)]


def claimed(model: Any, n: int, **values: Any) -> list[Any]:
    """Make *n* rows and return them claimed, in the order of their making."""
    made = make(model, n, **values)
    rows = {row.pk: row for row in model.objects.claim_batch(n)}
    return [rows[row.pk] for row in made]


def gone(row: Any, key: Any) -> bool:
    """Say whether nothing of the row is left on any of its tables."""
    return not stored(row, key)


def refused(rows: list[Any], lost: list[Any]) -> None:
    """Complete *rows* of one model, of which the claims of *lost* do not stand."""
    with pytest.raises(ClaimLost) as caught:
        type(rows[0]).objects.complete(rows)
    assert caught.value.lost == lost
    assert set(caught.value.written) == {row for row in rows if row not in lost}


# Deleting


@pytest.mark.parametrize("how", DELETES, ids=["plain", "cascade"])
def test_what_is_done_is_gone(shape: Any, how: Delete, rule: Rule) -> None:
    """From every table that has a part of the row; others stay."""
    rule(shape, completion=how)
    rows = claimed(shape, 3)
    keys = [row.pk for row in rows]
    (other,) = make(shape)
    assert shape.objects.complete(rows) == 3
    assert all(gone(row, key) for row, key in zip(rows, keys, strict=True))
    assert stored(other)
    assert [row.pk for row in rows] == keys


@pytest.mark.parametrize("how", DELETES, ids=["plain", "cascade"])
def test_a_lost_claim_deletes_nothing(shape: Any, how: Delete, rule: Rule) -> None:
    rule(shape, completion=how)
    rows = claimed(shape, 3)
    lose(rows[1])
    before = stored(rows[1])
    refused(rows, [rows[1]])
    assert stored(rows[1]) == before
    assert gone(rows[0], rows[0].pk)
    assert gone(rows[2], rows[2].pk)


def test_a_batch_is_deleted_by_one_statement(rule: Rule) -> None:
    rule(Photo, completion="delete")
    rows = claimed(Photo, 20)
    holder = rows[0].claim.token.holder
    with CaptureQueriesContext(connection) as sent:
        Photo.objects.complete(rows)
    deletes = [query["sql"] for query in sent if query["sql"].startswith("DELETE")]
    assert len(deletes) == 1
    assert holder in deletes[0]


@pytest.mark.parametrize("how", DELETES, ids=["plain", "cascade"])
@pytest.mark.parametrize("model", [Photo, Child, CompositeKey])
def test_a_deletion_that_is_rolled_back_leaves_the_claim(
    model: Any, how: Delete, rule: Rule
) -> None:
    rule(model, completion=how)
    (row,) = claimed(model, 1)
    before = stored(row)
    with transaction.atomic():
        row.claim.complete()
        assert gone(row, row.pk)
        transaction.set_rollback(True)
    assert stored(row) == before
    row.claim.complete()
    assert gone(row, row.pk)


@pytest.mark.parametrize("how", DELETES, ids=["plain", "cascade"])
@pytest.mark.parametrize("model", [Photo, Child, ChildOwnsClaim, CompositeKey])
def test_an_instance_whose_row_is_gone_never_comes_back(
    model: Any, how: Delete, rule: Rule
) -> None:
    """It would be open, be done and be saved again, for ever."""
    rule(model, completion=how)
    (row,) = claimed(model, 1)
    row.claim.complete()
    with pytest.raises(ClaimLost, match="never inserts its key"), transaction.atomic():
        row.save()
    assert not model.objects.exists()
    with pytest.raises(ClaimLost):
        row.claim.complete()


@pytest.mark.parametrize("how", DELETES, ids=["plain", "cascade"])
def test_children_go_with_the_parent_that_was_claimed(how: Delete, rule: Rule) -> None:
    rule(Parent, completion=how)
    (lonely,) = make(Parent)
    (child,) = make(Child)
    (grandchild,) = make(GrandChild)
    (kept,) = make(GrandChild, status="paused")
    rows = Parent.objects.claim_batch(3)
    Parent.objects.complete(rows)
    assert all(gone(row, row.pk) for row in (lonely, child, grandchild))
    assert stored(kept)


def test_a_child_goes_with_its_parents_and_its_own_children(rule: Rule) -> None:
    rule(Child, completion="delete")
    (grandchild,) = make(GrandChild)
    (row,) = Child.objects.claim_batch(1)
    row.claim.complete()
    assert gone(grandchild, grandchild.pk)


def test_a_parent_that_knows_nothing_of_claims_goes_too(rule: Rule) -> None:
    rule(ChildOwnsClaim, completion="delete")
    rows = claimed(ChildOwnsClaim, 2)
    ChildOwnsClaim.objects.complete(rows)
    assert not PlainParent.objects.exists()


@pytest.mark.parametrize("how", DELETES, ids=["plain", "cascade"])
def test_parents_under_other_keys_are_found(how: Delete, rule: Rule) -> None:
    rule(Sheet, completion=how)
    stays = Back.objects.create()
    (row,) = claimed(Sheet, 1)
    assert row.front_key != row.back_key
    Front.objects.create()
    row.claim.complete()
    assert not Sheet.objects.exists()
    assert list(Back.objects.all()) == [stays]
    assert Front.objects.count() == 1


def test_what_looks_at_the_row_keeps_it_without_cascade(transactional_db: None, rule: Rule) -> None:
    """The foreign key decides; nothing is lost, and the claim stands."""
    rule(Parcel, completion="delete")
    first, second = claimed(Parcel, 2)
    Stamp.objects.create(parcel=first)
    with pytest.raises(IntegrityError):
        Parcel.objects.complete([first, second])
    assert Parcel.objects.count() == 2
    assert first.claim.check()
    second.claim.complete()
    assert list(Parcel.objects.all()) == [first]


@pytest.fixture
def deletions() -> Iterator[list[Any]]:
    """Hear of each row of Parcel that Django deletes: before and after, and whether its claim was still there."""
    heard: list[Any] = []

    def before(sender: Any, instance: Any, **kwargs: Any) -> None:
        heard.append(("before", instance.pk, fresh(instance).status))

    def after(sender: Any, instance: Any, **kwargs: Any) -> None:
        heard.append(("after", instance.pk, None))

    pre_delete.connect(before, sender=Parcel)
    post_delete.connect(after, sender=Parcel)
    yield heard
    pre_delete.disconnect(before, sender=Parcel)
    post_delete.disconnect(after, sender=Parcel)


def test_cascade_follows_django(rule: Rule, deletions: list[Any]) -> None:
    """Collector, on_delete and signals, for the rows that were still held."""
    rule(Parcel, completion=Delete(cascade=True))
    held, passed_on = claimed(Parcel, 2)
    for row in (held, passed_on):
        Stamp.objects.create(parcel=row)
        Complaint.objects.create(parcel=row)
    lose(passed_on)
    refused([held, passed_on], [passed_on])
    assert list(Stamp.objects.values_list("parcel", flat=True)) == [passed_on.pk]
    assert set(Complaint.objects.values_list("parcel", flat=True)) == {None, passed_on.pk}
    assert deletions == [("before", held.pk, "processing"), ("after", held.pk, None)]


def test_what_is_protected_stays_claimed(rule: Rule) -> None:
    rule(Parcel, completion=Delete(cascade=True))
    (row,) = claimed(Parcel, 1)
    Stamp.objects.create(parcel=row)
    Receipt.objects.create(parcel=row)
    with pytest.raises(models.ProtectedError):
        row.claim.complete()
    assert Stamp.objects.exists()
    assert row.claim.check()


# Archiving


def test_what_is_done_is_moved_with_its_results(rule: Rule) -> None:
    rule(Parcel, completion=Archive(ParcelArchive))
    rows = claimed(Parcel, 3, facts=lambda i: {"ü": [i, None]}, weight=Decimal("2.50"))
    for i, row in enumerate(rows):
        row.note = f"result {i} 50% 🎈"
    holder = rows[0].claim.token.holder
    assert Parcel.objects.complete(rows, update_fields=["note"]) == 3
    assert not Parcel.objects.exists()
    kept = list(ParcelArchive.objects.order_by("pk"))
    assert [(one.pk, one.note, one.facts) for one in kept] == [
        (row.pk, f"result {i} 50% 🎈", {"ü": [i, None]}) for i, row in enumerate(rows)
    ]
    (one, *_) = kept
    assert (one.status, one.claimed_by, one.weight) == ("complete", holder, Decimal("2.50"))
    assert (one.reason, one.seen, one.kind) == ("done", None, "plain")
    assert abs(one.archived_at - one.completed_at) < datetime.timedelta(minutes=1)


@pytest.mark.parametrize(
    ("model", "archive"), [(CompositeKey, CompositeArchive), (Child, ChildArchive)]
)
def test_rows_of_other_shapes_are_moved(model: Any, archive: Any, rule: Rule) -> None:
    rule(model, completion=Archive(f"testapp.{archive.__name__}"))
    rows = claimed(model, 3, note=lambda i: str(i))
    keys = [row.pk for row in rows]
    lose(rows[2])
    refused(rows, [rows[2]])
    assert [gone(row, key) for row, key in zip(rows, keys, strict=True)] == [True, True, False]
    assert list(archive.objects.order_by("note").values_list("note", flat=True)) == ["0", "1"]


def test_a_row_lost_to_another_is_not_archived(rule: Rule) -> None:
    rule(Parcel, completion=Archive(ParcelArchive))
    rows = claimed(Parcel, 3)
    lose(rows[1])
    before = stored(rows[1])
    refused(rows, [rows[1]])
    assert stored(rows[1]) == before
    assert set(ParcelArchive.objects.values_list("pk", flat=True)) == {rows[0].pk, rows[2].pk}


def test_a_move_is_rolled_back_as_one(rule: Rule) -> None:
    rule(Parcel, completion=Archive(ParcelArchive))
    (row,) = claimed(Parcel, 1)
    with transaction.atomic():
        row.claim.complete()
        assert ParcelArchive.objects.count() == 1
        transaction.set_rollback(True)
    assert not ParcelArchive.objects.exists()
    assert row.claim.check()


def test_what_the_archive_refuses_stays_claimed(rule: Rule) -> None:
    rule(Parcel, completion=Archive(ParcelArchive))
    (row,) = claimed(Parcel, 1)
    before = stored(row)
    # Its key is taken there.
    ParcelArchive.objects.create(pk=row.pk, counter=1, weight=1, completed_at="2024-01-01 00:00Z")
    with pytest.raises(IntegrityError), transaction.atomic():
        row.claim.complete()
    assert stored(row) == before
    assert row.claim.check()


def test_an_archive_may_follow_cascades(rule: Rule, deletions: list[Any]) -> None:
    rule(Parcel, completion=Archive(ParcelArchive, cascade=True))
    (row,) = claimed(Parcel, 1)
    Stamp.objects.create(parcel=row)
    row.claim.complete()
    assert (Stamp.objects.count(), ParcelArchive.objects.count()) == (0, 1)
    assert [event for event, *_ in deletions] == ["before", "after"]


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
