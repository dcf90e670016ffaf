"""Nothing that serves many rows ever waits for one: the reaper, renewals, an operator's verbs."""

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_taskclaim.exceptions import ClaimLost
from tests.behaviour.support import (
    DEADLINE,
    ROW_LOCKS,
    claimable_rows,
    elsewhere,
    facts,
    fresh,
    held_open,
)
from tests.factories import make
from tests.testapp.models import Child, ChildOwnsClaim, Photo, TextKey, UuidKey

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not ROW_LOCKS, reason="no row locks: one writer at a time"),
]

Lapse = Callable[[Any], None]

MODELS = pytest.mark.parametrize("model", [Photo, Child, ChildOwnsClaim, UuidKey, TextKey])


def claimed(model: Any, n: int) -> list[Any]:
    make(model, n)
    rows: list[Any] = model.objects.order_by("note").claim_batch(n)
    return sorted(rows, key=lambda row: row.pk)


def in_time(function: Callable[[], Any]) -> Any:
    """Run *function* on a connection of its own; fail if it waits for whoever keeps a lock until it has returned."""
    return elsewhere(function).result(DEADLINE)


@MODELS
def test_the_reaper_frees_all_rows_but_the_locked_one(
    model: Any, rival: Any, let_lease_lapse: Lapse
) -> None:
    rows = claimed(model, 4)
    let_lease_lapse(rows)
    rival.lock(rows[0])
    assert in_time(model.objects.release_expired) == 3
    assert facts(rows[0]).status == "processing"
    rival.let_go()
    assert model.objects.release_expired() == 1


@pytest.mark.parametrize("limit", [1, 2])
def test_locked_rows_do_not_count_against_the_reapers_limit(
    limit: int, rival: Any, let_lease_lapse: Lapse
) -> None:
    """Else the first rows of a frozen worker would keep a limited reaper from all the others for ever."""
    rows = claimed(Photo, 6)
    let_lease_lapse(rows)
    rival.lock(rows[0], rows[1])
    assert in_time(lambda: Photo.objects.release_expired(limit=limit)) == limit
    assert in_time(Photo.objects.release_expired) == 4 - limit


@pytest.mark.parametrize("verb", ["release_expired", "pause_rows", "reset"])
def test_one_locked_row_does_not_keep_the_rows_of_later_chunks_waiting(
    verb: str, rival: Any, let_lease_lapse: Lapse
) -> None:
    make(Photo, 25)
    rows = sorted(Photo.objects.claim_batch(25), key=lambda row: row.pk)
    if verb == "release_expired":
        let_lease_lapse(rows)
    elif verb == "pause_rows":
        Photo.objects.release(rows)
    else:
        Photo.objects.fail(rows, "all", retry=False)
    rival.lock(rows[2], rows[7])
    with override_settings(TASKCLAIM={"CHUNK_SIZE": 5}):
        assert in_time(getattr(Photo.objects, verb)) == 23


def test_more_expired_rows_than_a_chunk_are_freed_in_one_call(let_lease_lapse: Lapse) -> None:
    claimable_rows(Photo, 1200)
    Photo.objects.claim_batch(1000)
    Photo.objects.claim_batch(1000)
    Photo._base_manager.update(expires_at=None)
    assert Photo.objects.release_expired(limit=700) == 700
    assert Photo.objects.release_expired() == 500


@pytest.mark.parametrize("limit", [0, -1, True, "5", 1.5])
def test_a_wrong_limit_of_the_reaper_is_a_value_error(limit: Any) -> None:
    with pytest.raises(ValueError, match="limit"):
        Photo.objects.release_expired(limit=limit)


@MODELS
def test_a_renewal_skips_the_locked_row_and_neither_loses_it_nor_waits(
    model: Any, rival: Any
) -> None:
    rows = claimed(model, 4)
    before = [facts(row).expires_at for row in rows]
    rival.lock(rows[1])
    assert in_time(lambda: model.objects.renew(rows, lease=3600)) == 3
    after = [facts(row).expires_at for row in rows]
    assert [new > old for new, old in zip(after, before, strict=True)] == [True, False, True, True]
    rival.let_go()
    assert rows[1].claim.renew(lease=3600)


def test_one_row_alone_says_that_it_was_not_renewed(rival: Any) -> None:
    (row,) = claimed(Photo, 1)
    rival.lock(row)
    assert in_time(row.claim.renew) is False
    assert row.claim.check()


def test_a_lost_row_is_told_from_a_locked_one(rival: Any) -> None:
    rows = claimed(Photo, 3)
    Photo.objects.filter(pk=rows[0].pk).reset(running=True)
    rival.lock(rows[1])
    with pytest.raises(ClaimLost) as lost:
        in_time(lambda: Photo.objects.renew(rows))
    assert lost.value.lost == [rows[0]]
    assert lost.value.written == [rows[2]]


@MODELS
def test_a_row_that_its_own_handler_has_written_in_an_open_transaction_is_not_lost(
    model: Any,
) -> None:
    """Renewed from the connection of a renewal, while the handler's transaction holds it."""
    rows = claimed(model, 3)
    known = pickle.loads(pickle.dumps(rows))
    with transaction.atomic():
        rows[0].note = "half done"
        rows[0].save()
        assert in_time(lambda: model.objects.renew(known, lease=3600)) == 2
        assert model.objects.renew(rows[:1]) == 1
        rows[0].claim.complete()
        assert in_time(lambda: model.objects.renew(known, lease=3600)) == 2
    assert (fresh(rows[0]).note, facts(rows[0]).status) == ("half done", "complete")


def test_claims_pass_over_rows_that_another_has_locked(strategy: str, rival: Any) -> None:
    if strategy != "auto":
        pytest.skip("only the best claim of a database passes over locked rows")
    rows = make(Photo, 30)
    rival.lock(*rows[:12])
    claimed = in_time(lambda: Photo.objects.claim_batch(10))
    assert [row.pk for row in claimed] == [row.pk for row in rows[12:22]]


@pytest.mark.parametrize(("model", "most"), [(Photo, 16), (TextKey, 60), (UuidKey, 60)])
def test_a_claim_beside_many_others_takes_few_statements(model: Any, most: int, rival: Any) -> None:
    """One row is still wanted, and hundreds before the next free one are in other hands."""
    make(model, 700)
    rows = list(model.objects.order_by("pk"))
    rival.lock(*rows[39:-1])
    with CaptureQueriesContext(connection) as sent:
        claimed = model.objects.claim_batch(40)
    assert {row.pk for row in claimed} == {row.pk for row in [*rows[:39], rows[-1]]}
    assert len(sent) < most


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
@pytest.mark.parametrize("priorities", [range(40), [n // 8 for n in range(40)], [0] * 40])
def test_a_claim_beside_locked_rows_keeps_the_order(
    limit: int, priorities: Sequence[int], rival: Any
) -> None:
    """More is locked than is read ahead, in the order of keys and in others."""
    for priority in priorities:
        make(Photo, 1, priority=priority)
    rows = list(Photo.objects.order_by("-priority", "pk"))
    rival.lock(*rows[:20], *rows[21:25])
    claimed = in_time(lambda: Photo.objects.claim_batch(limit))
    assert [row.pk for row in claimed] == [row.pk for row in [rows[20], *rows[25:]][:limit]]


@pytest.mark.parametrize("related", [False, True])
def test_a_claim_locks_no_row_that_it_leaves(related: bool, rival: Any) -> None:
    """Whoever comes next finds every row that was not claimed, whatever was asked for."""
    from tests.behaviour.models import Label, Labelled

    rows, label = make(Labelled, 60), Label.objects.create(name="new")
    for row in rows:
        row.labels.add(label)
    rival.lock(*rows[:9])
    chosen = Labelled.objects.filter(labels=label) if related else Labelled.objects.all()
    with held_open(lambda: chosen.claim_batch(10, durable=False)) as claimed:
        free = in_time(lambda: Labelled.objects.claim_batch(60))
    assert len(claimed) == 10
    assert len(free) == 60 - 9 - 10


def test_inserting_a_child_row_does_not_wait_for_a_claim_of_its_parent() -> None:
    """On PostgreSQL a plain FOR UPDATE would collide with the foreign key's check."""
    from tests.behaviour.models import Label, Labelled

    row, label = make(Labelled)[0], Label.objects.create(name="new")
    with transaction.atomic():
        Labelled.objects.claim_batch(1, durable=False)
        if connection.vendor == "postgresql":
            in_time(lambda: Labelled.objects.get(pk=row.pk).labels.add(label))
    assert row.labels.count() == (connection.vendor == "postgresql")


def test_a_completion_waits_for_its_row_and_then_writes_it(rival: Any) -> None:
    (row,) = claimed(Photo, 1)
    rival.lock(row)
    completing = elsewhere(lambda: Photo.objects.complete([row]))
    assert not completing.done()
    rival.let_go()
    assert completing.result(DEADLINE) == 1


@pytest.mark.parametrize("first", ["complete", "reaper"])
def test_of_a_completion_and_the_reaper_one_wins(first: str, let_lease_lapse: Lapse) -> None:
    (row,) = claimed(Photo, 1)
    let_lease_lapse(row)
    if first == "complete":
        with transaction.atomic():
            row.claim.complete()
            assert in_time(Photo.objects.release_expired) == 0
        assert facts(row).status == "complete"
        return
    with held_open(Photo.objects.release_expired) as freed:
        assert freed == 1
        completing = elsewhere(lambda: Photo.objects.complete([row]))
        assert not completing.done()
    # The reaper's transaction was rolled back in the end, so the token still stands.
    assert completing.result(DEADLINE) == 1
