"""What is done about a handler that outlives its timeout: it is a thread, and no thread can be killed."""

import sys
import traceback
from dataclasses import dataclass

from django.db import connections

from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.connecting import end_session_of, is_contention, is_refusal
from django_taskclaim.db import dialect_for
from django_taskclaim.error_text import redact
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.failing import release
from django_taskclaim.ranges.walking import halve
from django_taskclaim.worker.counters import Counters
from django_taskclaim.worker.inflight import Task, Unit
from django_taskclaim.worker.outcomes import outlived
from django_taskclaim.worker.records import changed, logger, lost, named, unrecorded
from django_taskclaim.worker.writer import note_failure

#: What a coroutine may take to end once it has been cancelled.
CANCELLING = 2.0

#: The part of its timeout after which a handler is asked to stop at its next resting place.
PATIENT_FOR = 0.8


def overran(unit: Unit) -> bool:
    """Say whether the call under way is still at it after its time."""
    limit = unit.handler.timeout
    if limit is None:
        return False
    # A coroutine is cancelled at its timeout; what is still there then holds up the event loop.
    patience = CANCELLING if unit.handler.is_async else 0.0
    return unit.ran() > limit.total_seconds() + patience


def will_overrun(unit: Unit) -> bool:
    """Say whether the call under way has had so much of its time that it had better stop at a resting place."""
    limit = unit.handler.timeout
    return limit is not None and unit.ran() > PATIENT_FOR * limit.total_seconds()


def abandon(unit: Unit) -> "list[Overrun]":
    """Wait no more for the unit, whose thread goes on, and return what is to be written of its call."""
    for task in unit.tasks:
        task.abandoned = True
    text = f"{named(unit.called[0].row)} overran; it is here:\n{stack_of(unit.thread)}"
    logger.error("%s", redact(text, keep_end=True))
    return [Overrun(unit, task) for task in unit.called]


@dataclass(eq=False, slots=True)
class Overrun:
    """One row of a call that overran, until what becomes of it is written.

    It is failed; of a batch nobody can tell which row it was, so each of them is given back, to be claimed alone.
    """

    unit: Unit
    task: Task
    _session_ended: bool = False

    def write(self, using: str, counters: Counters) -> bool:
        """Write it, and say whether that is settled; a row that its own handler has locked is free a moment later."""
        try:
            self._write(using, counters)
        except ClaimLost:
            lost(self.task.row, "noticed when it had overrun")
        except Exception as error:
            if is_contention(error):
                self._free(using)
                return False
            if not is_refusal(error):
                raise
            unrecorded(self.task.row, error)
        return True

    def _free(self, using: str) -> None:
        """End the session of the handler's thread, once: it is the one that holds the row, most likely."""
        if not self._session_ended and end_session_of(self.unit.thread, using):
            logger.error("%s: its database session was ended", named(self.task.row))
        self._session_ended = True

    def _write(self, using: str, counters: Counters) -> None:
        began = clock()
        handler, row = self.unit.handler, self.task.carrier()
        text = outlived(handler)
        together = len(self.unit.called) > 1 and claim_columns(handler.model).not_before is not None
        dialect = dialect_for(connections[using])
        with dialect.own_transaction(), dialect.limit_lock_wait(1):
            if together:
                release(row, quarantined=True)
            else:
                ClaimQuerySet(handler.model).fail(row, text)
        if handler.has_ranges:
            halve(row)
        if together:
            changed("released", [row], clock() - began, why=f"its batch: {text}")
        else:
            ran = began - (self.unit.started or began)
            note_failure(counters, row, text, clock() - began, ran=ran)


def stack_of(thread: int | None) -> str:
    """Return where a thread is at this moment."""
    frame = sys._current_frames().get(thread or 0)
    return "".join(traceback.format_stack(frame)) if frame else "its thread is gone"
