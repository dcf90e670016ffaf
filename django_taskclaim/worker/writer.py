"""The writer: writes what became of each row, many rows in a statement; an atomic handler completes its rows itself.

It runs in the claimer's thread, on a connection where no code of the user's runs: so the server may end a session
that is frozen in the middle of a completion, on MySQL too, and nobody waits for a row that somebody has locked.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from django.db import connections
from django.db.models import Model

from django_taskclaim.claim import COMPLETED, Ended, clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.connecting import (
    TROUBLE,
    drop_broken,
    end_session_of,
    ensure_usable,
    is_contention,
    is_refusal,
    waiting_once,
)
from django_taskclaim.contention import server_code
from django_taskclaim.db import dialect_for
from django_taskclaim.error_text import class_and_text, text_to_store
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.querysets.failing import fail, release, stop_everyone
from django_taskclaim.querysets.isolating import Bad, bisect
from django_taskclaim.querysets.transactions import judge_ambiguous_commit
from django_taskclaim.querysets.writes import lock_free
from django_taskclaim.ranges.walking import halve
from django_taskclaim.signals import after_commit
from django_taskclaim.states import WORKER_MARK, Status
from django_taskclaim.throttling.throttles import working_on
from django_taskclaim.worker.batch import DONE, Ambiguous, Done, Failed, HeldRow, Outcome, PutBack
from django_taskclaim.worker.calling import complete, judged
from django_taskclaim.worker.counters import Counters
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.options import BatchSize
from django_taskclaim.worker.records import (
    Limited,
    broken,
    changed,
    failed,
    logger,
    lost,
    named,
    unrecorded,
)

#: Seconds until a result that has met a lock is tried again.
LOCKED = 1.0
#: Seconds until it is tried again once the session was ended that had the row locked.
FREED = 0.05
#: Seconds that such a result waits for the lock then, where the database counts parts of a second.
WAIT_AGAIN = 0.1
#: Seconds for which results are written one by one before others get their turn.
PATIENCE = 2.0


class Writer:
    """Writes results until the database answers; whether they still count, the fence decides."""

    def __init__(
        self,
        using: str,
        inflight: InFlight,
        counters: Counters,
        sizes: Mapping[type[Model], BatchSize],
        was_away_since: Callable[[float], bool],
    ) -> None:
        self.using = using
        self.inflight = inflight
        self.counters = counters
        #: Told how long the rows of each model take.
        self.sizes = sizes
        #: Says whether the database was away since a moment, as ``LeaseKeeper.was_away_since`` does.
        self.was_away_since = was_away_since
        #: By ``clock()``, when it last began a statement.
        self.last_turn = clock()
        self._limited = Limited()

    def write(self) -> bool:
        """Write all results that are due, and say whether that took a statement.

        Those that could not be written stay, and trouble is raised.
        """
        groups = _alike(self.inflight.unwritten())
        end = math.inf
        for results in groups:
            if results[0].alone:
                # Each may wait for a lock; others get their turn in between.
                end = min(end, clock() + PATIENCE)
                if clock() >= end:
                    # Together with those like it at the next try, for the lock may be gone by then.
                    results[0].alone = False
                    continue
            with working_on(results[0].handler.model):
                self._write(results)
        return any(type(results[0].outcome) is not Ended for results in groups)

    def _write(self, results: Sequence[HeldRow]) -> None:
        """Write results that one statement can write; where it fails because of a few, all the others."""
        search = _Search(self.using, self.was_away_since)

        def attempt(part: Sequence[HeldRow]) -> None:
            try:
                self._send(part)
            except TROUBLE as error:
                # What a session in trouble refused may pass at a second try.
                if not search.is_of_a_row(error):
                    raise
                self._send(part)

        found: list[Bad[HeldRow]] = []
        for bad in bisect(results, attempt, search.is_of_a_row):
            if isinstance(bad, Bad):
                search.check(bad.error, is_first=not found)
                found.append(bad)
        for result, refusal in found:
            self._refused(result, refusal)

    def _send(self, part: Sequence[HeldRow]) -> None:
        """Write results in one statement, all or those that nobody has locked; the others come round again."""
        results, locked = list(part), list[HeldRow]()
        for result in results:
            result.ending = True
            if result.abandoned:
                # Its handler may be saving it as another row.
                result.carrier()
        self.last_turn = clock()
        try:
            with waiting_once(self.using):
                if results[0].locked:
                    results, locked = self._write_unlocked(results)
                else:
                    self._apply(results)
        except ClaimLost as error:
            self._log_lost(_those_of(results, error.lost))
        except Exception as error:
            if not is_contention(error) or dialect_for(connections[self.using]).has_one_writer:
                raise
            self._go_around(results, error)
            return
        self._let_go(results)
        self._postpone(locked)

    def _let_go(self, results: list[HeldRow]) -> None:
        """Hold these rows no longer; a batch of which nothing is left has come to its end."""
        self.inflight.written(results)
        for result in results:
            result.batch.left -= 1
            if not result.batch.left:
                seconds = clock() - result.batch.claimed_at
                self.counters.count_batch(result.handler.model, seconds)
        ran = sum(result.ran for result in results)
        if ran and type(results[0].outcome) in (Done, Ended):
            self.sizes[results[0].handler.model].note(len(results), ran)

    def _write_unlocked(self, results: list[HeldRow]) -> tuple[list[HeldRow], list[HeldRow]]:
        """Write the rows that nobody has locked, and return all but the locked ones, and those."""
        dialect = dialect_for(connections[self.using])
        with dialect.own_transaction():
            free, busy = lock_free(_rows_of(results))
            unlocked, locked = _those_of(results, free), _those_of(results, busy)
            if unlocked:
                with dialect.limit_lock_wait(WAIT_AGAIN):
                    self._apply(unlocked)
        decided = [result for result in results if result not in locked]
        self._log_lost(result for result in decided if result not in unlocked)
        return decided, locked

    def _go_around(self, results: list[HeldRow], error: Exception) -> None:
        """Have results that met a lock written around it, and then each alone, for it may refer to a locked row."""
        first = results[0]
        if first.locked and len(results) == 1:
            self._limited.warn(
                f"{first.handler.model._meta.label}: a result waits for a lock that somebody holds",
                error,
            )
            self._postpone(results)
            return
        for result in results:
            result.ending, result.alone = False, first.locked
        self.inflight.postpone(results, 0.0)

    def _postpone(self, results: list[HeldRow], seconds: float = LOCKED) -> None:
        """Let results wait, and their rows be renewed meanwhile."""
        for result in results:
            result.ending = False
            if result.thread is not None and end_session_of(result.thread, self.using):
                logger.error("%s: its database session was ended", named(result.row))
                result.thread, seconds = None, FREED
        self.inflight.postpone(results, seconds)

    def _refused(self, result: HeldRow, error: Exception) -> None:
        """Fail a row whose result the database refuses: that is its own fault."""
        if isinstance(result.outcome, Done):
            result.outcome = judged(result.row, error)
            self._write([result])
        else:
            unrecorded(result.row, error)
            self._let_go([result])

    def _log_lost(self, results: Iterable[HeldRow]) -> None:
        for result in results:
            if (ended := result.claim.how_ended()) is not None:
                # By its handler, which went on after its time was over.
                result.outcome = ended
                self._note([result], ended, 0.0)
                continue
            raised = getattr(result.outcome, "error", None)
            error = raised if isinstance(raised, BaseException) else None
            if result.claim.ambiguous:
                _log_undecided(result, error or "the answer to its COMMIT was lost")
            else:
                lost(result.row, "noticed when its result was written", error=error)

    # The verbs

    def _apply(self, results: list[HeldRow]) -> None:
        """Write by the verb of their outcome, and note what is written; ClaimLost names the others."""
        # Read once, for a process that ends gives up what is not written yet.
        outcome = results[0].outcome
        began = clock()
        try:
            self._call_verb(results, outcome)
        except ClaimLost as error:
            if written := _those_of(results, error.written):
                self._note(written, outcome, clock() - began)
            raise
        self._note(results, outcome, clock() - began)

    def _call_verb(self, results: list[HeldRow], outcome: Outcome | None) -> None:
        match outcome:
            case Done():
                complete(results[0].handler, _rows_of(results))
            case PutBack():
                if outcome.everyone and outcome.delay is not None:
                    # First, or somebody else would claim the row and ask the same in vain.
                    holder, _, _ = results[0].claim.token.holder.partition(WORKER_MARK)
                    model, why = results[0].handler.model, outcome.reason
                    stop_everyone(model, self.using, outcome.delay, why, holder)
                release(_rows_of(results), outcome.delay, quarantined=outcome.quarantined)
            case Failed():
                fail(_rows_of(results), outcome.error, retry=True)
            case Ambiguous():
                self._decide(results[0], outcome)

    def _note(self, results: list[HeldRow], outcome: Outcome | None, seconds: float) -> None:
        """Count and log what has been written, here or before: by the handler, or with its transaction."""
        match outcome:
            case Done() | Ended(completed=True):
                self.counters.count_done(results[0].handler.model, len(results))
                ran = sum([result.ran for result in results])
                changed("completed", _rows_of(results), seconds, ran=ran)
            case PutBack():
                changed("released", _rows_of(results), seconds, why=outcome.reason)
            case Failed():
                for result in results:
                    # Each row shows its own traceback.
                    error = getattr(result.outcome, "error", outcome.error)
                    raised = error if isinstance(error, BaseException) else None
                    self._note_failed(result, class_and_text(error), seconds, raised)
                    if result.claim.too_long and result.handler.has_ranges:
                        # Contention there would roll back the failure with it.
                        after_commit(self.using, partial(self._halve, result.row))
            case Ended(failure=(name, text)):
                for result in results:
                    self._note_failed(result, (name, text), seconds)

    def _halve(self, row: Model) -> None:
        """Split a range that took too long; where that fails it is tried again as it is."""
        try:
            halve(row)
        except Exception as error:
            self._limited.warn(f"splitting {named(row)}", error)

    def _note_failed(
        self,
        result: HeldRow,
        described: tuple[str, str],
        seconds: float,
        raised: BaseException | None = None,
    ) -> None:
        row, (name, text) = result.row, described
        final = row.__dict__.get(claim_columns(type(row)).status.attname) == Status.FAILED
        self.counters.count_error(type(row), f"{name}: {text}" if name else text, final=final)
        failed(row, seconds, name, text, ran=result.ran, final=final, raised=raised)

    def _decide(self, result: HeldRow, outcome: Ambiguous) -> None:
        """Find out, by the token, whether a transaction was committed whose COMMIT was not answered."""
        found = judge_ambiguous_commit([result.row], patience=0)
        if found.still_held:
            result.outcome = outcome.otherwise
            self._apply([result])
        elif found.committed:
            result.outcome = COMPLETED
            self._note([result], COMPLETED, 0.0)
        else:
            _log_undecided(result, outcome.error)


class _Search:
    """Tells the errors of results that cannot be written, as they are refused or end the session, from others."""

    def __init__(self, using: str, was_away_since: Callable[[float], bool]) -> None:
        self.using, self.was_away_since = using, was_away_since
        self.began = clock()
        self._ended_session: Exception | None = None

    def is_of_a_row(self, error: Exception) -> bool:
        """Say whether the error may be of single results, which a session that works can find; a new one if needed.

        Raises the error of a database that is away.
        """
        connection = connections[self.using]
        if is_contention(error):
            return False
        if is_refusal(error):
            if not connection.in_atomic_block:
                # The answer may have been the last of its session.
                ensure_usable(self.using)
            return True
        self._ended_session = error
        if connection.in_atomic_block or server_code(error) is not None:
            # The session goes on, but the server can write nothing.
            return False
        drop_broken(self.using)
        connection.ensure_connection()
        return True

    def check(self, error: Exception, *, is_first: bool) -> None:
        """Raise the error of a session that has ended because the database was away: no result is to blame."""
        is_doubtful = is_first or not is_refusal(error)
        if is_doubtful and self._ended_session is not None and self.was_away_since(self.began):
            raise self._ended_session


def _log_undecided(result: HeldRow, error: BaseException | str) -> None:
    broken(
        f"{named(result.row)}: whether its transaction was committed cannot be known any more, so this run is not"
        " repeated",
        error,
        event="undecided",
        keys=[str(result.claim.pk)],
    )


def _alike(results: list[HeldRow]) -> list[list[HeldRow]]:
    """Group results so that one statement can write each group; nearly always there is one, of rows that are done."""
    groups: dict[object, list[HeldRow]] = {}
    for result in results:
        kind = DONE if result.outcome is DONE else _kind(result)
        alone = id(result) if result.alone else None
        groups.setdefault((type(result.row), result.locked, alone, kind), []).append(result)
    return list(groups.values())


def _kind(result: HeldRow) -> object:
    outcome = result.outcome
    if isinstance(outcome, Failed):
        # Rows that have failed as often are all tried again, or none of them.
        return text_to_store(outcome.error), result.claim.attempts
    return id(result) if isinstance(outcome, Ambiguous) else outcome


def _rows_of(results: list[HeldRow]) -> list[Any]:
    return [result.row for result in results]


def _those_of(results: list[HeldRow], rows: Iterable[object]) -> list[HeldRow]:
    wanted = {id(row) for row in rows}
    return [result for result in results if id(result.row) in wanted]
