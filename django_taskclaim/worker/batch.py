"""The rows of one claim: what is known of each, what became of it, and what a successor of the process can read."""

import math
import multiprocessing
import pickle
import struct
import threading
import weakref
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeAlias

from django.db import models

from django_taskclaim.claim import ATTRIBUTE, Claim, Ended, clock
from django_taskclaim.error_text import describe
from django_taskclaim.exceptions import Permanent
from django_taskclaim.formatting import listed
from django_taskclaim.handlers import Handler
from django_taskclaim.policy import SELF_FENCE, policy_for
from django_taskclaim.querysets.claiming import bare, loaded_key


@dataclass(frozen=True, eq=False, slots=True)
class Done:
    """The row is to be completed."""


#: What nearly all rows come to.
DONE = Done()


@dataclass(frozen=True, slots=True)
class Failed:
    """The row is to be failed, with this error."""

    error: BaseException | str


@dataclass(frozen=True, slots=True)
class PutBack:
    """The row is to be given back uncounted."""

    reason: str
    delay: timedelta | None = None
    #: To be claimed alone next time, because it may be the one that holds up its batch.
    quarantined: bool = False
    #: Nobody is to claim rows of the model meanwhile, so it is not written with rows that go back for themselves only.
    everyone: bool = False
    #: What its handler raised, if it goes back because of that: ``fail`` does what the policy says.
    raised: BaseException | str | None = field(default=None, compare=False)


NOT_STARTED = PutBack("not started")


#: Of a claim that has ended, by a verb of the handler's own or with its transaction, nothing is left to be written.
Outcome: TypeAlias = Done | Failed | PutBack | Ended


#: How many notes of which size a child has room for: of many claims of few rows, and of some with a thousand keys.
PLACES = {2**9: 512, 2**14: 48, 2**17: 8}
SIZE = sum(size * number for size, number in PLACES.items())
#: How a note begins: number of rows, length of the text, checksum. A byte for each row and the text follow.
HEAD = struct.Struct("=III")


def shared_memory() -> object:
    """Return memory that children can be given; None where the machine has none to spare."""
    try:
        return multiprocessing.get_context("spawn").RawArray("B", SIZE)
    except OSError:
        return None


@dataclass(eq=False, slots=True, weakref_slot=True)
class Batch:
    """The rows of one claim, until the last of them is written."""

    #: Whether each row has started.
    started: bytearray | memoryview = field(default_factory=bytearray)


class Notes:
    """The notes of one process, each kept as long as its ``Batch``. Without memory nothing is noted."""

    def __init__(self, memory: Any = None) -> None:
        whole = memoryview(memory or b"").cast("B")
        #: The places of notes that no batch has, by size.
        self._free: dict[int, list[memoryview]] = {}
        for size, number in PLACES.items():
            part, whole = whole[: size * number], whole[size * number :]
            self._free[size] = [part[at : at + size] for at in range(0, len(part), size)]

    def add(self, held: Sequence["HeldRow"]) -> None:
        """Note the rows of a claim if there is room; their batch notes there from now on which have started."""
        first, keys = held[0], [one.claim.pk for one in held]
        try:
            text = pickle.dumps((first.handler.model._meta.label, first.claim.token.holder, keys))
        except Exception:
            # A class of the user's that cannot be pickled.
            return
        rows, length = len(keys), len(text)
        needed = HEAD.size + rows + length
        found = (free.pop() for size, free in self._free.items() if free and size >= needed)
        if (place := next(found, None)) is None:
            return
        self._keep(first.batch, place, rows)
        first.batch.started[:] = bytes(rows)
        place[HEAD.size + rows :][:length] = text
        # Last: the process may be killed between any two of these writes.
        HEAD.pack_into(place, 0, rows, length, zlib.crc32(text, rows))

    def _keep(self, batch: Batch, place: memoryview, rows: int) -> None:
        """Let a batch note its rows in this place until it is gone."""
        batch.started = place[HEAD.size :][:rows]
        weakref.finalize(batch, self._clear, place)

    def _clear(self, place: memoryview) -> None:
        # In this order: a free place has no note.
        HEAD.pack_into(place, 0, 0, 0, 0)
        self._free[len(place)].append(place)

    def unstarted(self) -> Iterator[tuple[str, str, list[object], Batch]]:
        """Yield what the processes before this one had claimed and not started; for before the first note.

        That is, of each claim: label, holder, the keys that had not started, and where they are noted.
        """
        for place in [free.pop() for free in self._free.values() for _ in range(len(free))]:
            rows, length, check = HEAD.unpack_from(place)
            text, batch = place[HEAD.size + rows :][:length], Batch()
            # Where no row of it is left, its place is free again at once.
            self._keep(batch, place, rows)
            if zlib.crc32(text, rows) != check:
                continue
            try:
                label, holder, keys = pickle.loads(text)
            except Exception:
                # No note, or one of another version of the user's code.
                continue
            if left := [key for key, has in zip(keys, batch.started, strict=True) if not has]:
                yield label, holder, left, batch


#: What a coroutine may take to end once it has been cancelled, in seconds.
CANCELLING = 2.0

#: The part of its timeout after which a handler is asked to stop at its next resting place.
CANCEL_AFTER = 0.8


class HeldRow:
    """One held row."""

    # Defaults stand on the class: a worker makes one of these for every row, and most never learn anything else.

    #: Its result is being written: what a renewal under way says of it no longer counts.
    ending: bool = False
    #: Its lease could not be renewed in time; it may still stand, and is renewed if it does.
    fenced: bool = False
    #: Nobody waits for its handler: its time is over, or it goes back. It is not renewed any more.
    abandoned: bool = False
    #: The handler has saved its instance as another row (``row.pk = None``); ``row`` is a bare one of this row since.
    remade: bool = False
    #: Seconds that the handler took; of a call with several rows this one's share.
    ran: float = 0.0
    #: What it came to, once it has ended.
    outcome: Outcome = DONE
    #: What was raised by the COMMIT of its call: it may have arrived, and *outcome* is for the case that it has not.
    commit_error: BaseException | None = None
    #: The thread of an abandoned handler: its database session is ended if it has the row locked.
    thread: int | None = None

    def __init__(self, row: Any, handler: Handler, batch: Batch, number: int = 0) -> None:
        self.row = row
        self.handler = handler
        self.batch = batch
        #: Which of the batch it is.
        self.number = number
        #: Kept here as well: the instance carries it no more once it has been saved as another row.
        self.claim: Claim = row.__dict__[ATTRIBUTE]
        # The verb that notices a loss knows less of it than this worker.
        self.claim.watched = True

    @property
    def error(self) -> BaseException | str | None:
        """Return what went wrong, with the traceback of this row."""
        return getattr(self.outcome, "error", self.commit_error)

    def carrier(self) -> Any:
        """Return the instance that carries the claim, which verbs are given: the handler's as long as it is this row's.

        A bare one reads its columns as they are asked for.
        """
        if self.row.__dict__.get(ATTRIBUTE) is not self.claim:
            key = loaded_key(self.row)
            self.row, self.remade = bare(type(self.row), self.claim, key), True
        return self.row

    def without_results(self) -> Permanent | None:
        """Return an error where nobody knows what the handler wanted written of this row."""
        self.carrier()
        names = self.handler.update_fields
        if not (self.remade and names):
            return None
        return Permanent(
            f"The handler saved its instance as another row, so what {listed([*names])} shall be here is not known:"
            " let it save a copy.copy() of it."
        )

    def judge(self, error: BaseException | str) -> Failed | PutBack:
        """Say what the policy makes of the row if it has come to *error*."""
        verdict = policy_for(type(self.row)).judge(error, self.claim.attempts + 1)
        if verdict.counted:
            return Failed(error)
        return PutBack(describe(error), verdict.wait(), everyone=verdict.everyone, raised=error)

    def give_up_result(self) -> None:
        """Let a row that is done go back, because that could not be written."""
        if self.outcome is DONE:
            self.outcome = PutBack("its result could not be written")

    def has_used(self, share: float, now: float) -> bool:
        """Say whether more than this share of the lease is over, by this process's own clock."""
        claim = self.claim
        if claim.local_deadline is None:
            return False
        return claim.local_deadline - now < claim.lease.total_seconds() * (1 - share)

    def is_overdue(self, now: float) -> bool:
        """Say whether the lease has so little left that it counts as lost."""
        return self.has_used(SELF_FENCE, now)

    def unstarted_outcome(self, now: float) -> Outcome | None:
        """Return what becomes of the row if no handler may be called with it; None while its claim stands."""
        claim = self.claim
        if claim.lost or self.abandoned or claim.ended or self.is_overdue(now):
            # One half of a batch may have ended the claims of the other.
            return claim.how_ended() or NOT_STARTED
        return None


class WorkItem:
    """One call of a handler with one row, or for a batch handler with rows of one claim.

    The item of a row may go on to the next row of its claim; see ``InFlight.take_next``.
    """

    #: By ``clock()``, when the call began, and the thread that it runs in.
    started: float = math.inf
    thread: int | None = None
    #: Whether the database was away since then, once that has been asked.
    was_away: bool | None = None
    #: Nobody waits for the call any more, which may still be under way.
    abandoned: bool = False
    #: What the handler was given, with its values, where columns are looked for that it sets in vain.
    before: Sequence[tuple[models.Model, models.Model, dict[str, object]]] = ()

    def __init__(self, handler: Handler, rows: list[HeldRow], rest: deque[HeldRow]) -> None:
        self.handler = handler
        self.rows = rows
        #: Those that wait behind it.
        self.rest = rest
        #: What has become of its rows.
        self.outcomes: list[Outcome] = []

    @property
    def has_begun(self) -> bool:
        """Say whether the handler was called; a coroutine waits until its event loop comes to it."""
        return self.started < math.inf

    def begin(self, rows: list[HeldRow], now: float | None = None) -> None:
        """Note that the call, with these rows, begins in this thread, or began at *now*."""
        self.thread = threading.get_ident()
        # In this order: who looks at the rows first, and at the time then, takes no new call for one that overran.
        self.started = clock() if now is None else now
        self.rows = rows

    def ran(self) -> float:
        """Return how many seconds of its timeout the call has used."""
        return max(0.0, clock() - self.started)

    def overran(self) -> bool:
        """Say whether the call goes on after its time."""
        # A coroutine is cancelled at its timeout; what is still there then holds up the event loop.
        return self._has_used(1.0, CANCELLING if self.handler.is_async else 0.0)

    def will_overrun(self) -> bool:
        """Say whether the call has had so much of its time that it had better stop at a resting place."""
        return self._has_used(CANCEL_AFTER)

    def _has_used(self, part: float, more: float = 0.0) -> bool:
        limit = self.handler.timeout
        return limit is not None and self.ran() > part * limit.total_seconds() + more

    def request_cancel(self, why: str, *, too_long: bool = False) -> None:
        """Have a handler that comes to resting places, as one that walks a range does, stop at the next one."""
        for held in self.rows:
            held.claim.cancel_reason = held.claim.cancel_reason or why
            held.claim.too_long = held.claim.too_long or too_long


def hold(handler: Handler, rows: Sequence[object]) -> list[HeldRow]:
    """Return the rows of one claim as they are held for *handler*."""
    batch = Batch(bytearray(len(rows)))
    return [HeldRow(row, handler, batch, number) for number, row in enumerate(rows)]
