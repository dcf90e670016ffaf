"""A COMMIT whose answer never arrives: the rows themselves tell what became of it."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from django.db import Error, transaction

from django_taskclaim.exceptions import ClaimLost, CommitUnknown
from tests.factories import make, make_claimed
from tests.proxy import FATES, HAS_A_SERVER, Belated, Fate, swallowed, withheld
from tests.querysets.late_writes import claimed
from tests.querysets.support import DEADLINE, elsewhere, facts, fresh, lose
from tests.testapp.models import Child, CompositeKey, Photo

pytestmark = pytest.mark.promise(3, 5)
TABLES = pytest.mark.parametrize("model", [Photo, Child, CompositeKey])
needs_a_server = pytest.mark.skipif(
    not HAS_A_SERVER, reason="the database has no server that a COMMIT travels to"
)


def lose_answer(commits: Any, fate: Fate, work: Callable[[], Any]) -> None:
    """Do *work* in a transaction whose COMMIT meets *fate*."""

    def in_transaction() -> None:
        with transaction.atomic():
            work()
            commits.arm(fate)

    with pytest.raises(Error):
        in_transaction()
    assert commits.sprung.wait(DEADLINE)


# The caller's own transaction


@needs_a_server
@FATES
def test_a_caller_whose_own_commit_was_lost_may_repeat_the_verb(commits: Any, fate: Fate) -> None:
    row = claimed(Photo)
    lose_answer(commits, fate, row.claim.complete)
    assert not row.claim.lost
    row.claim.complete()
    assert facts(row).status == "complete"
    row.note = "an ordinary instance again"
    row.save()


@needs_a_server
def test_a_verb_that_is_repeated_waits_for_a_commit_that_arrives_late(commits: Any) -> None:
    """Looked at without its lock the row would be found held, and be run again beside the completion."""
    row = claimed(Photo)
    belated = Belated()
    lose_answer(commits, belated, row.claim.complete)
    assert facts(row).status == "processing"
    repeated = elsewhere(row.claim.complete)
    belated.deliver()
    repeated.result(DEADLINE)
    assert facts(row).status == "complete"


# The verbs, in transactions of their own


@TABLES
@FATES
def test_completing_tells_the_truth(commits: Any, model: Any, fate: Fate) -> None:
    rows = make(model, 3)
    held = model.objects.claim_batch(3)
    for row in held:
        row.note = f"result of {row.pk}"
    commits.arm(fate)
    assert model.objects.complete(held, update_fields=["note"]) == 3
    assert commits.sprung.is_set()
    expected = [("complete", f"result of {row.pk}") for row in held]
    assert [(facts(row).status, fresh(row).note) for row in rows] == expected
    with pytest.raises(ClaimLost):
        model.objects.complete(held)


def test_a_row_that_was_lost_before_the_answer_was_is_not_taken_for_written(commits: Any) -> None:
    """Where one statement did it all, nobody can tell such a row from one written and put back since."""
    held = make_claimed(Photo, 3)
    lose(held[1])
    commits.arm(swallowed)
    with pytest.raises(ClaimLost) as caught:
        Photo.objects.complete(held)
    assert (caught.value.lost, caught.value.written) == ([held[1]], [held[0], held[2]])
    assert getattr(caught.value, "undecided", []) in ([], [held[1]])


@FATES
def test_failing_for_good_tells_the_truth(commits: Any, fate: Fate) -> None:
    row = claimed(Photo)
    commits.arm(fate)
    row.claim.fail("broken", retry=False)
    now = facts(row)
    assert (now.status, now.attempts, now.last_error) == ("failed", 1, "broken")


@pytest.mark.parametrize(("verb", "arguments"), [("release", []), ("fail", ["broken"])])
def test_a_row_that_was_put_back_is_undecided(
    commits: Any, verb: str, arguments: list[str]
) -> None:
    """It may be open because of this call, or because the reaper came after it failed; else the verb is repeated."""
    row, other = make_claimed(Photo, 2)
    commits.arm(swallowed)
    with pytest.raises(CommitUnknown) as caught:
        getattr(row.claim, verb)(*arguments)
    assert caught.value.lost == caught.value.undecided == [row]
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.undecided, str(again)) == ([row], str(caught.value))
    assert row.claim.lost
    commits.arm(withheld)
    getattr(other.claim, verb)(*arguments)
    assert [(facts(one).status, facts(one).iteration) for one in (row, other)] == [("open", 1)] * 2
    assert facts(other).attempts == len(arguments)


@FATES
@pytest.mark.parametrize("model", [Photo, Child])
def test_a_deletion_may_be_repeated(commits: Any, model: Any, fate: Fate) -> None:
    """Django takes the key away before the COMMIT; without it the row could only be stored as a new one."""
    row = claimed(model)
    key = row.pk
    commits.arm(fate)
    with pytest.raises(Error):
        row.delete()
    assert (row.pk, commits.sprung.is_set()) == (key, True)
    if fate is withheld:
        row.delete()
    else:
        with pytest.raises(CommitUnknown):
            row.delete()
        with pytest.raises(ClaimLost):
            row.save()
    assert not model.objects.exists()


@FATES
def test_a_renewal_is_repeated(commits: Any, fate: Fate) -> None:
    rows = make_claimed(Photo, 3, lease=60)
    before = facts(rows[0]).expires_at
    commits.arm(fate)
    assert Photo.objects.renew(rows, 600) == 3
    assert commits.sprung.is_set()
    assert facts(rows[0]).expires_at > before


# Claiming


@pytest.mark.promise(2)
@TABLES
def test_a_claim_that_was_committed_is_returned(commits: Any, model: Any) -> None:
    make(model, 3)
    model.objects.count()
    commits.arm(swallowed)
    held = model.objects.claim_batch(2)
    assert commits.sprung.is_set()
    assert len(held) == 2
    assert model.objects.open().count() == 1
    assert model.objects.complete(held) == 2


@pytest.mark.promise(2)
def test_a_claim_that_was_not_committed_is_an_error_and_charges_nobody(commits: Any) -> None:
    (row,) = make(Photo)
    commits.arm(withheld)
    with pytest.raises(Error):
        Photo.objects.claim_batch(1)
    assert (facts(row).status, facts(row).iteration) == ("open", 0)


def test_a_claim_under_a_name_passes_the_error_on(commits: Any) -> None:
    """Another call may have claimed the same rows under the same name; asking again returns them."""
    make(Photo)
    commits.arm(swallowed)
    with pytest.raises(Error):
        Photo.objects.claim_batch(1, claimed_by="user:17")
    assert len(Photo.objects.claim_batch(1, claimed_by="user:17", include_held=True)) == 1
