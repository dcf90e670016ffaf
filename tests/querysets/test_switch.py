"""The stored pause flag: after it has committed no claim that starts takes a row."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_taskclaim.models import Switch
from django_taskclaim.switch import SwitchError, pause, pause_all, paused_by, resume, resume_all
from tests.commands import table_away
from tests.factories import make
from tests.querysets.support import (
    DEADLINE,
    ROW_LOCKS,
    at_once,
    clock,
    elsewhere,
    execute,
    facts,
    quoted,
)
from tests.testapp.models import (
    Author,
    Child,
    ChildOwnsClaim,
    CompositeKey,
    Parent,
    Photo,
    PhotoProxy,
)

pytestmark = [pytest.mark.django_db(databases="__all__"), pytest.mark.promise(9)]


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize("model", [Photo, Child, CompositeKey])
def test_a_paused_model_is_not_claimed_and_its_running_rows_finish(model: Any) -> None:
    """However the claim is asked for; nothing but the table holds the pause, so a restart keeps it."""
    make(model, 8)
    rows = model.objects.claim_batch(5)
    pause(model, reason="deploy", by="ops")
    assert model.objects.renew(rows) == 5
    rows[0].claim.complete()
    rows[1].claim.fail("bad")
    rows[2].claim.release()
    rows[3].save()
    rows[4].delete()
    states = [facts(row).status for row in rows[:4]]
    assert states == ["complete", "open", "open", "processing"]
    assert model.objects.claim_batch(3) == []
    assert model.objects.filter(note="").order_by("-note").claim_batch(3) == []
    assert Switch.objects.get().paused_at is not None
    resume(model)
    resume(model)
    assert len(model.objects.claim_batch(3)) == 3


# Until when


@pytest.mark.parametrize("given", [3600, timedelta(hours=1), "datetime"])
def test_a_pause_lasts_until_its_moment_by_the_database_clock(given: Any, strategy: str) -> None:
    make(Photo, 2)
    pause(Photo, until=timezone.now() + timedelta(hours=1) if given == "datetime" else given)
    assert Photo.objects.claim_batch(1) == []
    ends = paused_by(Photo).until  # type: ignore[union-attr]
    assert timedelta(minutes=50) < ends - timezone.now() < timedelta(minutes=61)
    execute(f"UPDATE {quoted('taskclaim_switch')} SET {quoted('until')} = {clock('-1 SECOND')}")
    assert paused_by(Photo) is None
    assert len(Photo.objects.claim_batch(1)) == 1
    pause(Photo, until=timezone.now() - timedelta(minutes=1))
    assert len(Photo.objects.claim_batch(1)) == 1


@pytest.mark.once
def test_a_wrong_end_and_a_model_without_claims_are_refused() -> None:
    wrong: list[Any] = [(Photo, until, ValueError) for until in (0, -5, "soon", float("inf"))]
    wrong += [(model, None, TypeError) for model in (Author, "testapp.Photo")]
    for model, until, error in wrong:
        with pytest.raises(error, match=r"until|has no claim columns"):
            pause(model, until=until)
    assert not Switch.objects.exists()


# Whose claims


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize(
    ("paused", "stopped"),
    [
        (PhotoProxy, {Photo, PhotoProxy}),
        # ``Child`` keeps its claim columns in the table of ``Parent``.
        (Parent, {Parent, Child}),
        (Child, {Child}),
        (None, {Photo, PhotoProxy, Parent, Child, ChildOwnsClaim}),
    ],
)
def test_a_pause_stops_the_claims_of_its_own_table_and_no_others(paused: Any, stopped: Any) -> None:
    for model in (Photo, Parent, Child, ChildOwnsClaim):
        make(model, 2)
    pause(paused) if paused else pause_all()
    for model in (Child, Photo, PhotoProxy, Parent, ChildOwnsClaim):
        assert (model.objects.claim_batch(1) == []) is (model in stopped), model
        assert (paused_by(model) is not None) is (model in stopped), model


def test_the_switch_of_all_and_that_of_a_model_are_two() -> None:
    make(Photo, 4)
    pause(Photo)
    pause_all(reason="everything")
    assert paused_by(Photo).reason == "everything"  # type: ignore[union-attr]
    resume_all()
    assert Photo.objects.claim_batch(1) == []
    resume(Photo)
    assert len(Photo.objects.claim_batch(1)) == 1
    pause_all()
    resume(Photo)
    assert Photo.objects.claim_batch(1) == []


# Which databases


def test_a_pause_holds_on_every_database_that_has_the_model_or_on_the_one_named() -> None:
    both = [Photo.objects.using(alias) for alias in ("default", "other")]
    for rows in both:
        rows.create()
        rows.create()
    pause(Photo)
    assert [rows.claim_batch(1) for rows in both] == [[], []]
    resume(Photo)
    assert [len(rows.claim_batch(1)) for rows in both] == [1, 1]
    pause(Photo, using="other")
    assert [len(rows.claim_batch(1)) for rows in both] == [1, 0]
    assert paused_by(Photo) is None
    assert paused_by(Photo, using="other") is not None


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_database_that_fails_is_named_and_the_others_are_paused() -> None:
    make(Photo)
    with table_away(Switch, using="other"), pytest.raises(SwitchError) as failed:
        pause(Photo)
    assert (list(failed.value.errors), failed.value.done) == (["other"], ["default"])
    assert "other: " in str(failed.value)
    assert "\n" not in str(failed.value)
    assert Photo.objects.claim_batch(1) == []


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_many_who_turn_a_switch_at_once_that_nobody_has_turned_all_turn_it() -> None:
    """Where they meet in one gap of the index, a server ends some of them as deadlocked."""
    for turn in (pause, resume) * 5:
        at_once(*[lambda turn=turn: turn(Photo, using="default")] * 4)  # type: ignore[misc]
        assert (paused_by(Photo) is not None) is (turn is pause)


# Read by the claim itself


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_pause_stops_others_once_it_is_committed_and_not_before(strategy: str) -> None:
    """Neither waits for the other: were the switch locked by readers, an operator could wait for a batch."""
    make(Photo, 4)
    with transaction.atomic():
        pause(Photo, using="default")
        if ROW_LOCKS:
            claimed = elsewhere(lambda: Photo.objects.claim_batch(1)).result(DEADLINE)
            assert len(claimed) == 1
        transaction.set_rollback(True)
    with transaction.atomic():
        assert len(Photo.objects.claim_batch(1, durable=False)) == 1
        if ROW_LOCKS:
            elsewhere(pause, Photo).result(DEADLINE)
    if not ROW_LOCKS:
        elsewhere(pause, Photo).result(DEADLINE)
    assert Photo.objects.claim_batch(1) == []
    elsewhere(resume, Photo).result(DEADLINE)
    assert len(Photo.objects.claim_batch(1)) == 1


@pytest.mark.usefixtures("strategy")
def test_the_claiming_statement_reads_the_switch(django_assert_max_num_queries: Any) -> None:
    """A pause between reading candidates and claiming them would slip through otherwise."""
    make(Photo, 2)
    with django_assert_max_num_queries(99) as queries:
        Photo.objects.claim_batch(2)
    sent = [query["sql"] for query in queries.captured_queries]
    # A claim by a mark is one UPDATE, and another gives the row its holder's name.
    writes = [
        one for one in sent if "processing" in one.partition(" SET ")[2].partition("WHERE")[0]
    ]
    assert writes
    assert all("taskclaim_switch" in statement for statement in writes)
