"""Rows of several claims are completed together, and each is told by its own token whether it still stands."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_taskclaim.completion import Archive
from django_taskclaim.dialects import dialect_for
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.querysets import lost_commits
from django_taskclaim.states import Status
from django_taskclaim.tokens import standing_claim
from tests.behaviour.models import Parcel, ParcelArchive
from tests.behaviour.support import facts, fresh, has, lose, names
from tests.factories import make
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db


def claims(model: Any, *sizes: int) -> list[list[Any]]:
    """Make rows and return them claimed, so many by one holder after the other."""
    make(model, sum(sizes))
    return [model.objects.claim_batch(size) for size in sizes]


def test_one_statement_writes_them_all(shape: Any) -> None:
    """… where nothing but the claim table is written and the key is one column or several."""
    rows = [row for batch in claims(shape, 2, 3, 1) for row in batch]
    with CaptureQueriesContext(connection) as heard:
        assert shape.objects.complete(rows) == 6
    writes = [one["sql"] for one in heard if one["sql"].startswith("UPDATE")]
    assert len(writes) == 1
    assert {facts(row).status for row in rows} == {Status.COMPLETE}


def test_a_claim_that_was_lost_among_them_changes_nothing(shape: Any) -> None:
    first, second, third = claims(shape, 2, 1, 2)
    lose(second[0])
    before = facts(second[0])
    with pytest.raises(ClaimLost) as caught:
        shape.objects.complete([*first, *second, *third])
    assert caught.value.lost == second
    assert set(caught.value.written) == {*first, *third}
    assert facts(second[0]) == before
    assert {facts(row).status for row in [*first, *third]} == {Status.COMPLETE}


def test_a_row_lost_and_claimed_again_counts_once() -> None:
    """What the late instance holds is not written, although its row is among those that are."""
    ((late,), others) = claims(Photo, 1, 2)
    again = lose(late)
    late.url, again.url = "late", "again"
    with pytest.raises(ClaimLost) as caught:
        Photo.objects.complete([late, again, *others], update_fields=["url"])
    assert caught.value.lost == [late]
    assert (fresh(again).url, fresh(again).status) == ("again", Status.COMPLETE)


@pytest.mark.parametrize(
    ("verb", "status"),
    [
        ("complete", "complete"),
        ("fail", "open"),
        ("release", "open"),
        ("renew", "processing"),
        ("hand_over", "processing"),
    ],
)
def test_two_instances_of_one_row_are_one_row(shape: Any, verb: str, status: str) -> None:
    ((row, other),) = claims(shape, 2)
    twin = shape.objects.with_token(row.pk, row.claim.token)
    more = {"fail": {"error": "no"}, "hand_over": {"to": "user:2"}, "renew": {"lease": 3600}}.get(
        verb, {}
    )
    assert getattr(shape.objects, verb)([row, twin, other], **more) == 2
    shown = names(shape)["status"]
    assert [getattr(row, shown), getattr(twin, shown), facts(row).status] == [status] * 3
    assert getattr(facts(row), "attempts", 0) == (verb == "fail" and has(shape, "attempts"))
    for each in (row, twin):
        if verb == "renew":
            assert each.claim.remaining() > timedelta(minutes=50)
        else:
            assert standing_claim(each) is None


@pytest.mark.parametrize("how", ["delete", Archive(ParcelArchive)], ids=["delete", "archive"])
def test_two_instances_of_one_row_are_one_row_to_whatever_completes_it(rule: Any, how: Any) -> None:
    rule(Parcel, completion=how)
    ((row, other),) = claims(Parcel, 2)
    twin = Parcel.objects.with_token(row.pk, row.claim.token)
    assert Parcel.objects.complete([row, twin, other]) == 2
    assert not Parcel.objects.exists()


def test_a_claim_that_was_rolled_back_is_not_taken_for_the_next_holders() -> None:
    """Both are of one iteration, and the next holder has another row in the same statement."""
    make(Photo, 2)
    with transaction.atomic():
        (provisional, _) = Photo.objects.claim_batch(2, durable=False)
        transaction.set_rollback(True)
    again, other = Photo.objects.claim_batch(2)
    assert again.pk == provisional.pk
    assert again.claim.token.iteration == provisional.claim.token.iteration
    with pytest.raises(ClaimLost) as caught:
        Photo.objects.complete([provisional, other])
    assert caught.value.lost == [provisional]
    assert fresh(again).status == Status.PROCESSING
    again.claim.complete()
    assert fresh(again).status == Status.COMPLETE


@pytest.mark.skipif(
    not dialect_for(connection).has_one_writer,
    reason="a server may have done what it did not answer",
)
@pytest.mark.django_db(transaction=True)
def test_a_statement_that_cannot_have_been_carried_out_is_its_error_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is waited for, the session stays, and the claims stand."""
    ((row,),) = claims(Photo, 1)
    session = connection.connection
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA query_only = ON")
    pauses: list[float] = []
    monkeypatch.setattr(lost_commits, "time", SimpleNamespace(sleep=pauses.append))
    try:
        with pytest.raises(OperationalError, match="readonly"):
            Photo.objects.complete([row])
    finally:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA query_only = OFF")
    assert pauses == []
    assert connection.connection is session
    assert Photo.objects.complete([row]) == 1
