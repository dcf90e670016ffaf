"""What others hear of a change of state: signals after the commit, log records, async twins."""

import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.dispatch import Signal

from django_taskclaim.exceptions import ClaimLost, TaskClaimError
from django_taskclaim.querysets import fencing, losses
from django_taskclaim.signals import (
    claim_lost,
    rows_claimed,
    rows_completed,
    rows_expired,
    rows_failed,
    rows_released,
)
from tests.behaviour.support import facts, fresh, lose
from tests.factories import make
from tests.testapp.models import Child, ClaimOnly, HiddenRows, Photo, PhotoProxy

pytestmark = pytest.mark.django_db(transaction=True)

Heard = list[tuple[str, Any, list[Any]]]

SIGNALS: dict[str, Signal] = {
    "claimed": rows_claimed,
    "completed": rows_completed,
    "failed": rows_failed,
    "released": rows_released,
    "lost": claim_lost,
}


@pytest.fixture
def heard() -> Iterator[Heard]:
    """What a receiver of every signal hears: its name, the model, the keys."""
    told: Heard = []
    receivers = []
    for name, signal in SIGNALS.items():

        def receiver(name: str = name, **facts: Any) -> None:
            told.append((name, facts["sender"], [row.pk for row in facts["rows"]]))

        receivers.append(receiver)
        signal.connect(receiver)
    yield told
    for signal, receiver in zip(SIGNALS.values(), receivers, strict=True):
        signal.disconnect(receiver)


def claimed(model: Any, n: int = 1) -> list[Any]:
    make(model, n)
    rows: list[Any] = model.objects.claim_batch(n)
    return rows


def test_every_change_of_state_is_told_once_with_its_rows(heard: Heard) -> None:
    rows = claimed(Photo, 4)
    keys = [row.pk for row in rows]
    Photo.objects.complete(rows[:2])
    Photo.objects.fail(rows[2], "no")
    rows[3].release()
    assert heard == [
        ("claimed", Photo, keys),
        ("completed", Photo, keys[:2]),
        ("failed", Photo, keys[2:3]),
        ("released", Photo, keys[3:]),
    ]


def test_a_claim_of_nothing_tells_nobody(heard: Heard) -> None:
    Photo.objects.claim_batch(1)
    Photo.objects.complete([])
    assert heard == []


@pytest.mark.parametrize("model", [Photo, PhotoProxy, Child, HiddenRows])
def test_the_sender_is_the_class_of_the_rows(model: Any, heard: Heard) -> None:
    (row,) = claimed(model)
    row.complete()
    assert {sender for _, sender, _ in heard} == {model}


def test_nothing_is_told_before_the_commit(heard: Heard) -> None:
    (row,) = claimed(Photo)
    heard.clear()
    with transaction.atomic():
        row.complete()
        assert heard == []
    assert [name for name, _, _ in heard] == ["completed"]


def test_what_was_rolled_back_is_never_told(heard: Heard) -> None:
    (row,) = claimed(Photo)
    heard.clear()
    with transaction.atomic():
        row.complete()
        transaction.set_rollback(True)
    assert heard == []


@pytest.mark.parametrize("model", [Photo, Child])
@pytest.mark.parametrize("how", ["complete", "renew", "delete", "save", "bulk_update"])
def test_a_loss_is_told_and_logged(
    model: Any, how: str, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    (late,) = claimed(model)
    lose(late)
    heard.clear()
    caplog.clear()
    bulk_update = partial(model.objects.bulk_update, [late], ["note"])
    write = bulk_update if how == "bulk_update" else getattr(late, how)
    with pytest.raises(ClaimLost):
        write()
    assert heard == [("lost", model, [late.pk])]
    (record,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert str(late.pk) in record.getMessage()


def test_the_written_and_the_lost_of_one_call_are_told_apart(heard: Heard) -> None:
    rows = claimed(Photo, 3)
    Photo.objects.filter(pk=rows[1].pk).reset(running=True)
    heard.clear()
    with pytest.raises(ClaimLost):
        Photo.objects.complete(rows)
    assert heard == [
        ("completed", Photo, [rows[0].pk, rows[2].pk]),
        ("lost", Photo, [rows[1].pk]),
    ]


def test_a_receiver_that_raises_stops_nothing(heard: Heard) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("a receiver of the user's")

    rows_completed.connect(broken)
    try:
        (row,) = claimed(Photo)
        row.complete()
    finally:
        rows_completed.disconnect(broken)
    assert facts(row).status == "complete"


def test_a_verb_works_without_autocommit_although_somebody_listens(heard: Heard) -> None:
    (row,) = claimed(Photo)
    connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    try:
        row.complete()
        transaction.commit()
    finally:
        connection.set_autocommit(True)
    assert facts(row).status == "complete"


def test_the_reaper_tells_keys_and_fates(
    let_lease_lapse: Callable[[Any], None], rule: Callable[..., None]
) -> None:
    """It loads no instances, so that a dead worker's thousands cost nothing."""
    told: list[tuple[Any, str, str, set[Any]]] = []

    def receiver(sender: Any, using: str, fate: str, keys: list[Any], **_: Any) -> None:
        told.append((sender, using, fate, set(keys)))

    rule(Photo, max_attempts=2, backoff=lambda failures: 0)
    two = [row.pk for row in claimed(Photo, 2)]
    (person,) = make(Photo)
    Photo.objects.claim_batch(1, claimed_by="user:17")
    rows_expired.connect(receiver)
    try:
        let_lease_lapse([*Photo.objects.filter(pk__in=two), person])
        with transaction.atomic():
            Photo.objects.release_expired()
            assert told == []
        assert {fate: keys for _, _, fate, keys in told} == {
            "charged": set(two),
            "uncharged": {person.pk},
        }
        for fate in ("crashed", "failed"):
            told.clear()
            (row,) = Photo.objects.filter(pk=two[0]).claim_batch(1)
            let_lease_lapse(row)
            Photo.objects.release_expired()
            assert told == [(Photo, "default", fate, {two[0]})]
    finally:
        rows_expired.disconnect(receiver)


@pytest.mark.parametrize(("how", "expected"), [("rolled back", 0), ("committed", 1), ("alone", 1)])
def test_an_expiry_is_logged_once_it_is_committed(
    how: str,
    expected: int,
    let_lease_lapse: Callable[[Any], None],
    rule: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    rule(ClaimOnly, max_attempts=1)
    let_lease_lapse(claimed(ClaimOnly))
    with nullcontext() if how == "alone" else transaction.atomic():
        assert ClaimOnly.objects.release_expired() == 1
        if how == "rolled back":
            transaction.set_rollback(True)
    found = [one.levelname for one in caplog.records if getattr(one, "event", "") == "expired"]
    assert found == ["ERROR"] * expected


def test_what_a_renewal_found_lost_can_be_told(heard: Heard) -> None:
    rows = claimed(Photo, 2)
    lose(rows[0])
    heard.clear()
    outcome = fencing.renew(rows, None)
    assert (outcome.lost, heard) == (rows[:1], [])
    losses.tell_lost(outcome.lost)
    assert heard == [("lost", Photo, [rows[0].pk])]


# Errors of handlers, as text


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("even this fails")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("plain"), "ValueError", "plain"),
        ("a sentence", "", "a sentence"),
        (ClaimLost([], reason="x"), "django_taskclaim.exceptions.ClaimLost", None),
        (ValueError("nul \x00 byte"), "ValueError", "nul \\x00 byte"),
        (ValueError("surrogate \ud800"), "ValueError", "surrogate \\ud800"),
        (ValueError("🎈 100% %s 'ü'"), "ValueError", "🎈 100% %s 'ü'"),
        (Unspeakable(), f"{__name__}.Unspeakable", "<RuntimeError while describing the error>"),
        (KeyError(), "KeyError", ""),
    ],
)
def test_any_error_can_be_recorded(error: Any, kind: str, text: str | None) -> None:
    (row,) = claimed(Photo)
    row.fail(error)
    assert facts(row).error_class == kind
    if text is not None:
        assert facts(row).last_error == text


def test_an_endless_error_is_cut(settings: Any) -> None:
    (row,) = claimed(Photo)
    row.fail(ValueError("x" * 50_000_000))
    assert len(facts(row).last_error) == 4000
    assert facts(row).last_error.endswith("…")
    settings.TASKCLAIM = {"ERROR_LENGTH": 10}
    (other,) = claimed(HiddenRows)
    other.fail("0123456789 and more")
    assert facts(other).last_error == "012345678…"


@pytest.mark.parametrize("error", [ClaimLost([1, 2], [3], reason="because"), TaskClaimError("x")])
def test_errors_travel_between_processes(error: TaskClaimError) -> None:
    import pickle

    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))


def test_a_loss_carries_its_facts() -> None:
    (late,) = claimed(Photo)
    token = late.claim.token
    lose(late)
    with pytest.raises(ClaimLost) as lost:
        late.complete()
    assert lost.value.lost == [late]
    assert lost.value.written == []
    assert "testapp.Photo" in str(lost.value)
    assert str(token) in str(lost.value)


def test_what_a_row_says_of_its_claim() -> None:
    (row,) = claimed(Photo)
    assert not row.claim.lost
    assert 50 < row.claim.remaining().total_seconds() <= 60
    assert str(row.claim.token) in repr(row.claim)
    lose(row)
    assert not row.claim.lost  # nobody has asked the database yet
    with pytest.raises(ClaimLost):
        row.claim.check()
    assert row.claim.lost
    assert "no claim" in repr(fresh(row).claim)


# Async twins


def test_every_verb_has_an_async_twin() -> None:
    async def story() -> Any:
        manager: Any = Photo.objects
        rows = await manager.aclaim_batch(6, claimed_by="user:1")
        assert await manager.arenew(rows) == 6
        again = await manager.awith_token(rows[0].pk, rows[0].claim.token)
        assert await again.claim.acheck()
        rows[0].note = "async"
        assert await manager.acomplete(rows[:1], update_fields=["note"]) == 1
        assert await manager.afail(rows[1:2], "no", retry=False) == 1
        assert await manager.arelease(rows[2:3]) == 1
        await rows[3].claim.arenew()
        await rows[3].claim.acomplete()
        await rows[4].claim.afail("no")
        await rows[5].claim.arelease()
        assert await manager.apause_rows() == 3
        assert await manager.aresume_rows() == 3
        assert await manager.areset() == 1
        assert await manager.arelease_expired() == 0
        return await manager.aprogress()

    make(Photo, 6)
    progress: Any = async_to_sync(story)()
    assert (progress.complete, progress.open) == (2, 4)


def test_async_saves_are_fenced_as_well() -> None:
    (late,) = claimed(Photo)
    lose(late)
    late.note = "late"
    ways: list[Callable[[], Any]] = [late.asave, late.adelete]
    for way in ways:
        with pytest.raises(ClaimLost):
            async_to_sync(way)()
    assert fresh(late).note == ""
