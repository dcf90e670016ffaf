"""The writer: writes what became of each row, many rows in a statement; an atomic handler completes its rows itself.

It runs in the claimer's thread, on a connection where no code of the user's runs: so the server may end a session
that is frozen in the middle of a completion, on MySQL too, and nobody waits for a row that somebody has locked.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import Error, connections

from django_taskclaim import connecting, contention
from django_taskclaim.claim import COMPLETED, Ended, carried_claims, clock, end_claims
from django_taskclaim.columns import claim_columns
from django_taskclaim.db import dialect_for
from django_taskclaim.error_text import class_and_text, one_line, text_to_store
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.querysets.completing import complete
from django_taskclaim.querysets.isolating import Bad, bisect
from django_taskclaim.querysets.writes import fail, finished_rows, lock_free, release
from django_taskclaim.states import Status
from django_taskclaim.throttling.throttles import working_on
from django_taskclaim.worker.batch import DONE, Done, Failed, HeldRow, Outcome, PutBack
from django_taskclaim.worker.counters import Counters
from django_taskclaim.worker.feeds import Feed
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.records import broken, changed, log_rarely, logger, lost, named

#: Seconds until a result that has met a lock is tried again.
LOCKED = 1.0
#: Seconds until it is tried again once the session was ended that had the row locked.
FREED = 0.05
#: Seconds that such a result waits for the lock then, where the database counts parts of a second.
WAIT_AGAIN = 0.1
#: Seconds for which results are written one by one before others get their turn.
SINGLE_WRITES_FOR = 2.0


@dataclass(eq=False, slots=True)
class Writer:
    """Writes results until the database answers; whether they still count, the fence decides."""

    using: str
    inflight: InFlight
    counters: Counters
    #: Told how long the rows of each model take.
    feeds: Sequence[Feed]
    #: Says whether the database was away since a moment, as ``LeaseKeeper.was_away_since`` does.
    was_away_since: Callable[[float], bool]
    #: The error of a result that could not be written, because the session ended or the statement took too long.
    _cut_off: Exception | None = None

    def write(self) -> None:
        """Write all results that are due; those that could not be written stay, and trouble is raised."""
        rows, blocked = self.inflight.unwritten()
        for alike in _alike(rows):
            blocked += self._write(alike)
        single: list[HeldRow] = []
        for alike in _alike(blocked):
            single += self._write(alike, blocked=True)
        # Each may wait for a lock. Those left are tried at the next turn, together: the lock may be gone by then.
        end = clock() + SINGLE_WRITES_FOR
        for held in single:
            if clock() < end:
                self._write([held], blocked=True)

    def _write(self, rows: list[HeldRow], *, blocked: bool = False) -> list[HeldRow]:
        """Write rows that came to the same with one statement; where it fails because of a few, write all the others.

        *blocked* rows are written around locks. Returns rows that met a lock together: some of them may be free.
        """
        began, self._cut_off = clock(), None
        found, met = list[Bad[HeldRow]](), list[HeldRow]()
        with working_on(rows[0].handler.model):
            for sent in bisect(rows, partial(self._send, blocked), self._is_of_a_row):
                if isinstance(sent, Bad):
                    found.append(sent)
                else:
                    met += sent
            cut_off = self._cut_off
            if found and cut_off is not None and self.was_away_since(began):
                # The database was away: no result is to blame.
                raise cut_off
        for held, error in found:
            self._refused(held, error)
        return met

    def _send(self, blocked: bool, rows: Sequence[HeldRow]) -> Sequence[HeldRow]:
        """Write rows in one statement, all or those that nobody has locked; return them if they met a lock together."""
        locked: Sequence[HeldRow] = ()
        for held in rows:
            held.ending = True
            if held.abandoned:
                # Its handler may be saving it as another row.
                held.carrier()
        try:
            with contention.waiting_once(self.using):
                if blocked:
                    rows, locked = self._write_unlocked(rows)
                else:
                    self._apply(rows)
        except Exception as error:
            has_one_writer = dialect_for(connections[self.using]).has_one_writer
            # Around locks it is another statement that may take too long.
            may_be_a_lock = not blocked and contention.is_timeout(error)
            if has_one_writer or not (may_be_a_lock or contention.is_contention(error)):
                raise
            if not blocked or len(rows) > 1:
                # One may refer to a row that is locked.
                self.inflight.postpone(rows)
                return rows
            what = f"{rows[0].handler.model._meta.label}: a result waits for a lock that somebody holds"
            log_rarely(what, error)
            rows, locked = (), rows
        self.inflight.written(rows)
        if locked:
            self._postpone(locked)
        return ()

    def _is_of_a_row(self, error: Exception) -> bool:
        """Say whether the error may be of single results, which a session that works can find; a new one if needed.

        That is, whether results are refused, or end the session. Raises the error of a database that is away.
        """
        connection = connections[self.using]
        if contention.is_contention(error):
            return False
        if contention.is_timeout(error):
            self._cut_off = error
        if contention.is_refusal(error):
            if not connection.in_atomic_block:
                # The answer may have been the last of its session.
                connecting.ensure_usable(self.using)
            return True
        self._cut_off = error
        if connection.in_atomic_block or contention.meaning_of(error) is contention.Meaning.SERVER:
            # The session goes on, but the server can write nothing.
            return False
        connecting.drop_broken(self.using)
        connection.ensure_connection()
        return True

    def _write_unlocked(self, rows: Sequence[HeldRow]) -> tuple[list[HeldRow], list[HeldRow]]:
        """Write the rows that nobody has locked, and return all but the locked ones, and those."""
        dialect = dialect_for(connections[self.using])
        with dialect.own_transaction():
            free, busy = lock_free(_rows_of(rows))
            unlocked, locked = _those_of(rows, free), _those_of(rows, busy)
            there = {*unlocked, *locked}
            gone = [held for held in rows if held not in there]
            if unsure := [held for held in gone if held.claim.unanswered]:
                # The transaction that had them locked may be the one whose COMMIT was not answered.
                finished = finished_rows(_rows_of(unsure), Status.COMPLETE)
                end_claims(carried_claims(finished), COMPLETED)
            if unlocked:
                with dialect.limit_lock_wait(WAIT_AGAIN):
                    self._apply(unlocked)
        self._log_lost(gone)
        return [*unlocked, *gone], locked

    def _postpone(self, rows: Sequence[HeldRow]) -> None:
        """Let rows wait, and end the session of an abandoned handler that may have them locked."""
        seconds = LOCKED
        # What breaks here says nothing of the rows that were written just before. The next statement meets it, too.
        with suppress(Error):
            if connecting.end_session_of(rows[0].thread, self.using):
                logger.error("%s: its database session was ended", named(rows[0].row))
                seconds = FREED
                for held in rows:
                    held.thread = None
        self.inflight.postpone(rows, seconds)

    def _refused(self, held: HeldRow, error: Exception) -> None:
        """Have a row fail at the next turn whose result the database refuses: that is its own fault."""
        if held.outcome is DONE:
            held.outcome = held.judge(error)
        else:
            # Not even its failure or its release can be stored.
            what = "its outcome could not be stored, and it stays as it is until its lease ends"
            _log_broken(held, what, error, "unrecorded")
            self.inflight.written([held])

    def _log_lost(self, rows: Iterable[HeldRow]) -> None:
        for held in rows:
            if (ended := held.claim.how_ended()) is not None:
                # By its handler, which went on after its time was over.
                self._note([held], ended, 0.0)
                continue
            self.counters.count(held.handler.model, lost=1)
            if held.claim.ambiguous:
                error = _raised(held) or "the answer to its COMMIT was lost"
                what = "whether its transaction was committed cannot be known any more, so this run is not repeated"
                _log_broken(held, what, error, "undecided")
            else:
                lost(held, "noticed when its result was written", error=_raised(held))

    # The verbs

    def _apply(self, rows: Sequence[HeldRow]) -> None:
        """Write by the verb of the outcome, and note what is written, and what is lost."""
        # Read once, for a process that ends gives up what is not written yet.
        outcome = rows[0].outcome
        began, written, handler, given = clock(), rows, rows[0].handler, _rows_of(rows)
        try:
            match outcome:
                case Done():
                    complete(handler.model, given, handler.update_fields)
                case PutBack(raised=None):
                    release(given, outcome.delay, quarantined=outcome.quarantined)
                case Failed(error) | PutBack(raised=(BaseException() | str()) as error):
                    fail(given, error, retry=True)
        except ClaimLost as loss:
            written = _those_of(rows, loss.written)
            self._log_lost(_those_of(rows, loss.lost))
        if written:
            self._note(written, outcome, clock() - began)

    def _note(self, rows: Sequence[HeldRow], outcome: Outcome, seconds: float) -> None:
        """Count and log what has been written, here or before: by the handler, or with its transaction."""
        match outcome:
            case Done() | Ended(completed=True):
                model, ran = rows[0].handler.model, [held.ran for held in rows]
                self.counters.count(model, done=len(rows))
                self.counters.count_times(model, "ran", ran)
                (feed,) = (one for one in self.feeds if one.model is model)
                if seconds_ran := sum(ran):
                    feed.note(len(rows), seconds_ran)
                changed("completed", _rows_of(rows), seconds, ran=seconds_ran)
            case PutBack():
                changed("released", _rows_of(rows), seconds, reason=outcome.reason)
            case Failed():
                for held in rows:
                    # Each row shows its own traceback.
                    self._note_failed(held, class_and_text(held.error or outcome.error), seconds)
            case Ended(failure=(name, text)):
                for held in rows:
                    self._note_failed(held, (name, text), seconds)

    def _note_failed(self, held: HeldRow, described: tuple[str, str], seconds: float) -> None:
        row, (name, text) = held.row, described
        final = row.__dict__.get(claim_columns(type(row)).status.attname) == Status.FAILED
        self.counters.count_error(type(row), f"{name}: {text}" if name else text, final=final)
        self.counters.count_times(type(row), "ran", [held.ran])
        after = "no try is left" if final else "it is put back and tried again"
        changed(
            "failed",
            [row],
            seconds,
            level=logging.ERROR if final else logging.WARNING,
            reason=f"{one_line(name, text).rstrip('.')}; {after}",
            raised=_raised(held),
            ran=held.ran,
            error=name,
            final=final,
        )


def _alike(rows: Iterable[HeldRow]) -> Iterable[list[HeldRow]]:
    """Put rows together whose results one statement can write."""
    groups = defaultdict[object, list[HeldRow]](list)
    for held in rows:
        # Nearly all are done.
        groups[type(held.row) if held.outcome is DONE else _kind(held)].append(held)
    return groups.values()


def _kind(held: HeldRow) -> object:
    """Return what is the same for rows that one statement can write."""
    kind: object = held.outcome
    if isinstance(kind, Failed):
        # Rows that have failed as often are all tried again, or none of them.
        kind = text_to_store(kind.error), held.claim.attempts
    # The rows of one COMMIT are all done or all held.
    return type(held.row), held.thread, kind, id(held.commit_error)


def _log_broken(held: HeldRow, what: str, error: BaseException | str, event: str) -> None:
    broken(f"{named(held.row)}: {what}", error, event=event, keys=[str(held.claim.pk)])


def _raised(held: HeldRow) -> BaseException | None:
    return held.error if isinstance(held.error, BaseException) else None


def _rows_of(held: Sequence[HeldRow]) -> list[Any]:
    return [one.row for one in held]


def _those_of(held: Sequence[HeldRow], rows: Iterable[object]) -> list[HeldRow]:
    wanted = {id(row) for row in rows}
    return [one for one in held if id(one.row) in wanted]
