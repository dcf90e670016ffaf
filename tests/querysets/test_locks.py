"""Nothing that serves many rows ever waits for one: the reaper, renewals, an operator's verbs."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings

from django_taskclaim.exceptions import ClaimLost
from tests.factories import make, make_claimed
from tests.querysets.late_writes import twin
from tests.querysets.models import Label, Labelled
from tests.querysets.support import DEADLINE, ROW_LOCKS, elsewhere, facts, fresh, held_open, lapse
from tests.testapp.models import Child, Photo

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not ROW_LOCKS, reason="no row locks: one writer at a time"),
]

TABLES = pytest.mark.parametrize("model", [Photo, Child])


def in_time(function: Callable[[], Any]) -> Any:
    """Run *function* on a connection of its own; fail if it waits for a lock that is kept until it has returned."""
    return elsewhere(function).result(DEADLINE)


@pytest.mark.promise(7)
@TABLES
def test_the_reaper_frees_all_rows_but_locked_ones_which_count_against_no_limit(
    model: Any, rival: Any
) -> None:
    """Otherwise the first rows of a frozen worker would keep a limited reaper from all the others."""
    rows = make_claimed(model, 6)
    lapse(rows)
    rival.lock(rows[0], rows[1])
    assert in_time(lambda: model.objects.release_expired(limit=2)) == 2
    assert in_time(model.objects.release_expired) == 2
    assert facts(rows[0]).status == "processing"
    rival.let_go()
    assert model.objects.release_expired() == 2


@pytest.mark.parametrize(
    "verb", ["release_expired", "pause_rows", "reset", "take_back", "fail_rows"]
)
def test_one_locked_row_does_not_keep_the_rows_of_later_chunks_waiting(
    verb: str, rival: Any
) -> None:
    rows = make_claimed(Photo, 25)
    if verb == "release_expired":
        lapse(rows)
    elif verb == "pause_rows":
        Photo.objects.release(rows)
    elif verb == "reset":
        Photo.objects.fail(rows, "all", retry=False)
    rival.lock(rows[2], rows[7])
    with override_settings(TASKCLAIM={"CHUNK_SIZE": 5}):
        options = {"error": "no", "running": True} if verb == "fail_rows" else {}
        assert in_time(lambda: getattr(Photo.objects, verb)(**options)) == 23


@pytest.mark.promise(8)
@TABLES
def test_a_renewal_skips_the_locked_row_and_neither_loses_it_nor_waits(
    model: Any, rival: Any
) -> None:
    rows = make_claimed(model, 4)
    before = [facts(row).expires_at for row in rows]
    model.objects.filter(pk=rows[3].pk).reset(running=True)
    rival.lock(rows[1])
    with pytest.raises(ClaimLost) as lost:
        in_time(lambda: model.objects.renew(rows, lease=3600))
    assert (lost.value.lost, lost.value.written) == ([rows[3]], [rows[0], rows[2]])
    after = [facts(row).expires_at for row in rows[:3]]
    assert [new > old for new, old in zip(after, before, strict=False)] == [True, False, True]
    assert in_time(rows[1].claim.renew) is False
    assert rows[1].claim.check()
    rival.let_go()
    assert rows[1].claim.renew(lease=3600)


@pytest.mark.promise(8)
@TABLES
def test_a_row_that_its_own_handler_has_written_in_an_open_transaction_is_not_lost(
    model: Any,
) -> None:
    """Renewed from the connection of a renewal, while the handler's transaction holds it."""
    rows = make_claimed(model, 3)
    known = [twin(row) for row in rows]
    with transaction.atomic():
        rows[0].note = "half done"
        rows[0].save()
        assert in_time(lambda: model.objects.renew(known, lease=3600)) == 2
        assert model.objects.renew(rows[:1]) == 1
        rows[0].claim.complete()
        assert in_time(lambda: model.objects.renew(known, lease=3600)) == 2
    assert (fresh(rows[0]).note, facts(rows[0]).status) == ("half done", "complete")


def test_claims_pass_over_locked_rows_and_keep_the_order(rival: Any) -> None:
    make(Photo, 40, priority=lambda i: i // 3)
    rows = list(Photo.objects.order_by("-priority", "pk"))
    rival.lock(*rows[:20], *rows[21:25])
    for free in ([rows[20]], rows[25:35]):
        assert in_time(lambda expected=free: Photo.objects.claim_batch(len(expected))) == free


@pytest.mark.parametrize("related", [False, True])
def test_a_claim_locks_no_row_that_it_leaves(related: bool, rival: Any) -> None:
    rows, label = make(Labelled, 40), Label.objects.create(name="new")
    for row in rows:
        row.labels.add(label)
    rival.lock(*rows[:9])
    chosen = Labelled.objects.filter(labels=label) if related else Labelled.objects.all()
    with held_open(lambda: chosen.claim_batch(10, durable=False)) as held:
        free = in_time(lambda: Labelled.objects.claim_batch(40))
    assert (len(held), len(free)) == (10, 40 - 9 - 10)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="locks a row without its key")
def test_inserting_a_child_row_does_not_wait_for_a_claim_of_its_parent() -> None:
    """A plain FOR UPDATE would collide with the foreign key's check."""
    row, label = make(Labelled)[0], Label.objects.create(name="new")
    with transaction.atomic():
        Labelled.objects.claim_batch(1, durable=False)
        in_time(lambda: Labelled.objects.get(pk=row.pk).labels.add(label))
    assert row.labels.count() == 1


@pytest.mark.promise(1, 3, 4)
def test_of_a_completion_and_the_reaper_one_wins() -> None:
    row, late = make_claimed(Photo, 2)
    lapse(row)
    with transaction.atomic():
        row.claim.complete()
        assert in_time(Photo.objects.release_expired) == 0
    assert facts(row).status == "complete"
    lapse(late)
    with held_open(Photo.objects.release_expired) as freed:
        assert freed == 1
        completing = elsewhere(lambda: Photo.objects.complete([late]))
        assert not completing.done()
    # The reaper's transaction was rolled back in the end, so the token still stands.
    assert completing.result(DEADLINE) == 1
