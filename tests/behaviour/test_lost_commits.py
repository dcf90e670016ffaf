"""A COMMIT whose answer never arrives: the rows themselves tell what became of it."""

import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import Error, OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_taskclaim.exceptions import ClaimLost, CommitUndecided
from django_taskclaim.querysets import lost_commits
from django_taskclaim.querysets.lost_commits import judge_after_lost_commit
from tests.behaviour.support import DEADLINE, facts, fresh, lose, set_raw, stored
from tests.factories import make
from tests.proxy import HAS_A_SERVER, Belated, Fate, swallowed, withheld
from tests.testapp.models import Child, ClaimOnly, CompositeKey, Photo

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
    assert commits.sprung.wait(10)


@pytest.mark.parametrize("model", [Photo, Child, CompositeKey, ClaimOnly])
def test_a_completion_that_was_committed_is_ours(commits: Any, model: Any) -> None:
    rows = make(model, 3)
    claimed = model.objects.claim_batch(3)
    lose_answer(commits, swallowed, lambda: model.objects.complete(claimed))
    assert not any(row.claim.lost for row in claimed)
    judged = judge_after_lost_commit(claimed)
    assert judged == (claimed, [], [])
    assert [facts(row).status for row in rows] == ["complete"] * 3
    # The instances are ordinary ones again.
    claimed[0].note = "afterwards"
    claimed[0].save()


def test_a_completion_that_was_not_committed_is_still_held(commits: Any) -> None:
    make(Photo, 2)
    claimed = Photo.objects.claim_batch(2)
    lose_answer(commits, withheld, lambda: Photo.objects.complete(claimed))
    assert judge_after_lost_commit(claimed) == ([], [], claimed)
    assert Photo.objects.complete(claimed) == 2


@needs_a_server
def test_a_commit_that_arrives_late_is_waited_for(commits: Any) -> None:
    """Looked at without its lock the row would be found held, and be run again beside the completion."""
    make(Photo)
    (claimed,) = Photo.objects.claim_batch(1)
    belated = Belated()
    lose_answer(commits, belated, claimed.claim.complete)
    assert facts(claimed).status == "processing"
    threading.Timer(0.5, belated.deliver).start()
    assert judge_after_lost_commit([claimed], patience=DEADLINE) == ([claimed], [], [])


@needs_a_server
def test_nothing_is_decided_while_the_commit_may_still_arrive(commits: Any) -> None:
    make(Photo)
    (claimed,) = Photo.objects.claim_batch(1)
    belated = Belated()
    lose_answer(commits, belated, claimed.claim.complete)
    with pytest.raises(OperationalError):
        judge_after_lost_commit([claimed], patience=0.3)
    assert not claimed.claim.lost
    belated.deliver()
    assert judge_after_lost_commit([claimed]).ours_complete == [claimed]


def test_what_has_moved_on_is_undecided(commits: Any) -> None:
    """Gone, open again or taken by the next holder: whether that began with our COMMIT, nobody can tell."""
    make(Photo, 4)
    gone, reopened, taken, held = claimed = Photo.objects.claim_batch(4)
    before = stored(held)
    Photo.objects.filter(pk=gone.pk)._raw_delete("default")
    lose(taken)
    set_raw(reopened, "status", "'open'")
    set_raw(reopened, "iteration", "iteration + 1")
    assert judge_after_lost_commit(claimed) == ([], [gone, reopened, taken], [held])
    assert [row.claim.lost for row in claimed] == [True, True, True, False]
    assert stored(held) == before


# The verbs, in transactions of their own


@pytest.mark.parametrize("fate", [swallowed, withheld], ids=["committed", "not committed"])
@pytest.mark.parametrize("model", [Photo, Child, CompositeKey, ClaimOnly])
def test_completing_tells_the_truth(commits: Any, model: Any, fate: Fate) -> None:
    rows = make(model, 3)
    claimed = model.objects.claim_batch(3)
    for row in claimed:
        row.note = f"result of {row.pk}"
    commits.arm(fate)
    assert model.objects.complete(claimed, update_fields=["note"]) == 3
    assert commits.sprung.is_set()
    assert [(facts(row).status, fresh(row).note) for row in rows] == [
        ("complete", f"result of {row.pk}") for row in claimed
    ]


def test_a_row_that_was_lost_before_the_answer_was_is_not_taken_for_written(commits: Any) -> None:
    """Where one statement did it all, nobody can tell such a row from one that was written and put back since."""
    make(Photo, 3)
    claimed = Photo.objects.claim_batch(3)
    lose(claimed[1])
    commits.arm(swallowed)
    with pytest.raises(ClaimLost) as caught:
        Photo.objects.complete(claimed)
    told = [] if type(caught.value) is ClaimLost else caught.value.undecided
    assert told in ([], [claimed[1]])
    assert (caught.value.lost, caught.value.written) == ([claimed[1]], [claimed[0], claimed[2]])


@pytest.mark.parametrize("fate", [swallowed, withheld], ids=["committed", "not committed"])
def test_failing_for_good_tells_the_truth(commits: Any, fate: Fate) -> None:
    make(Photo)
    (row,) = Photo.objects.claim_batch(1)
    commits.arm(fate)
    row.claim.fail("broken", retry=False)
    assert (facts(row).status, facts(row).attempts, facts(row).last_error) == (
        "failed",
        1,
        "broken",
    )


@pytest.mark.parametrize(
    "end", [lambda row: row.claim.release(), lambda row: row.claim.fail("broken")]
)
def test_a_row_that_was_put_back_is_undecided(commits: Any, end: Callable[[Any], None]) -> None:
    """It may be open because of this call, or because the reaper came after it failed."""
    make(Photo)
    (row,) = Photo.objects.claim_batch(1)
    commits.arm(swallowed)
    with pytest.raises(CommitUndecided) as caught:
        end(row)
    assert caught.value.lost == caught.value.undecided == [row]
    assert "Nobody can tell" in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.undecided, str(again)) == ([row], str(caught.value))
    assert (facts(row).status, facts(row).iteration) == ("open", 1)
    assert row.claim.lost


def test_putting_back_is_repeated_where_it_was_not_committed(commits: Any) -> None:
    make(Photo)
    (row,) = Photo.objects.claim_batch(1)
    commits.arm(withheld)
    row.claim.fail("broken")
    assert (facts(row).status, facts(row).iteration, facts(row).attempts) == ("open", 1, 1)


def test_a_try_after_a_longer_outage_begins_by_asking_the_row(
    commits: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the worker that repeats a completion until the database answers would take its own for a loss."""
    make(Photo, 2)
    rows = Photo.objects.claim_batch(2)
    commits.arm(swallowed)
    with monkeypatch.context() as away:
        away.setattr(lost_commits, "judge_after_lost_commit", _away)
        away.setattr("django_taskclaim.querysets.fencing.judge_after_lost_commit", _away)
        with pytest.raises(Error):
            Photo.objects.complete(rows)
    assert not any(row.claim.lost for row in rows)
    rows = pickle.loads(pickle.dumps(rows))
    assert Photo.objects.complete(rows) == 2
    with pytest.raises(ClaimLost):
        Photo.objects.complete(rows)


def _away(*args: Any, **kwargs: Any) -> Any:
    raise OperationalError("the database is away")


@needs_a_server
def test_a_caller_whose_own_commit_was_lost_may_repeat_the_verb(commits: Any) -> None:
    make(Photo)
    (row,) = Photo.objects.claim_batch(1)
    lose_answer(commits, swallowed, row.claim.complete)
    row.claim.complete()
    assert facts(row).status == "complete"


def test_a_rollback_that_the_caller_asked_for_is_no_lost_commit(
    transactional_db: None, django_assert_num_queries: Any
) -> None:
    make(Photo, 2)
    row, other = Photo.objects.claim_batch(2)
    with transaction.atomic():
        row.claim.complete()
        transaction.set_rollback(True)
    with CaptureQueriesContext(connection) as usual:
        other.claim.complete()
    with django_assert_num_queries(len(usual)):
        row.claim.complete()


@pytest.mark.parametrize("fate", [swallowed, withheld], ids=["committed", "not committed"])
@pytest.mark.parametrize("model", [Photo, Child, CompositeKey])
def test_a_deletion_may_be_repeated(commits: Any, model: Any, fate: Fate) -> None:
    """Django takes the key away before the COMMIT; without it the row could only be stored as a new one."""
    make(model)
    (row,) = model.objects.claim_batch(1)
    key = row.pk
    commits.arm(fate)
    with pytest.raises(Error):
        row.delete()
    assert (row.pk, commits.sprung.is_set()) == (key, True)
    if fate is withheld:
        row.delete()
    else:
        with pytest.raises(CommitUndecided, match="Nobody can tell"):
            row.delete()
        with pytest.raises(ClaimLost):
            row.save()
    assert not model.objects.exists()


@pytest.mark.parametrize("fate", [swallowed, withheld], ids=["committed", "not committed"])
def test_a_renewal_is_repeated(commits: Any, fate: Fate) -> None:
    make(Photo, 3)
    rows = Photo.objects.claim_batch(3, lease=60)
    before = facts(rows[0]).expires_at
    commits.arm(fate)
    assert Photo.objects.renew(rows, 600) == 3
    assert commits.sprung.is_set()
    assert facts(rows[0]).expires_at > before


# Claiming


@pytest.mark.parametrize("model", [Photo, Child, CompositeKey, ClaimOnly])
def test_a_claim_that_was_committed_is_returned(commits: Any, model: Any) -> None:
    make(model, 3)
    model.objects.count()
    commits.arm(swallowed)
    claimed = model.objects.claim_batch(2)
    assert commits.sprung.is_set()
    assert len(claimed) == 2
    assert model.objects.open().count() == 1
    assert model.objects.complete(claimed) == 2


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


def test_an_empty_claim_is_empty_whatever_became_of_its_commit(commits: Any) -> None:
    make(Photo, status="complete")
    commits.arm(swallowed)
    assert Photo.objects.claim_batch(1) == []
