"""Completion policies: what is common to all, and those that keep the row."""

import copy
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_taskclaim.completion import Archive, Clear, Delete
from django_taskclaim.exceptions import ClaimLost, CommitUnknown
from django_taskclaim.signals import rows_completed
from tests.factories import make, make_claimed
from tests.meanwhile import connected
from tests.proxy import swallowed, withheld
from tests.querysets.completing import gone, refused
from tests.querysets.models import Parcel, ParcelArchive
from tests.querysets.support import (
    DEADLINE,
    Rule,
    clock,
    elsewhere,
    expire,
    facts,
    fresh,
    has,
    lose,
    set_raw,
    stored,
)
from tests.testapp.models import Child, ClaimOnly, CompositeKey, Photo

pytestmark = pytest.mark.django_db

POLICIES: dict[str, Any] = {
    "mark": "mark",
    "delete": Delete(),
    "archive": Archive(ParcelArchive),
    "clear": Clear(),
}


# What is common to all


@pytest.mark.promise(3)
@pytest.mark.parametrize("how", POLICIES)
def test_a_policy_writes_what_is_held_committed_and_told(
    how: str, rule: Rule, django_capture_on_commit_callbacks: Any
) -> None:
    """A rollback leaves rows and claims, a lost claim changes nothing, and the signal names the written rows."""
    rule(Parcel, completion=POLICIES[how])
    rows = make_claimed(Parcel, 3)
    before = [stored(row) for row in rows]
    with transaction.atomic():
        Parcel.objects.complete(rows)
        assert stored(rows[0]) != before[0]
        transaction.set_rollback(True)
    assert ([stored(row) for row in rows], ParcelArchive.objects.count()) == (before, 0)
    lose(rows[1])
    lost = stored(rows[1])
    heard: list[Any] = []

    def hear(rows: Any, using: str, **facts: Any) -> None:
        heard.append((rows, using))

    with connected(rows_completed, hear), django_capture_on_commit_callbacks(execute=True):
        refused(rows, [rows[1]])
    assert heard == [([rows[0], rows[2]], "default")]
    assert stored(rows[1]) == lost
    assert ParcelArchive.objects.count() == (2 if how == "archive" else 0)
    with pytest.raises(ClaimLost):
        rows[0].claim.complete()


@pytest.mark.promise(4)
@pytest.mark.parametrize("model", [Photo, Child, CompositeKey])
def test_complete_is_final_until_a_reset(model: Any) -> None:
    """Neither the reaper nor a copy of the claim, as an old worker has it, opens or changes the row."""
    (row,) = make_claimed(model, 1)
    old = copy.deepcopy(row)
    row.claim.complete()
    set_raw(row, "expires_at", clock("-1 HOUR"))
    before = stored(row)
    assert model.objects.release_expired() == 0
    late = old.claim
    for write in (late.renew, late.release, late.complete, old.save, old.delete):
        with pytest.raises(ClaimLost), transaction.atomic():
            write()
    with pytest.raises(ClaimLost):
        late.fail("late")
    row.save()
    assert model.objects.claim_batch(1) == []
    assert stored(row) == before
    assert (model.objects.reset(), model.objects.reset(complete=True)) == (0, 1)
    assert len(model.objects.claim_batch(1)) == 1


def test_rows_of_several_models_each_follow_their_own_policy(rule: Rule) -> None:
    rule(Photo, completion="delete")
    rule(ClaimOnly, completion="clear")
    (photo,), (plain,), (child,) = map(make_claimed, (Photo, ClaimOnly, Child))
    assert Photo.objects.complete([photo, plain, child]) == 3
    assert gone(photo, photo.pk)
    assert (facts(plain).status, facts(child).status) == ("open", "complete")


@pytest.mark.promise(3)
@pytest.mark.parametrize(
    ("model", "how"), [(Child, "delete"), (Parcel, "delete"), (Parcel, "clear")]
)
def test_a_completion_that_waited_for_the_reaper_has_lost(
    model: Any, how: str, rule: Rule, transactional_db: None
) -> None:
    """The statement looks again, under the lock, at what was true when it began."""
    rule(model, completion=POLICIES[how])
    (row,) = make_claimed(model, 1)
    with transaction.atomic():
        expire(row)
        completing = elsewhere(lambda: model.objects.complete([row]))
    with pytest.raises(ClaimLost):
        completing.result(DEADLINE)
    assert (facts(row).status, facts(row).iteration, facts(row).completed_at) == ("open", 1, None)


# A lost answer to the COMMIT


@pytest.mark.promise(5)
@pytest.mark.parametrize("how", ["delete", "archive", "clear"])
def test_a_completion_without_a_trace_is_undecided_or_sent_again(
    commits: Any, how: str, rule: Rule
) -> None:
    """Nobody knows by whom the rows went, and nothing is written twice; what did not arrive is sent again."""
    rule(Parcel, completion=POLICIES[how])
    first, second = make_claimed(Parcel, 2)
    commits.arm(swallowed)
    with pytest.raises(CommitUnknown) as caught:
        first.claim.complete()
    assert caught.value.undecided == [first]
    assert first.claim.lost
    commits.arm(withheld)
    second.claim.complete()
    assert commits.sprung.is_set()
    for row in (first, second):
        assert stored(row) == {} or (facts(row).status, facts(row).iteration) == ("open", 1)
    assert Parcel.objects.count() == (2 if how == "clear" else 0)
    assert ParcelArchive.objects.count() == (2 if how == "archive" else 0)


# "clear": open again


@pytest.mark.parametrize("model", [Photo, ClaimOnly, Child])
def test_a_cleared_row_is_open_again(model: Any, rule: Rule) -> None:
    rule(model, completion="clear", backoff=lambda failures: 0)
    (row,) = make_claimed(model, 1)
    row.claim.fail("the first time")
    (row,) = model.objects.claim_batch(1)
    row.note, before = "result", row.claim.token.iteration
    row.claim.complete(update_fields=["note"])
    now = facts(row)
    assert (now.status, now.iteration, fresh(row).note) == ("open", before + 1, "result")
    assert (now.claimed_by, now.claimed_at, now.expires_at) == (None, None, None)
    if has(model, "attempts", "completed_at"):
        assert (now.attempts, now.last_error, now.error_class) == (0, "", "")
        assert now.completed_at is not None
    assert len(model.objects.claim_batch(1)) == 1


def test_cleared_rows_take_turns_and_wait_for_their_interval(rule: Rule) -> None:
    """Otherwise those with the lowest keys would be claimed for ever."""
    rule(Photo, completion="clear")
    rows = make(Photo, 6)
    batches = [Photo.objects.claim_batch(2)]
    for _ in range(2):
        Photo.objects.complete(batches[-1])
        batches.append(Photo.objects.claim_batch(2))
    assert {row.pk for batch in batches for row in batch} == {row.pk for row in rows}
    rule(Photo, completion=Clear(every=3600))
    (row, _) = batches[-1]
    row.claim.complete()
    assert facts(row).not_before - facts(row).completed_at == timedelta(hours=1)
    assert row.not_before == facts(row).not_before
    assert row not in Photo.objects.claim_batch(6)
