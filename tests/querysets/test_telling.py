"""What others hear of a change of state: signals after the commit, log records, errors, async twins."""

import asyncio
import logging
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.dispatch import Signal

from django_taskclaim.exceptions import ClaimLost, TaskClaimError
from django_taskclaim.signals import (
    claim_lost,
    rows_claimed,
    rows_completed,
    rows_expired,
    rows_failed,
    rows_released,
)
from tests.factories import make, make_claimed
from tests.meanwhile import autocommit_off, connected
from tests.querysets.support import facts, keys, lapse, lose
from tests.testapp.models import Child, Photo, PhotoProxy

pytestmark = pytest.mark.django_db(transaction=True)

Heard = list[tuple[Signal, Any, list[Any]]]

SIGNALS: list[Signal] = [rows_claimed, rows_completed, rows_failed, rows_released, claim_lost]


@pytest.fixture
def heard() -> Iterator[Heard]:
    """Collect what a receiver of every signal hears: the signal, the model, the keys."""
    found: Heard = []

    def receiver(signal: Signal, sender: Any, rows: Any, **_: Any) -> None:
        found.append((signal, sender, keys(rows)))

    for signal in SIGNALS:
        signal.connect(receiver)
    yield found
    for signal in SIGNALS:
        signal.disconnect(receiver)


@pytest.mark.parametrize("model", [PhotoProxy, Child])
def test_every_change_of_state_sends_one_signal_with_its_rows(model: Any, heard: Heard) -> None:
    """The written and the lost rows of one call are signalled apart, and nothing that was rolled back is."""
    model.objects.claim_batch(1)
    rows = make_claimed(model, 5)
    model.objects.filter(pk=rows[1].pk).take_back()
    with pytest.raises(ClaimLost):
        model.objects.complete(rows[:3])
    model.objects.complete([])
    model.objects.fail(rows[3], "no")
    before = len(heard)
    for undone in (True, False):
        with transaction.atomic():
            rows[4].claim.release()
            assert len(heard) == before
            transaction.set_rollback(undone)
    assert heard == [
        (rows_claimed, model, keys(rows)),
        (rows_completed, model, keys([rows[0], rows[2]])),
        (claim_lost, model, keys(rows[1:2])),
        (rows_failed, model, keys(rows[3:4])),
        (rows_released, model, keys(rows[4:])),
    ]


@pytest.mark.parametrize("how", ["complete", "renew", "delete", "save", "bulk_update"])
def test_a_loss_is_signalled_and_logged_once(
    how: str, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    (late,) = make_claimed(Child, 1)
    lose(late)
    heard.clear()
    caplog.clear()
    bulk_update = partial(Child.objects.bulk_update, [late], ["note"])
    write = bulk_update if how == "bulk_update" else getattr(late, how)
    for _ in range(2):
        with pytest.raises(ClaimLost):
            write()
    assert heard[:1] == [(claim_lost, Child, [late.pk])]
    (record,) = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert str(late.pk) in record.getMessage()


def test_a_receiver_that_raises_stops_nothing_with_autocommit_or_without() -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("a receiver of the user's")

    rows = make_claimed(Photo, 2)
    with connected(rows_completed, broken):
        rows[0].complete()
        with autocommit_off():
            rows[1].complete()
            transaction.commit()
    assert {facts(row).status for row in rows} == {"complete"}


def test_the_reaper_signals_keys_and_outcomes_and_logs_them_once_committed(
    rule: Callable[..., None], caplog: Any
) -> None:
    """It loads no instances, so that a dead worker's thousands cost nothing."""
    found: dict[str, set[Any]] = {}

    def receiver(sender: Any, using: str, outcome: str, keys: list[Any], **_: Any) -> None:
        found[outcome] = set(keys)

    def logged() -> list[str]:
        return [one.levelname for one in caplog.records if getattr(one, "event", "") == "expired"]

    rule(Photo, max_attempts=2, backoff=lambda failures: 0)
    rows = make_claimed(Photo, 2)
    (person,) = make_claimed(Photo, claimed_by="user:17")
    lapse([*rows, person])
    with connected(rows_expired, receiver):
        for undone in (True, False):
            with transaction.atomic():
                assert Photo.objects.release_expired() == 3
                assert (found, logged()) == ({}, [])
                transaction.set_rollback(undone)
        assert found == {"charged": {row.pk for row in rows}, "uncharged": {person.pk}}
        for outcome in ("quarantined", "failed"):
            (row,) = Photo.objects.filter(pk=rows[0].pk).claim_batch(1)
            lapse(row)
            Photo.objects.release_expired()
            assert found[outcome] == {row.pk}
    assert logged()[-1] == "ERROR"


# Errors and what a row says


def test_a_loss_carries_its_facts_and_travels_between_processes() -> None:
    (late,) = make_claimed(Photo, 1)
    token = late.claim.token
    lose(late)
    with pytest.raises(ClaimLost) as lost:
        late.complete()
    assert (lost.value.lost, lost.value.written) == ([late], [])
    for word in ("testapp.Photo", str(late.pk), str(token)):
        assert word in str(lost.value)
    for error in (lost.value, TaskClaimError("x")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))


def test_what_a_row_says_of_its_claim() -> None:
    (row,) = make_claimed(Photo, 1)
    assert not row.claim.lost
    lose(row)
    assert not row.claim.lost  # nobody has asked the database yet
    with pytest.raises(ClaimLost):
        row.claim.check()
    assert row.claim.lost


# Async twins


#: Verbs of a queryset and how they are called; their twins' names begin with an a.
VERBS: dict[str, Any] = {
    "claim_batch": {"limit": 1},
    "complete": {"rows": []},
    "release": {"rows": []},
    "renew": {"rows": []},
    "fail": {"rows": [], "error": "no"},
    "hand_over": {"rows": [], "to": "user:2"},
    "take_over": {"by": "user:1", "reason": "ill"},
    "holdings": {"who": "user:1"},
    "fail_rows": {"error": "no"},
    "prune": {"older_than": 60},
}
VERBS |= {name: {} for name in ("why_empty", "take_back", "release_expired", "delete_failed")}
VERBS |= {name: {} for name in ("reset", "pause_rows", "resume_rows", "progress")}


@pytest.mark.once
def test_every_verb_has_an_async_twin() -> None:
    async def answers() -> Any:
        return {
            verb: await getattr(Photo.objects, f"a{verb}")(**given) for verb, given in VERBS.items()
        }

    async def story() -> Any:
        rows = await Photo.objects.aclaim_batch(4, claimed_by="user:1")
        again = await Photo.objects.awith_token(rows[0].pk, rows[0].claim.token)
        await again.claim.arenew()
        await again.claim.acomplete()
        await rows[1].claim.afail("no")
        await rows[2].claim.arelease()
        await rows[3].claim.ahand_over("user:2")
        return await Photo.objects.aprogress()

    assert async_to_sync(answers)() == {
        verb: getattr(Photo.objects, verb)(**given) for verb, given in VERBS.items()
    }
    # What Django's manager makes of a queryset's method is a plain function, which says that it is async all the same.
    for verb in ("claim_batch", "with_token", *VERBS):
        assert asyncio.iscoroutinefunction(getattr(Photo.objects, f"a{verb}")), verb
        assert asyncio.iscoroutinefunction(getattr(Photo.objects.all(), f"a{verb}")), verb
    make(Photo, 4)
    progress = async_to_sync(story)()
    assert (progress.complete, progress.open, progress.processing) == (1, 2, 1)
