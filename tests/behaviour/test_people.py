"""Holders that callers name: a person asks for five rows and gets the same five, extended, on reload."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.switch import pause, resume
from tests.behaviour.models import Label, Labelled
from tests.behaviour.support import DEADLINE, ROW_LOCKS, at_once, elsewhere, facts
from tests.factories import make
from tests.testapp.models import (
    Author,
    Child,
    ChildOwnsClaim,
    HiddenRows,
    OrderedByForeignKey,
    Photo,
    PhotoProxy,
)

pytestmark = pytest.mark.django_db

Lapse = Callable[[Any], None]

#: Differ by case, by an accent, by blanks: different people all the same.
ALIKE = ["user:bob", "user:Bob", "user:böb", "user:bob ", " user:bob", "user:bo", "user:bob\t"]


def keys(rows: Any) -> list[Any]:
    return [row.pk for row in rows]


def ask(model: Any, limit: int, who: str = "user:17", **options: Any) -> list[Any]:
    """What a view does on every load of its page."""
    rows: list[Any] = model.objects.claim_batch(limit, claimed_by=who, include_held=True, **options)
    return rows


def test_the_same_rows_come_back_with_the_same_tokens(claimable: Any) -> None:
    make(claimable, 8)
    first, again = ask(claimable, 3), ask(claimable, 3)
    assert keys(again) == keys(first)
    assert [row.claim.token for row in again] == [row.claim.token for row in first]
    assert claimable.objects.complete(again) == 3


def test_what_is_missing_is_topped_up_behind_what_is_held(claimable: Any) -> None:
    make(claimable, 8)
    first = ask(claimable, 3)
    first[0].claim.complete()
    again = ask(claimable, 5)
    assert len(again) == 5
    assert keys(again)[:2] == keys(first)[1:]
    assert len(set(keys(again))) == 5


def test_a_lease_is_extended_and_never_shortened(shape: Any) -> None:
    make(shape, 2)
    long = ask(shape, 1, lease=3600)
    short = facts(ask(shape, 2, lease=60)[0])
    assert short.expires_at == facts(long[0]).expires_at
    assert short.expires_at - timezone.now() > timedelta(minutes=50)
    extended = facts(ask(shape, 2, lease=7200)[0])
    assert extended.expires_at > short.expires_at + timedelta(minutes=30)


def test_a_lapsed_lease_that_nobody_took_is_extended_again(
    claimable: Any, let_lease_lapse: Lapse
) -> None:
    make(claimable, 2)
    rows = ask(claimable, 2)
    let_lease_lapse(rows)
    assert keys(ask(claimable, 2)) == keys(rows)
    assert claimable.objects.release_expired() == 0


def test_a_row_that_the_reaper_took_is_not_held_any_more(
    shape: Any, let_lease_lapse: Lapse
) -> None:
    make(shape, 2)
    (row,) = ask(shape, 1)
    let_lease_lapse(row)
    shape.objects.release_expired()
    (again,) = ask(shape, 1)
    assert again.claim.token != row.claim.token
    with pytest.raises(ClaimLost):
        row.claim.complete()


def test_rows_put_back_and_claimed_again_have_tokens_of_their_own(claimable: Any) -> None:
    """One holder, rows of different iterations: each comes back with the token that stands."""
    make(claimable, 3)
    rows = ask(claimable, 3)
    rows[1].claim.release()
    again = ask(claimable, 3)
    iterations = {row.pk: row.claim.token.iteration for row in again}
    assert iterations == {rows[0].pk: 0, rows[1].pk: 1, rows[2].pk: 0}
    assert claimable.objects.complete(again) == 3


def test_never_more_rows_than_asked_even_if_more_are_held(claimable: Any) -> None:
    make(claimable, 8)
    held = ask(claimable, 5)
    fewer = ask(claimable, 3)
    assert len(fewer) == 3
    assert set(keys(fewer)) <= set(keys(held))
    assert claimable.objects.held_by("user:17").count() == 5


def test_the_filter_decides_what_of_the_held_comes_back(shape: Any) -> None:
    make(shape, 6, note=lambda i: "ab"[i % 2])
    mine = shape.objects.filter(note="a").claim_batch(2, claimed_by="user:17")
    other = shape.objects.filter(note="b").claim_batch(2, claimed_by="user:17", include_held=True)
    assert {row.note for row in other} == {"b"}
    again = shape.objects.filter(note="a").claim_batch(2, claimed_by="user:17", include_held=True)
    assert keys(again) == keys(mine)


@pytest.mark.parametrize("model", [Photo, Child, ChildOwnsClaim])
def test_an_explicit_order_and_joins_hold_for_the_held_as_well(model: Any) -> None:
    make(model, 4, note=lambda i: "dcba"[i], counter=3)
    rows = model.objects.order_by("note").annotate(twice=F("counter") * 2)
    first = rows.claim_batch(3, claimed_by="user:1", include_held=True)
    again = rows.claim_batch(3, claimed_by="user:1", include_held=True)
    assert [row.note for row in first] == [row.note for row in again] == ["a", "b", "c"]
    assert [row.twice for row in again] == [6, 6, 6]


def test_a_filter_that_shows_rows_more_than_once_returns_each_held_row_once() -> None:
    labels = [Label.objects.create(name="label") for _ in range(3)]
    for row in make(Labelled, 4):
        row.labels.set(labels)
    rows = Labelled.objects.filter(labels__name="label")
    first = rows.claim_batch(2, claimed_by="user:1", include_held=True)
    again = rows.claim_batch(3, claimed_by="user:1", include_held=True)
    assert len(set(keys(again))) == len(again) == 3
    assert keys(again)[:2] == keys(first)


def test_rows_of_others_never_come_back(shape: Any) -> None:
    make(shape, 4)
    theirs = ask(shape, 2, "user:18")
    mine = ask(shape, 4, "user:17")
    assert len(mine) == 2
    assert not set(keys(mine)) & set(keys(theirs))


def test_include_held_needs_a_name() -> None:
    with pytest.raises(ValueError, match="claimed_by"):
        Photo.objects.claim_batch(1, include_held=True)


def test_without_include_held_a_second_request_gets_other_rows(claimable: Any) -> None:
    """DATABASES.md's trap of a claim that is read back by the caller's name: five rows for two asked."""
    make(claimable, 6)
    first = claimable.objects.claim_batch(3, claimed_by="user:17")
    second = claimable.objects.claim_batch(2, claimed_by="user:17")
    assert (len(first), len(second)) == (3, 2)
    assert not set(keys(first)) & set(keys(second))
    assert claimable.objects.complete([*first, *second]) == 5


def test_while_paused_the_held_rows_come_back_and_nothing_is_added(claimable: Any) -> None:
    make(claimable, 5)
    rows = ask(claimable, 2, lease=60)
    before = facts(rows[0]).expires_at
    pause(claimable, using="default")
    again = ask(claimable, 4, lease=600)
    assert keys(again) == keys(rows)
    assert facts(rows[0]).expires_at > before
    resume(claimable, using="default")
    assert len(ask(claimable, 4)) == 4


def test_holders_are_compared_byte_for_byte(shape: Any) -> None:
    make(shape, len(ALIKE))
    rows = {who: shape.objects.claim_batch(1, claimed_by=who)[0] for who in ALIKE}
    for who, row in rows.items():
        assert keys(shape._default_manager.held_by(who)) == [row.pk]
        assert keys(ask(shape, 1, who)) == [row.pk]


@pytest.mark.parametrize("other", ALIKE[1:])
@pytest.mark.parametrize("verb", ["complete", "renew", "release", "save", "delete"])
def test_a_name_that_is_only_alike_passes_no_fence(other: str, verb: str) -> None:
    make(Photo)
    (row,) = Photo.objects.claim_batch(1, claimed_by=ALIKE[0])
    alike = Photo.objects.with_token(row.pk, (other, 0))
    with pytest.raises(ClaimLost), transaction.atomic():
        getattr(alike, verb)()
    assert row.claim.check()


@pytest.mark.parametrize("who", ["x" * 200, "用户:17 🎈", "100% %s %(a)s", 'it\'s "so" \\ `n`'])
@pytest.mark.usefixtures("strategy")
def test_any_name_up_to_200_characters_holds_rows(who: str) -> None:
    make(Photo, 2)
    (row,) = ask(Photo, 1, who)
    assert keys(ask(Photo, 1, who)) == [row.pk]
    again = Photo.objects.with_token(row.pk, str(row.claim.token))
    again.claim.complete()
    assert facts(row).claimed_by == who


# Requests that meet


@pytest.mark.usefixtures("strategy")
@pytest.mark.django_db(transaction=True)
class TestTwoRequestsAtOnce:
    """Two clicks on one button, each on a connection of its own."""

    def test_never_yield_more_than_one_batch(self) -> None:
        make(Photo, 40)
        for round_ in range(5):
            who = f"user:{round_}"
            answers = at_once(*[lambda who=who: keys(ask(Photo, 5, who))] * 3)
            assert [len(answer) for answer in answers] == [5, 5, 5]
            assert answers[0] == answers[1] == answers[2]
            assert Photo.objects.held_by(who).count() == 5

    def test_do_not_deadlock_for_rows_that_are_held_already(self) -> None:
        make(Photo, 10)
        rows = keys(ask(Photo, 5, "user:1"))
        answers = at_once(*[lambda: keys(ask(Photo, 5, "user:1"))] * 3)
        assert answers == [rows] * 3

    def test_of_different_people_get_different_rows(self) -> None:
        make(Photo, 20)
        asked = [lambda who=f"user:{number}": keys(ask(Photo, 5, who)) for number in range(4)]
        answers = at_once(*asked)
        assert sorted(key for answer in answers for key in answer) == sorted(
            Photo.objects.values_list("pk", flat=True)
        )


@pytest.mark.django_db(transaction=True)
def test_requests_through_a_proxy_queue_with_those_of_its_model() -> None:
    make(Photo, 40)
    for round_ in range(4):
        who = f"user:{round_}"
        answers = at_once(
            lambda who=who: keys(ask(Photo, 5, who)), lambda who=who: keys(ask(PhotoProxy, 5, who))
        )
        assert answers[0] == answers[1]
        assert Photo.objects.held_by(who).count() == 5


@pytest.mark.skipif(not ROW_LOCKS, reason="no row locks: one writer at a time")
@pytest.mark.django_db(transaction=True)
def test_a_request_waits_for_a_held_row_that_is_locked_and_hands_out_no_other(rival: Any) -> None:
    """A row passed over because it is locked would be made up for by another one."""
    make(Photo, 4)
    rows = ask(Photo, 2)
    rival.lock(rows[0])
    asked = elsewhere(lambda: keys(ask(Photo, 2)))
    assert not asked.done()
    rival.let_go()
    assert asked.result(DEADLINE) == keys(rows)
    assert Photo.objects.held_by("user:17").count() == 2


def test_the_view_of_a_person_works_inside_a_transaction_of_the_request(claimable: Any) -> None:
    """ATOMIC_REQUESTS: the claim is the transaction's, and the next request finds it."""
    make(claimable, 3)
    with transaction.atomic():
        rows = ask(claimable, 2, durable=False)
    assert keys(ask(claimable, 2, durable=False)) == keys(rows)


# Tokens that come back


def test_a_row_that_was_hidden_meanwhile_is_found_by_its_token() -> None:
    make(HiddenRows)
    (row,) = HiddenRows.objects.claim_batch(1, claimed_by="user:17")
    HiddenRows.everything.update(hidden=True)
    again = HiddenRows.objects.with_token(row.pk, str(row.claim.token))
    again.complete()
    assert facts(row).status == "complete"


def test_a_condition_of_the_callers_keeps_rows_of_others_out_of_reach() -> None:
    make(Photo, 2, country=lambda i: ("NZ", "DE")[i])
    (row,) = Photo.objects.filter(country="NZ").claim_batch(1, claimed_by="user:17")
    token = str(row.claim.token)
    assert Photo.objects.filter(country="NZ").with_token(row.pk, token) == row
    with pytest.raises(Photo.DoesNotExist):
        Photo.objects.filter(country="DE").with_token(row.pk, token)


def test_a_manager_of_related_rows_finds_none_of_others() -> None:
    mine, yours = (Author.objects.create(name=name) for name in ("me", "you"))
    make(OrderedByForeignKey, author=mine)
    (row,) = mine.orderedbyforeignkey_set.claim_batch(1, claimed_by="user:17")
    token = str(row.claim.token)
    assert mine.orderedbyforeignkey_set.with_token(row.pk, token) == row
    with pytest.raises(OrderedByForeignKey.DoesNotExist):
        yours.orderedbyforeignkey_set.with_token(row.pk, token)
