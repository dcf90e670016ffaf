"""The notes that outlive a process: whole or not there, and as many as fit."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_taskclaim import handlers
from django_taskclaim.handlers import Handler
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.worker.begun import SIZE, Batch, Notes, shared_memory
from django_taskclaim.worker.inflight import InFlight, units_of
from tests.factories import SHAPES, make
from tests.worker.conftest import wait_until


def batch(rows: int) -> Batch:
    return Batch(rows, bytearray(rows))


def read(memory: Any) -> list[tuple[str, str, list[Any]]]:
    """Return what the next process is left."""
    return [(one.label, one.holder, one.keys) for one in Notes(memory).unbegun]


def test_a_note_that_was_being_written_is_whole_or_not_there() -> None:
    """Killed after any byte, over an older note or none, and with whatever that had begun."""
    memory = bytearray(SIZE)
    notes, old = Notes(memory), batch(300)
    notes.add(old, "app.Old", "old#1", list(range(1000, 1300)))
    old.begun[:] = b"\1" * 300
    del old
    before = bytes(memory)
    new = batch(200)
    notes.add(new, "app.New", "new#2", list(range(5, 205)))
    after = bytes(memory)
    whole = [("app.New", "new#2", list(range(5, 205)))]
    assert read(bytearray(after)) == whole
    end = max(n for n in range(SIZE) if before[n] != after[n]) + 1
    for cut in range(end):
        for torn in (after[:cut] + before[cut:], before[:cut] + after[cut:]):
            assert read(bytearray(torn)) in ([], whole), cut


def test_a_note_lasts_until_its_rows_are_done_with_in_whichever_process() -> None:
    """The second process is killed before it could give back, the third gives back."""
    memory = bytearray(SIZE)
    first = batch(3)
    dead = Notes(memory)
    dead.add(first, "app.Model", "one#1", [1, 2, 3])
    first.begun[1] = 1
    second = Notes(memory)
    (left,) = second.unbegun
    assert left.keys == [1, 3]
    own = batch(1)
    second.add(own, "app.Model", "two#2", [1])
    assert read(bytearray(memory)) == [("app.Model", "one#1", [1, 3]), ("app.Model", "two#2", [1])]
    del left
    second.unbegun.clear()
    assert read(bytearray(memory)) == [("app.Model", "two#2", [1])]


def test_the_memory_is_used_again_and_again_and_may_be_full() -> None:
    """What finds no room is not noted, and disturbs no other note."""
    memory = bytearray(SIZE)
    notes = Notes(memory)
    for turn in range(3):
        kept = []
        for number in range(2 * SIZE // 4096):
            kept.append(batch(1000))
            notes.add(kept[-1], "app.Model", f"{turn}#{number}", list(range(1000)))
            kept[-1].begun[number] = 1
        found = read(bytearray(memory))
        assert [holder for _, holder, _ in found] == [f"{turn}#{n}" for n in range(len(found))]
        assert 50 < len(found) < len(kept)
        assert all(number not in keys for number, (_, _, keys) in enumerate(found))
        del kept
    assert read(bytearray(memory)) == []


def test_a_key_that_cannot_be_written_down_is_no_error() -> None:
    class Local:
        """Not to be pickled."""

    memory = bytearray(SIZE)
    notes, one = Notes(memory), batch(1)
    notes.add(one, "app.Model", "one#1", [Local()])
    one.begun[0] = 1
    assert read(memory) == []


@pytest.mark.parametrize("model", SHAPES)
def test_rows_of_every_shape_come_back(
    monkeypatch: pytest.MonkeyPatch, start_crew: Callable[..., Any], model: Any
) -> None:
    """A process on the memory of a dead one does what that had not begun."""
    monkeypatch.delitem(handlers._handlers, model, raising=False)
    make(model, 5)
    memory, dead = shared_memory(), InFlight()
    dead.notes = Notes(memory)
    rows: Any = ClaimQuerySet(model).claim_batch(5, lease=3600)
    dead.add(units_of(Handler(model, print), rows))
    unit = dead.take(0, lambda handler, inflight: True, threading.Event())
    assert unit is not None
    holder = unit.tasks[0].claim.token.holder
    done: list[Any] = []
    start_crew(model, lambda row: done.append(row.pk), memory=memory)
    wait_until(lambda: len(done) == 4)
    held = ClaimQuerySet(model).held_by(holder)
    assert [row.pk for row in held] == [unit.tasks[0].claim.pk]
    assert sorted(done) == sorted(row.pk for row in rows if row is not unit.tasks[0].row)
