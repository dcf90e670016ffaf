"""Holders that callers name: a person asks for five rows and gets the same five, extended, on reload."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models import QuerySet

from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.switch import pause, resume
from tests.factories import make
from tests.querysets.support import DEADLINE, ROW_LOCKS, at_once, elsewhere, facts, keys, lapse
from tests.testapp.models import Author, Child, OrderedByForeignKey, Photo, PhotoProxy
from tests.testapp.odd_models import Label, Labelled

pytestmark = pytest.mark.django_db

#: They differ by case, by an accent, by blanks: different people all the same.
ALIKE = ["user:bob", "user:Bob", "user:böb", "user:bob ", " user:bob", "user:bo", "user:bob\t"]
#: Any name up to 200 characters is one.
ODD = ["x" * 200, "用户:17 🎈", "100% %s %(a)s", 'it\'s "so" \\ `n`']


def ask(rows: Any, limit: int, who: str = "user:17", **options: Any) -> list[Any]:
    """Do what a view does on every load of its page, over a model or a queryset."""
    rows = rows.all() if isinstance(rows, QuerySet) else rows.objects
    found: list[Any] = rows.claim_batch(limit, claimed_by=who, include_held=True, **options)
    return found


@pytest.mark.promise(1, 2)
def test_the_same_rows_come_back_topped_up(kind_of_table: Any) -> None:
    model = kind_of_table
    make(model, 8)
    first, again = ask(model, 3), ask(model, 3)
    assert keys(again) == keys(first)
    assert [row.claim.token for row in again] == [row.claim.token for row in first]
    first[0].claim.complete()
    again = ask(model, 5)
    assert keys(again)[:2] == keys(first)[1:]
    assert len(set(keys(again))) == len(again) == 5
    # Never more than asked, although more are held.
    fewer = ask(model, 3)
    assert len(fewer) == 3
    assert set(keys(fewer)) <= set(keys(again))
    # A lapsed lease that nobody took is extended again.
    lapse(again)
    assert keys(ask(model, 5)) == keys(again)
    assert model.objects.release_expired() == 0
    # Without include_held a request gets others: a claim read back by the name alone would return these five.
    others = model.objects.claim_batch(2, claimed_by="user:17")
    assert len(others) == 2
    assert not set(keys(others)) & set(keys(again))
    assert model.objects.complete([*again, *others]) == 7
    with pytest.raises(ValueError, match="claimed_by"):
        model.objects.claim_batch(1, include_held=True)


@pytest.mark.parametrize("model", [Photo, Child])
def test_a_lease_is_extended_and_never_shortened(model: Any) -> None:
    make(model, 2)
    long = ask(model, 1, lease=3600)
    short = facts(ask(model, 2, lease=60)[0])
    assert short.expires_at == facts(long[0]).expires_at
    (shown, _) = ask(model, 2, lease=7200)
    extended = facts(shown)
    assert extended.expires_at > short.expires_at + timedelta(minutes=30)
    assert shown.expires_at == extended.expires_at
    # The row that is extended now ends last.
    assert len(ask(model.objects.order_by("expires_at"), 1, lease=9000)) == 1


@pytest.mark.promise(3)
def test_a_row_that_was_put_back_comes_with_a_new_token() -> None:
    """One holder, rows of different iterations: each carries the token that stands."""
    make(Photo, 3)
    rows = ask(Photo, 3)
    lapse(rows[1])
    Photo.objects.release_expired()
    again = ask(Photo, 3)
    iterations = {row.pk: row.claim.token.iteration for row in again}
    assert iterations == {rows[0].pk: 0, rows[1].pk: 1, rows[2].pk: 0}
    with pytest.raises(ClaimLost):
        rows[1].claim.complete()
    assert Photo.objects.complete(again) == 3


@pytest.mark.promise(9)
@pytest.mark.usefixtures("strategy")
def test_while_paused_the_held_rows_come_back_and_nothing_is_added() -> None:
    make(Photo, 5)
    rows = ask(Photo, 2, lease=60)
    before = facts(rows[0]).expires_at
    pause(Photo, using="default")
    again = ask(Photo, 4, lease=600)
    assert keys(again) == keys(rows)
    assert facts(rows[0]).expires_at > before
    resume(Photo, using="default")
    assert len(ask(Photo, 4)) == 4


@pytest.mark.promise(3)
@pytest.mark.usefixtures("strategy")
def test_holders_are_compared_byte_for_byte() -> None:
    everybody = [*ALIKE, *ODD]
    make(Photo, len(everybody))
    rows = {who: Photo.objects.claim_batch(1, claimed_by=who)[0] for who in everybody}
    for who, row in rows.items():
        assert keys(Photo.objects.held_by(who)) == [row.pk]
        assert keys(ask(Photo, 1, who)) == [row.pk]
        assert Photo.objects.with_token(row.pk, str(row.claim.token)).claim.check()
    row = rows[ALIKE[0]]
    for other in ALIKE[1:]:
        alike = Photo.objects.with_token(row.pk, (other, 0))
        for verb in (alike.complete, alike.renew, alike.release, alike.save, alike.delete):
            with pytest.raises(ClaimLost), transaction.atomic():
                verb()
    assert row.claim.check()


# Requests that meet


@pytest.mark.promise(1)
@pytest.mark.usefixtures("strategy")
@pytest.mark.django_db(transaction=True)
def test_requests_at_once_of_one_person_share_a_batch_and_of_others_share_nothing() -> None:
    """Two clicks on one button, also through a proxy, each on a connection of its own."""
    make(Photo, 40)
    for number in range(4):
        # Every other round asks for rows that are held already.
        who, other = f"user:{number // 2}", f"other:{number // 2}"
        clicks = [
            lambda model=model, who=who: keys(ask(model, 5, who))
            for model in (Photo, Photo, PhotoProxy)
        ]
        *answers, others = at_once(*clicks, lambda other=other: keys(ask(Photo, 5, other)))
        assert answers[0] == answers[1] == answers[2]
        assert len(answers[0]) == 5
        assert not set(answers[0]) & set(others)
        assert Photo.objects.held_by(who).count() == 5


@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
def test_a_request_waits_for_a_held_row_that_is_locked_and_returns_no_other(rival: Any) -> None:
    """A row passed over because it is locked would be made up for by another one."""
    make(Photo, 4)
    rows = ask(Photo, 2)
    rival.lock(rows[0])
    asked = elsewhere(lambda: keys(ask(Photo, 2)))
    assert not asked.done()
    rival.let_go()
    assert asked.result(DEADLINE) == keys(rows)
    assert Photo.objects.held_by("user:17").count() == 2


def test_a_row_that_a_join_shows_twice_is_one_row() -> None:
    names = iter("abcdef")
    for row, number in zip(make(Labelled, 4), [3, 1, 1, 1], strict=True):
        row.labels.set([Label.objects.create(name=next(names)) for _ in range(number)])
    for _ in range(3):
        Labelled.objects.order_by("labels__name").claim_batch(2, claimed_by="u", include_held=True)
    assert Labelled.objects.held_by("u").count() == 2


# Tokens that come back


def test_conditions_and_related_managers_keep_rows_of_others_out_of_reach() -> None:
    mine, yours = (Author.objects.create(name=name) for name in ("me", "you"))
    make(OrderedByForeignKey, author=mine)
    (row,) = mine.orderedbyforeignkey_set.claim_batch(1, claimed_by="user:17")
    token = str(row.claim.token)
    within = OrderedByForeignKey.objects.filter(author=mine)
    for found in (mine.orderedbyforeignkey_set, within):
        assert found.with_token(row.pk, token) == row
    for none in (yours.orderedbyforeignkey_set, OrderedByForeignKey.objects.exclude(author=mine)):
        with pytest.raises(OrderedByForeignKey.DoesNotExist):
            none.with_token(row.pk, token)
