"""The stored pause flag: after it has committed no claim that starts takes a row."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_taskclaim.models import Switch
from django_taskclaim.switch import SwitchError, pause, pause_all, paused_by, resume, resume_all
from tests.behaviour.support import (
    DEADLINE,
    ROW_LOCKS,
    clock,
    elsewhere,
    execute,
    facts,
    quoted,
)
from tests.factories import make
from tests.testapp.models import Author, Child, ChildOwnsClaim, Parent, Photo, PhotoProxy, UuidKey

pytestmark = pytest.mark.django_db(databases="__all__")


def test_a_paused_model_is_not_claimed_and_a_resumed_one_is(claimable: Any) -> None:
    make(claimable, 3)
    pause(claimable, reason="deploy", by="ops")
    assert claimable.objects.claim_batch(3) == []
    assert claimable.objects.filter(note="").order_by("-pk").claim_batch(3) == []
    assert claimable.objects.open().count() == 3
    resume(claimable)
    assert len(claimable.objects.claim_batch(3)) == 3


def test_running_rows_finish_while_their_model_is_paused(shape: Any) -> None:
    make(shape, 5)
    rows = shape.objects.claim_batch(5)
    pause(shape)
    assert shape.objects.renew(rows) == 5
    rows[0].claim.complete()
    rows[1].claim.fail("bad")
    rows[2].claim.release()
    rows[3].save()
    rows[4].delete()
    assert shape.objects.claim_batch(5) == []


def test_who_and_why_are_kept() -> None:
    pause(Photo, reason="r" * 900, by="user:böb")
    switch = paused_by(Photo)
    assert switch is not None
    assert (switch.reason, switch.by) == ("r" * 500, "user:böb")
    resume(Photo)
    assert paused_by(Photo) is None


def test_pausing_twice_keeps_the_later_words_and_one_resume_ends_it(claimable: Any) -> None:
    make(claimable)
    pause(claimable, reason="first", until=0.001)
    pause(claimable, reason="second")
    assert paused_by(claimable).reason == "second"  # type: ignore[union-attr]
    assert claimable.objects.claim_batch(1) == []
    resume(claimable)
    resume(claimable)
    assert len(claimable.objects.claim_batch(1)) == 1


# Until when


@pytest.mark.parametrize("until", [3600, timedelta(hours=1), "datetime"])
def test_a_pause_lasts_until_its_moment(claimable: Any, until: Any) -> None:
    make(claimable)
    if until == "datetime":
        until = timezone.now() + timedelta(hours=1)
    pause(claimable, until=until)
    assert claimable.objects.claim_batch(1) == []
    ends = paused_by(claimable).until  # type: ignore[union-attr]
    assert timedelta(minutes=59) < ends - timezone.now() < timedelta(minutes=61)


def test_a_pause_whose_moment_has_passed_lets_claims_flow(claimable: Any) -> None:
    make(claimable)
    pause(claimable, until=3600)
    assert claimable.objects.claim_batch(1) == []
    execute(f"UPDATE {quoted('taskclaim_switch')} SET {quoted('until')} = {clock('-1 SECOND')}")
    assert paused_by(claimable) is None
    assert len(claimable.objects.claim_batch(1)) == 1


def test_a_moment_in_the_past_pauses_nothing(claimable: Any) -> None:
    make(claimable)
    pause(claimable, until=timezone.now() - timedelta(minutes=1))
    assert len(claimable.objects.claim_batch(1)) == 1


@pytest.mark.parametrize("until", [0, -5, "soon", float("inf")])
def test_a_wrong_end_is_a_value_error(until: Any) -> None:
    with pytest.raises(ValueError, match="until"):
        pause(Photo, until=until)
    assert not Switch.objects.exists()


# Whose claims


@pytest.fixture
def rows_of_all() -> None:
    for model in (Photo, UuidKey, Parent, Child, ChildOwnsClaim):
        make(model, 2)


#: What a pause of each model stops. ``Child`` keeps its claim columns in the table of ``Parent``.
SCOPES = [
    (Photo, {Photo, PhotoProxy}),
    (PhotoProxy, {Photo, PhotoProxy}),
    (Parent, {Parent, Child}),
    (Child, {Child}),
    (ChildOwnsClaim, {ChildOwnsClaim}),
    (None, {Photo, PhotoProxy, UuidKey, Parent, Child, ChildOwnsClaim}),
]


@pytest.mark.usefixtures("rows_of_all", "strategy")
@pytest.mark.parametrize(("paused", "stopped"), SCOPES)
def test_a_pause_stops_the_claims_of_its_own_table_and_no_others(paused: Any, stopped: Any) -> None:
    pause(paused) if paused else pause_all()
    for model in (Child, Photo, PhotoProxy, UuidKey, Parent, ChildOwnsClaim):
        assert (model.objects.claim_batch(1) == []) is (model in stopped), model
        assert (paused_by(model) is not None) is (model in stopped), model


def test_rows_of_a_paused_child_are_still_claimed_through_the_parent() -> None:
    (child,) = make(Child)
    pause(Child)
    assert [row.pk for row in Parent.objects.claim_batch(1)] == [child.pk]


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


@pytest.mark.parametrize("turn", [pause, resume])
def test_a_model_that_cannot_be_claimed_has_no_switch(turn: Callable[..., None]) -> None:
    with pytest.raises(TypeError, match="Author"):
        turn(Author)


# Which databases


def both() -> Iterator[Any]:
    yield from (Photo.objects.using(alias) for alias in ("default", "other"))


def test_a_pause_holds_on_every_database_that_has_the_model() -> None:
    for rows in both():
        rows.create()
    pause(Photo)
    assert [rows.claim_batch(1) for rows in both()] == [[], []]
    resume(Photo)
    assert [len(rows.claim_batch(1)) for rows in both()] == [1, 1]


def test_a_pause_using_one_database_leaves_the_other_alone() -> None:
    for rows in both():
        rows.create()
    pause(Photo, using="other")
    assert [len(rows.claim_batch(1)) for rows in both()] == [1, 0]
    assert paused_by(Photo) is None
    assert paused_by(Photo, using="other") is not None


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_database_that_fails_is_named_and_the_others_are_paused() -> None:
    make(Photo)
    execute("ALTER TABLE taskclaim_switch RENAME TO taskclaim_away", using="other")
    try:
        with pytest.raises(SwitchError) as failed:
            pause(Photo)
    finally:
        execute("ALTER TABLE taskclaim_away RENAME TO taskclaim_switch", using="other")
    assert list(failed.value.errors) == ["other"]
    assert failed.value.done == ["default"]
    assert "other: " in str(failed.value)
    assert Photo.objects.claim_batch(1) == []


# Read by the claim itself


@pytest.mark.django_db(transaction=True, databases="__all__")
class TestAnotherConnection:
    def test_a_pause_committed_elsewhere_stops_the_next_claim(self, strategy: str) -> None:
        make(Photo, 4)
        assert len(Photo.objects.claim_batch(1)) == 1
        elsewhere(pause, Photo).result(DEADLINE)
        assert Photo.objects.claim_batch(1) == []
        elsewhere(resume, Photo).result(DEADLINE)
        assert len(Photo.objects.claim_batch(1)) == 1

    def test_a_pause_that_is_not_committed_stops_nobody(self) -> None:
        make(Photo, 2)
        with transaction.atomic():
            pause(Photo, using="default")
            if ROW_LOCKS:
                claimed = elsewhere(lambda: Photo.objects.claim_batch(1)).result(DEADLINE)
                assert len(claimed) == 1
            transaction.set_rollback(True)
        assert len(Photo.objects.claim_batch(1)) == 1

    @pytest.mark.skipif(not ROW_LOCKS, reason="no row locks: one writer at a time")
    def test_a_pause_is_not_held_up_by_claims_and_claims_not_by_a_pause(
        self, strategy: str, rival: Any
    ) -> None:
        """Both touch the switch's row; were it locked by readers, an operator could wait for a batch."""
        make(Photo, 4)
        pause(Photo)
        resume(Photo)
        with transaction.atomic():
            assert len(Photo.objects.claim_batch(1, durable=False)) == 1
            elsewhere(pause, Photo).result(DEADLINE)
        assert Photo.objects.claim_batch(1) == []


def test_the_switch_stands_in_the_very_statement_that_claims(
    strategy: str, django_assert_max_num_queries: Any
) -> None:
    """A pause between reading candidates and claiming them would slip through otherwise."""
    make(Photo, 2)
    with django_assert_max_num_queries(99) as queries:
        Photo.objects.claim_batch(2)
    writes = [
        query["sql"]
        for query in queries.captured_queries
        if "UPDATE" in query["sql"] and "processing" in query["sql"]
    ]
    assert writes
    assert all("taskclaim_switch" in statement for statement in writes)


def test_a_restart_does_not_forget_a_pause() -> None:
    """Nothing but the table holds it."""
    make(Photo)
    pause(Photo)
    assert Switch.objects.get().paused_at is not None
    assert Photo.objects.claim_batch(1) == []
    assert facts(Photo.objects.get()).status == "open"
