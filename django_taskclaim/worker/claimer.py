"""The claimer: one thread a process that feeds the executors, takes no more than they can use, and writes results."""

import random
import threading
from collections.abc import Callable
from typing import Any

from django_taskclaim.claim import clock, new_holder
from django_taskclaim.connecting import (
    TROUBLE,
    close_all,
    drop_broken,
    ensure_usable,
    guard_connections,
    is_refusal,
    tidy_up,
    use_own_connection,
)
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.handlers import Handler
from django_taskclaim.limits import Answer
from django_taskclaim.limits.key_limits import limits_over
from django_taskclaim.querysets.claiming import claim
from django_taskclaim.querysets.cursor import Cursor, Request
from django_taskclaim.worker.batch import Unit, units_of
from django_taskclaim.worker.calling import prepare
from django_taskclaim.worker.drain import Drain
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.options import BatchSize, WorkerOptions
from django_taskclaim.worker.records import Limited, changed, watch
from django_taskclaim.worker.service import Service
from django_taskclaim.worker.writer import ENOUGH, Writer

#: The longest wait, in seconds, between two tries to claim from a database that is away.
LONGEST_WAIT = 5.0

#: The same in a process that ends: it has little time left in which its rows can go back.
LAST_WAIT = 0.5

#: For so many seconds after a statement its connection is taken to be there still, and not asked.
USED_LATELY = 5.0

#: How soon to try again where nobody could look yet; that asks the database nothing.
NOT_YET = 0.25


class Claimer(threading.Thread):
    """One for each process: it claims what the executors have room for, and writes what came of it."""

    def __init__(
        self, options: WorkerOptions, handlers: list[Handler], inflight: InFlight, service: Service
    ) -> None:
        super().__init__(name="taskclaim-claimer", daemon=True)
        self.options = options
        self.handlers = handlers
        self.inflight = inflight
        self.service = service
        self._sizes = {handler.model: BatchSize(handler, options.threads) for handler in handlers}
        self.drain = Drain(options, handlers, inflight, service)
        self.writer = Writer(
            options.using, inflight, service.counters, self._sizes, service.keeper.was_away_since
        )
        inflight.low = max((self._least(handler) for handler in handlers), default=1)
        inflight.enough = ENOUGH
        #: Set by this thread once it is at work, and by the thread that lets it claim then.
        self.started, self.opened = threading.Event(), threading.Event()
        self.leaving = threading.Event()
        #: Set when there is nothing more to take: drained, or the limits of rows or time are reached.
        self.finished = threading.Event()
        self._last_turn = clock()
        self.claimed = 0
        self._look_at_connection = 0.0
        self._cursors = {handler.model: Cursor() for handler in handlers}
        self._next_look = dict.fromkeys((handler.model for handler in handlers), 0.0)
        #: What its last claim was told by limits of the whole fleet, by model.
        self._answers = {handler.model: Answer() for handler in handlers}
        self._limited = Limited()

    @property
    def last_turn(self) -> float:
        """When this thread last came round, or to one of many statements, by ``clock()``."""
        return max(self._last_turn, self.writer.last_turn)

    def leave(self) -> None:
        """Claim nothing more; end once all results are written."""
        self.leaving.set()
        self.opened.set()
        self.inflight.wake()

    def run(self) -> None:
        use_own_connection(self.options.using)
        guard_connections(self.service.keeper.longest_lease, ours_alone=True)
        self.started.set()
        self.opened.wait()
        failures = 0
        try:
            while not self._is_over():
                self._last_turn = clock()
                if self._has_done(self._turn):
                    failures = 0
                else:
                    failures += 1
                    self._rest(failures)
            self._has_done(self._end)
        finally:
            close_all()

    def _has_done(self, part: Callable[[], None]) -> bool:
        """Do a part of the work, and say whether it went well."""
        what = f"{self.options.name}: claiming and writing"
        try:
            part()
            tidy_up()
            return True
        except TROUBLE as error:
            self._limited.warn(what, error)
        except Exception as error:
            self._limited.broken(what, error)
        drop_broken(self.options.using)
        return False

    def _end(self) -> None:
        """Give back what a claim may have taken whose COMMIT was not answered."""
        if self.service.keeper.find_ambiguous(now=True):
            self.writer.write()

    def _is_over(self) -> bool:
        return (
            self.leaving.is_set()
            and self.inflight.runs_dry()
            and not self.inflight.unwritten_count()
        )

    def _rest(self, failures: int) -> None:
        was_leaving = self.leaving.is_set()
        longest = LAST_WAIT if was_leaving else LONGEST_WAIT
        end = clock() + random.uniform(0.5, 1.0) * min(longest, 0.1 * 2 ** min(failures, 10))
        self.inflight.wait_for(
            lambda: clock() >= end or self.leaving.is_set() != was_leaving, end - clock()
        )

    def _turn(self) -> None:
        """Wait until there is something to do, and do it."""
        self.inflight.wait_until(self._has_to_act, self._longest_wait)
        guard_connections(self.service.keeper.longest_lease, ours_alone=True)
        if self._until_written() == 0.0:
            self._write()
        looked = False
        for handler in self.handlers:
            if self._may_look_for(handler):
                self._look(handler)
                looked = True
        if self._may_claim() and (self._has_reached_a_limit() or (looked and self._has_drained())):
            self.finished.set()

    def _may_look_for(self, handler: Handler) -> bool:
        return self._may_claim() and not self._has_reached_a_limit() and self._wants(handler)

    def _until_written(self) -> float | None:
        """Return for how many seconds nothing need be written yet; what is about to be claimed brings more to write."""
        return self.writer.wait(more_to_come=any(map(self._may_look_for, self.handlers)))

    def _write(self) -> None:
        self._ensure_usable()
        if self.writer.write():
            self._note_use()
        for handler in self.handlers:
            # A row that has ended makes room for the next one.
            if self._makes_room(handler.model):
                self._next_look[handler.model] = 0.0

    def _ensure_usable(self) -> None:
        if clock() >= self._look_at_connection:
            ensure_usable(self.options.using)

    def _note_use(self) -> None:
        # A server that ends idle sessions ends this one after a lease.
        lease = self.service.keeper.longest_lease.total_seconds()
        self._look_at_connection = clock() + min(USED_LATELY, lease / 2)

    def _makes_room(self, model: Any) -> bool:
        refusal = self._answers[model].refusal
        if refusal is not None:
            return refusal.option == "max_running"
        return bool(limits_over(model))

    def _may_claim(self) -> bool:
        return not self.leaving.is_set() and not self.finished.is_set()

    def _has_to_act(self) -> bool:
        if self._until_written() == 0.0 or self._is_over():
            return True
        if not self._may_claim():
            return False
        if self.service.drain_asked.is_set():
            return True
        return any(self._wants(handler) for handler in self.handlers)

    def _longest_wait(self) -> float:
        moments = [clock() + LONGEST_WAIT]
        if self._may_claim():
            moments += [
                self._look_at(handler) for handler in self.handlers if self._has_room(handler)
            ]
            moments += [] if self.options.ends_at is None else [self.options.ends_at]
        until_written = self._until_written()
        wait = max(0.0, min(moments) - clock())
        return wait if until_written is None else min(wait, until_written)

    def _wants(self, handler: Handler) -> bool:
        return self._has_room(handler) and clock() >= self._look_at(handler)

    def _look_at(self, handler: Handler) -> float:
        """Return when, by ``clock()``, to look for rows of this model again."""
        if handler.model in self.service.to_look_for:
            return 0.0
        return min(self._next_look[handler.model], self.service.calls.look_at(handler.model))

    def _has_room(self, handler: Handler) -> bool:
        """Say whether the executors are about to run dry of this model's rows, and may have more."""
        if self.inflight.holds_quarantined():
            return False
        enough = self._least(handler)
        if handler.has_ranges:
            # Long work: what waits here could be done elsewhere.
            enough -= self.inflight.running_of(handler.model)
        return self.inflight.waiting(handler.model) < enough

    def _least(self, handler: Handler) -> int:
        """Return how many units may wait for the executors at least, so that these do not run dry."""
        if handler.batch:
            return 1
        return handler.concurrency if handler.is_async else self.options.threads

    def _look(self, handler: Handler) -> None:
        """Claim once for a model; a full batch looks again as soon as there is room, else after the poll pause."""
        pause = self.options.poll.total_seconds() * random.uniform(0.75, 1.25)
        self._answers[handler.model].refusal = None
        self.service.to_look_for.discard(handler.model)
        self.service.calls.begin_look(handler.model)
        full: bool | None = False
        try:
            full = self._claim(handler)
        except Exception as error:
            if not is_refusal(error):
                # The reason for this look still holds.
                self._next_look[handler.model] = 0.0
                raise
            # Of this model alone: a column that is missing, a queryset that is wrong. The others go on.
            self._limited.broken(f"{self.options.name}: claiming from {handler.name}", error)
            drop_broken(self.options.using)
            pause = max(pause, LONGEST_WAIT)
        if full is None:
            pause = min(pause, NOT_YET)
        refusal = self._answers[handler.model].refusal
        if refusal is not None:
            full = False
            if refusal.wait is not None:
                # As soon as that is worth while, and not only after the usual pause.
                pause = min(LONGEST_WAIT, refusal.wait * random.uniform(1.0, 1.1))
        self._next_look[handler.model] = 0.0 if full else clock() + pause

    def _claim(self, handler: Handler) -> bool | None:
        """Claim a batch and say whether it was a full one; None where nobody could look yet."""
        if not self.service.keeper.healthy(self.service.keeper.lease_of(handler)):
            # A lease that cannot be renewed is not worth taking.
            return None
        if handler.model in self.service.paused or self.service.throttles.reason_for(handler.model):
            # The service sees when that is over.
            return False
        switch = self.service.keeper.switches.get(handler.model)
        if switch is None:
            # The switch has not been read yet: the claim might get the wrong lease.
            return None
        most = self._sizes[handler.model].most(switch.batch_size, switch.lease)
        size = self._size(handler, most)
        if size == 0:
            # Health checks have not answered yet.
            return None
        self._ensure_usable()
        if self.leaving.is_set():
            return None
        rows = self._rows(handler, size)
        if not rows:
            return self.drain.open_more(handler)
        units = units_of(handler, rows)
        if not self.inflight.add(units):
            # The signal to stop came while the statement was under way.
            self._give_back(units)
        return len(rows) == most or units[0].quarantined

    def _rows(self, handler: Handler, size: int) -> list[Any]:
        """Claim so many rows."""
        began = clock()
        request = Request(
            size,
            new_holder(self.options.name),
            self.service.keeper.lease_of(handler),
            include_held=False,
            durable=True,
            notes_start=True,
            cursor=self._cursors[handler.model],
            answer=self._answers[handler.model],
        )
        try:
            with self.service.throttles.working_on(handler.model):
                rows: list[Any] = claim(self.drain.rows(handler), request)
        except Exception:
            # After any error some may have been claimed.
            self.service.keeper.note_ambiguous(handler, request)
            raise
        self._note_use()
        self.service.throttles.claimed(handler.model, len(rows))
        if rows:
            watch(rows)
            changed("claimed", rows, clock() - began)
            self.claimed += len(rows)
            self.drain.note_claim()
            rows = self._prepare(handler, rows)
        return rows

    def _prepare(self, handler: Handler, rows: list[Any]) -> list[object]:
        """Load what the handler needs beside the rows; they go back uncounted where that cannot be had."""
        try:
            return prepare(handler, rows)
        except Exception:
            self._give_back(units_of(handler, rows))
            # The connection to another database may have broken.
            tidy_up()
            raise

    def _size(self, handler: Handler, most: int) -> int:
        """Return how many rows the next claim asks for, *most* at most."""
        room = self.service.throttles.room(handler.model)
        left = None if self.options.max_rows is None else self.options.max_rows - self.claimed
        return min(bound for bound in (most, room, left) if bound is not None)

    def _give_back(self, units: list[Unit]) -> None:
        self.inflight.give_back(task for unit in units for task in unit.tasks)

    # Ending by itself

    def _has_reached_a_limit(self) -> bool:
        if self.service.drain_asked.is_set():
            return True
        if self.options.max_rows is not None and self.claimed >= self.options.max_rows:
            return True
        return self.options.ends_at is not None and clock() >= self.options.ends_at

    def _has_drained(self) -> bool:
        in_vain = all(moment > 0.0 for moment in self._next_look.values())
        if not self.options.drain or not in_vain:
            return False
        try:
            return self.drain.is_done()
        except (*TROUBLE, TaskClaimError) as error:
            self._limited.warn(f"{self.options.name}: looking for work left", error)
            drop_broken(self.options.using)
            return False
