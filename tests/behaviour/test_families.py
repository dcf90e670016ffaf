"""Keys that are another table's, parents with an order of their own, grandchildren, names that are taken."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction
from django.test.utils import isolate_apps

from django_taskclaim.exceptions import ClaimColumnError, ClaimLost
from django_taskclaim.models import ClaimMixin, CompletedAtMixin
from django_taskclaim.querysets.assignments import complete_assignments
from django_taskclaim.querysets.scope import Desk
from django_taskclaim.switch import pause
from tests.behaviour.models import (
    ChildOfOrdered,
    GrandChild,
    GrandChildProxy,
    Labour,
    OneToOneKey,
    OrderedParent,
)
from tests.behaviour.support import facts, fresh, lose, stored
from tests.testapp.models import Author, Child, Parent

pytestmark = pytest.mark.django_db


def create(model: Any, n: int) -> list[Any]:
    """Create rows whose notes run against their keys."""
    rows = []
    for number in range(n):
        needs = {"author": Author.objects.create(name=f"{-number}")} if model is OneToOneKey else {}
        rows.append(model.objects.create(note=f"{number}", **needs))
    return rows


FAMILY = pytest.mark.parametrize(
    "model", [OneToOneKey, ChildOfOrdered, GrandChild, GrandChildProxy, Labour]
)


@FAMILY
@pytest.mark.usefixtures("strategy")
def test_rows_are_claimed_in_the_order_of_their_keys(model: Any) -> None:
    rows = create(model, 5)
    claimed = [row.pk for _ in range(3) for row in model.objects.claim_batch(2)]
    assert claimed == [row.pk for row in rows]


@FAMILY
def test_results_are_written_with_the_completion(model: Any) -> None:
    create(model, 3)
    rows = model.objects.claim_batch(3)
    for number, row in enumerate(rows):
        row.note, row.counter = f"result {number}", number
    assert model.objects.renew(rows) == 3
    assert model.objects.complete(rows, update_fields=["note", "counter"]) == 3
    assert [fresh(row).note for row in rows] == ["result 0", "result 1", "result 2"]
    assert {facts(row).status for row in rows} == {"complete"}


LATE: dict[str, Callable[[Any], Any]] = {
    "complete": lambda row: row.claim.complete(update_fields=["note"]),
    "save": lambda row: row.save(),
    "save one column": lambda row: row.save(update_fields=["note"]),
    "delete": lambda row: row.delete(),
    "bulk_update": lambda row: type(row).objects.bulk_update([row], ["note"]),
}


@FAMILY
@pytest.mark.parametrize("kind", LATE)
def test_a_late_write_changes_none_of_their_tables(model: Any, kind: str) -> None:
    create(model, 1)
    (late,) = model.objects.claim_batch(1)
    lose(late)
    before = stored(late)
    late.note = "late"
    with pytest.raises(ClaimLost), transaction.atomic():
        LATE[kind](late)
    assert stored(late) == before


@FAMILY
def test_their_columns_are_guarded(model: Any) -> None:
    (row,) = create(model, 1)
    before = stored(row)
    row.status = "complete"
    with pytest.raises(ClaimColumnError):
        row.save()
    with pytest.raises(ClaimColumnError):
        model.objects.update(iteration=4)
    assert stored(row) == before


@pytest.mark.parametrize("model", [GrandChild, GrandChildProxy])
def test_a_grandchild_is_ordered_and_filtered_by_columns_of_any_table(model: Any) -> None:
    for number in range(4):
        model.objects.create(note=f"{number % 2}", extra=f"{9 - number}", more=f"{5 - number}")
    rows = model.objects.filter(note="1", extra__gt="0", more__gt="0").order_by("more")
    assert [row.more for row in rows.claim_batch(5)] == ["2", "4"]
    assert [row.extra for row in model.objects.order_by("extra", "-more").claim_batch(5)] == [
        "7",
        "9",
    ]


def test_a_late_save_of_any_column_of_a_grandchild_changes_nothing() -> None:
    for column in ("note", "extra", "more"):
        GrandChild.objects.all().delete()
        GrandChild.objects.create()
        (late,) = GrandChild.objects.claim_batch(1)
        lose(late)
        before = stored(late)
        setattr(late, column, "late")
        with pytest.raises(ClaimLost), transaction.atomic():
            late.save(update_fields=[column])
        assert stored(late) == before


def test_results_on_every_table_of_a_grandchild_are_written_together() -> None:
    GrandChild.objects.create()
    (row,) = GrandChild.objects.claim_batch(1)
    row.note, row.extra, row.more = "a", "b", "c"
    row.complete(update_fields=["note", "extra", "more"])
    again = fresh(row)
    assert (again.note, again.extra, again.more) == ("a", "b", "c")


@pytest.mark.django_db(databases="__all__")
@pytest.mark.parametrize(
    ("paused", "stopped"),
    [(Parent, 4), (Child, 3), (GrandChild, 2), (GrandChildProxy, 2)],
)
def test_a_pause_stops_the_family_from_there_down(paused: Any, stopped: int) -> None:
    create(GrandChild, 5)
    pause(paused)
    family = [Parent, Child, GrandChild, GrandChildProxy]
    assert [len(model.objects.claim_batch(1)) for model in family] == [1] * (4 - stopped) + [
        0
    ] * stopped


def test_a_parent_and_its_grandchild_are_one_row_with_one_claim() -> None:
    create(GrandChild, 1)
    (row,) = Parent.objects.claim_batch(1)
    assert GrandChild.objects.claim_batch(1) == []
    assert Parent.objects.complete(row) == 1
    assert facts(GrandChild.objects.get()).status == "complete"


def test_a_field_named_like_a_verb_stays_the_users() -> None:
    (row,) = create(Labour, 1)
    (held,) = Labour.objects.claim_batch(1)
    held.complete = True
    held.claim.complete(update_fields=["complete"])
    assert fresh(row).complete is True
    assert facts(row).status == "complete"
    assert callable(held.release)


def test_a_plain_parent_of_a_claimed_row_stays_an_ordinary_model() -> None:
    (row,) = create(ChildOfOrdered, 1)
    (held,) = ChildOfOrdered.objects.claim_batch(1)
    parent = OrderedParent.objects.get(pk=row.pk)
    parent.note = "through the parent"
    parent.save()
    assert held.claim.check()


@isolate_apps("tests.testapp")
def test_what_a_parent_sets_is_not_taken_for_what_its_child_does() -> None:
    """They share a table, and statements are kept as they are spelt; ``manage.py check`` refuses this child."""

    class Plain(ClaimMixin):
        class Meta:
            app_label = "testapp"

    class Timed(Plain, CompletedAtMixin):
        class Meta:
            app_label = "testapp"

    for model, sets_it in ((Plain, False), (Timed, True), (Plain, False)):
        pieces = complete_assignments([])(Desk.of(model, "default"), [])
        assert any("completed_at" in piece.text for piece in pieces) is sets_it
