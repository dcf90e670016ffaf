"""Rows in combinations that no verb leaves behind, and what ``repair`` and ``claimdoctor --repair`` make of them."""

import io
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command

from django_taskclaim.control.models import OperatorAct
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.querysets.repairing import count
from tests.behaviour.support import ROW_LOCKS, Rival, clock, facts, has, set_raw, stored
from tests.behaviour.test_operators import in_each_state
from tests.factories import make
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db(databases="__all__")

NEVER_ENDS = "processing without an end of the lease"
OPEN = "open with a holder or a lease"
PAUSED = "paused with a holder or a lease"
ENDED = "complete or failed with a lease"


def test_what_verbs_leave_behind_is_left_alone(shape: Any) -> None:
    rows = in_each_state(shape)
    before = {state: stored(row) for state, row in rows.items()}
    assert count(shape.objects.all()) == shape.objects.repair() == {}
    assert {state: stored(row) for state, row in rows.items()} == before


def test_each_contradiction_is_put_right(shape: Any) -> None:
    rows = in_each_state(shape)
    before = {state: facts(row) for state, row in rows.items()}
    set_raw(rows["processing"], "expires_at", "NULL")
    for state in ("open", "paused", "complete", "failed"):
        set_raw(rows[state], "expires_at", clock("+1 HOUR"))
    found = {NEVER_ENDS: 1, OPEN: 1, PAUSED: 1, ENDED: 2}
    assert count(shape.objects.all()) == found
    assert shape.objects.repair() == found
    assert count(shape.objects.all()) == shape.objects.repair() == {}
    now = {state: facts(row) for state, row in rows.items()}
    statuses = {state: one.status for state, one in now.items()}
    assert statuses == {state: state for state in rows} | {"processing": "open"}
    assert {one.expires_at for one in now.values()} == {None}
    put_back = {state for state, one in now.items() if one.iteration > before[state].iteration}
    assert put_back == {"open", "paused", "processing"}
    for state in ("complete", "failed"):
        assert now[state].claimed_by == before[state].claimed_by
    if has(shape, "attempts"):
        assert now["processing"].attempts == before["processing"].attempts + 1
    with pytest.raises(ClaimLost):
        rows["processing"].claim.complete()


@pytest.mark.parametrize("role", ["claimed_by", "claimed_at", "expires_at"])
@pytest.mark.parametrize("status", ["open", "paused"])
def test_a_row_that_waits_has_nothing_of_a_claim(role: str, status: str) -> None:
    (row,) = make(Photo, status=status)
    set_raw(row, role, "'somebody'" if role == "claimed_by" else clock("-1 HOUR"))
    assert sum(Photo.objects.repair().values()) == 1
    now = facts(row)
    assert (now.status, now.claimed_by, now.claimed_at, now.expires_at) == (status, *[None] * 3)
    Photo.objects.resume_rows()
    assert [one.pk for one in Photo.objects.claim_batch(1)] == [row.pk]


def test_the_conditions_of_the_queryset_hold() -> None:
    first, second = make(Photo, 2)
    for row in (first, second):
        set_raw(row, "expires_at", clock("+1 HOUR"))
    assert Photo.objects.filter(pk=first.pk).repair() == {OPEN: 1}
    assert count(Photo.objects.all()) == {OPEN: 1}


@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_locked_row_is_left_alone_and_not_waited_for(rival: Rival) -> None:
    locked, free = make(Photo, 2)
    for row in (locked, free):
        set_raw(row, "expires_at", clock("+1 HOUR"))
    rival.lock(locked)
    assert Photo.objects.repair() == {OPEN: 1}


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_async_twin() -> None:
    async def repaired() -> Any:
        return await Photo.objects.arepair()

    assert async_to_sync(repaired)() == {}


# claimdoctor


def doctor(*words: str) -> str:
    out = io.StringIO()
    try:
        call_command("claimdoctor", "testapp.Photo", *words, stdout=out)
    except CommandError as error:
        return out.getvalue() + str(error)
    return out.getvalue()


def test_the_doctor_finds_them_and_repairs_them_when_told_to() -> None:
    make(Photo)
    set_raw(Photo.objects.claim_batch(1)[0], "expires_at", "NULL")
    for row in make(Photo, 2):
        set_raw(row, "expires_at", clock("+1 HOUR"))
    said = doctor()
    assert "!!  2 rows of testapp.Photo are open with a holder or a lease: something" in said
    assert "!!  1 row of testapp.Photo is processing without an end of the lease: something" in said
    assert "      manage.py claimdoctor testapp.Photo --repair" in said
    assert count(Photo.objects.all())
    assert OperatorAct.objects.count() == 0
    said = doctor("--repair")
    assert (
        "ok  1 row was processing without an end of the lease: put back as if the lease had ended."
        in said
    )
    assert "ok  2 rows were open with a holder or a lease: open, and held by nobody." in said
    assert "something that is no verb" not in said
    assert len(Photo.objects.due()) == 3
    act = OperatorAct.objects.get()
    assert (act.model, act.act, act.rows) == ("testapp.photo", "repair", 3)
    assert "Repaired" not in doctor("--repair")
    assert OperatorAct.objects.count() == 1
