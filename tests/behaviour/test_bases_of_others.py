"""``save()`` and ``delete()`` of bases that take arguments of their own, before our mixin and behind it."""

from typing import Any

import pytest
from django.db import transaction

from django_taskclaim.exceptions import ClaimColumnError, ClaimLost
from tests.behaviour.late_writes import claimed
from tests.behaviour.models import MixinFirst, MixinLast, OnlyMarked
from tests.behaviour.support import facts, fresh, lose, stored
from tests.factories import make

pytestmark = pytest.mark.django_db

ORDERS = pytest.mark.parametrize("model", [MixinFirst, MixinLast])


@ORDERS
def test_arguments_arrive_and_the_answer_comes_back(model: Any) -> None:
    row = model(note="new")
    assert row.save(False, "zoe", using="default") == ("saved", False, "zoe")
    assert row.save(user="zoe", update_fields=["note"]) == ("saved", True, "zoe")
    assert row.delete("reason", user="zoe", why=1) == ("deleted", ("reason",), "zoe", {"why": 1})
    assert not model.objects.exists()


@ORDERS
def test_they_arrive_through_a_claim(model: Any) -> None:
    row = claimed(model)
    row.note = "held"
    assert row.save(False, "zoe") == ("saved", False, "zoe")
    assert fresh(row).note == "held"
    assert row.delete("reason", user="zoe") == ("deleted", ("reason",), "zoe", {})
    assert not model.objects.exists()
    with pytest.raises(ClaimLost, match="ended"):
        row.claim.complete()


@ORDERS
def test_a_late_delete_deletes_nothing(model: Any) -> None:
    late = claimed(model)
    lose(late)
    before = stored(late)
    with pytest.raises(ClaimLost):
        late.delete()
    assert stored(late) == before


@ORDERS
def test_a_late_save_writes_nothing(model: Any) -> None:
    late = claimed(model)
    lose(late)
    before = stored(late)
    late.note = "late"
    with pytest.raises(ClaimLost), transaction.atomic():
        late.save(False, "zoe")
    assert stored(late) == before


@ORDERS
def test_claim_columns_are_refused(model: Any) -> None:
    (row,) = make(model)
    with pytest.raises(ClaimColumnError):
        row.save(False, update_fields=["status"])
    row.status = "complete"
    with pytest.raises(ClaimColumnError):
        row.save(False)


def test_a_delete_that_only_marks_the_row_leaves_it_claimed() -> None:
    row = claimed(OnlyMarked)
    row.delete()
    assert (fresh(row).note, facts(row).status) == ("deleted", "processing")
    row.claim.complete()


def test_a_deletion_that_is_rolled_back_leaves_the_claim() -> None:
    row = claimed(MixinLast)
    with transaction.atomic():
        row.delete()
        transaction.set_rollback(True)
    row.claim.complete()
    assert facts(row).status == "complete"
