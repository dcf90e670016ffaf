"""The writer: takes what handlers made of their rows and writes it, many rows in a statement.

It runs in the claimer's thread, on a connection where no code of the user's runs: so the server may end a session
that is frozen in the middle of a completion, on MySQL too, and nobody waits for a row that somebody has locked.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from django.db import connections

from django_taskclaim.claim import Ended, clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.connecting import (
    TROUBLE,
    drop_broken,
    ensure_usable,
    is_contention,
    is_refusal,
    waiting_once,
)
from django_taskclaim.contention import server_code
from django_taskclaim.db import dialect_for
from django_taskclaim.error_text import class_and_text
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.completing import CallRaised
from django_taskclaim.querysets.failing import release, stop_everyone
from django_taskclaim.querysets.isolating import Bad, bisect
from django_taskclaim.querysets.losses import judge_ambiguous_commit
from django_taskclaim.querysets.results import with_locked_source
from django_taskclaim.querysets.writes import lock_free
from django_taskclaim.states import WORKER_MARK, Status
from django_taskclaim.throttling.throttles import working_on
from django_taskclaim.worker.calling import complete
from django_taskclaim.worker.counters import Counters
from django_taskclaim.worker.inflight import InFlight, Result
from django_taskclaim.worker.outcomes import (
    DONE,
    Ambiguous,
    Done,
    Failed,
    PutBack,
    judged,
)
from django_taskclaim.worker.records import (
    Limited,
    broken,
    changed,
    failed,
    lost,
    named,
    unrecorded,
)
from django_taskclaim.worker.sizing import BatchSize

#: Seconds that a result waits for others to be written with, while more are to come.
LINGER = 0.05
#: Results that are enough not to wait for more: one statement's worth.
ENOUGH = 500
#: Seconds until a result that has met a lock is tried again.
LOCKED = 1.0
#: Seconds that such a result waits for the lock then, where the database counts parts of a second.
WAIT_AGAIN = 0.1
#: Seconds for which results are tried one by one before others get their turn.
PATIENCE = 2.0


class Writer:
    """Writes results until the database answers; whether they still count, the fence decides."""

    def __init__(
        self,
        using: str,
        inflight: InFlight,
        counters: Counters,
        sizes: Mapping[Any, BatchSize],
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

    def wait(self, *, more_to_come: bool = False) -> float | None:
        """Return for how many seconds nothing need be written yet: 0 for at once, None where nothing is to be.

        With *more_to_come* from rows not claimed yet, results wait for theirs although nothing runs just now.
        """
        moment = self.inflight.write_at(LINGER, more_to_come=more_to_come)
        return max(0.0, moment - clock()) if moment else moment

    def write(self) -> bool:
        """Write all results that are due, and say whether that took a statement.

        Those that could not be written stay, and trouble is raised.
        """
        groups = _alike(self.inflight.unwritten())
        for results in groups:
            # What met a lock a moment ago would hold up all the others again.
            with working_on(results[0].task.handler.model):
                self._write(results, around_locks=results[0].locked)
        return any(type(results[0].outcome) is not Ended for results in groups)

    def _write(self, results: Sequence[Result], *, around_locks: bool = False) -> None:
        """Write results that one statement can write; where it fails because of a few, all the others."""
        began = clock()
        try:
            self._send(results, around_locks=around_locks)
        except Exception as error:
            search = _Search(self, began)
            if not search.is_of_a_row(error):
                raise
            # What a session in trouble refused may pass at a second try.
            known = [] if isinstance(error, TROUBLE) else [error]

            def attempt(part: Sequence[Result]) -> None:
                if known:
                    raise known.pop()
                self._send(part, around_locks=around_locks)

            found: list[Bad[Result]] = []
            for bad in bisect(results, attempt, search.is_of_a_row):
                if isinstance(bad, Bad):
                    search.check(bad.error, is_first=not found)
                    found.append(bad)
            for result, refusal in found:
                self._refused(result, refusal)

    def _send(self, results: Sequence[Result], *, around_locks: bool) -> None:
        """Write results in one statement, or go around what somebody has locked."""
        results = list(results)
        for result in results:
            result.task.ending = True
        verb = self._verbs[type(results[0].outcome)]
        self.last_turn = clock()
        try:
            with waiting_once(self.using):
                if around_locks:
                    results = self._write_unlocked(results, verb)
                else:
                    verb(self, results)
        except ClaimLost as error:
            self._log_lost(_those_of(results, error.lost))
        except Exception as error:
            if not is_contention(error):
                raise
            self._go_around(results, error, tried=around_locks)
            return
        self._let_go(results)

    def is_let_in_again(self, error: Exception) -> bool:
        """Open a new session after one that has ended; False where it goes on, but the server can write nothing.

        Raises the error of a database that is away.
        """
        connection = connections[self.using]
        if connection.in_atomic_block or server_code(error) is not None:
            return False
        drop_broken(self.using)
        connection.ensure_connection()
        return True

    def _let_go(self, results: list[Result]) -> None:
        """Hold these rows no longer; a batch of which nothing is left has come to its end."""
        self.inflight.written(results)
        for result in results:
            if (batch := result.task.batch) is not None:
                batch.left -= 1
                if not batch.left:
                    model = result.task.handler.model
                    self.counters.count_batch(model, clock() - batch.claimed_at)
        ran = sum(result.ran for result in results)
        if ran and type(results[0].outcome) in (Done, Ended):
            self.sizes[results[0].task.handler.model].note(len(results), ran)

    def _write_unlocked(self, results: list[Result], verb: "Verb") -> list[Result]:
        """Write the rows that nobody has locked, and return all but the locked ones, which come round again."""
        dialect = dialect_for(connections[self.using])
        with dialect.own_transaction():
            free, busy = lock_free([result.task.row for result in results])
            if isinstance(results[0].outcome, Done):
                held_up = with_locked_source(free, results[0].task.handler.update_fields)
                free, busy = [row for row in free if row not in held_up], [*busy, *held_up]
            unlocked, locked = _those_of(results, free), _those_of(results, busy)
            if unlocked:
                with dialect.limit_lock_wait(WAIT_AGAIN):
                    verb(self, unlocked)
        self._postpone(locked)
        decided = [result for result in results if result not in locked]
        self._log_lost(result for result in decided if result not in unlocked)
        return decided

    def _go_around(self, results: list[Result], error: Exception, *, tried: bool) -> None:
        """Write what meets no lock, on its own row or on another that it refers to; the rest comes round again."""
        if dialect_for(connections[self.using]).has_one_writer:
            raise error
        if not tried:
            self._write(results, around_locks=True)
        elif len(results) == 1:
            model = results[0].task.handler.model._meta.label
            self._limited.warn(f"{model}: a result waits for a lock that somebody holds", error)
            self._postpone(results)
        else:
            self._write_one_by_one(results)

    def _write_one_by_one(self, results: list[Result]) -> None:
        """Try each result by itself; what there was no time for comes before what has met a lock, in the next turn."""
        end = clock() + PATIENCE
        for number, result in enumerate(results):
            if clock() >= end:
                self._postpone(results[number:], 0.0)
                break
            self._write([result], around_locks=True)

    def _postpone(self, results: list[Result], seconds: float = LOCKED) -> None:
        """Let results wait, and their rows be renewed meanwhile."""
        for result in results:
            result.task.ending = False
        self.inflight.postpone(results, seconds)

    def _refused(self, result: Result, error: Exception) -> None:
        """Fail a row whose result the database, or the policy's function, refuses: that is its own fault."""
        if isinstance(result.outcome, Done):
            raised = error.error if isinstance(error, CallRaised) else error
            result.outcome = judged(result.task.row, raised)
            self._write([result])
        else:
            unrecorded(result.task.row, error)
            self._let_go([result])

    def _log_lost(self, results: Iterable[Result]) -> None:
        for result in results:
            raised = getattr(result.outcome, "error", None)
            error = raised if isinstance(raised, BaseException) else None
            if result.task.claim.ambiguous:
                _log_undecided(result, error or "the answer to its COMMIT was lost")
            else:
                lost(result.task.row, "noticed when its result was written", error=error)

    # The verbs

    def _complete(self, results: list[Result]) -> None:
        began = clock()
        rows = [result.task.row for result in results]
        try:
            complete(results[0].task.handler, rows)
        except ClaimLost as error:
            self._completed(_those_of(results, error.written), clock() - began)
            raise
        self._completed(results, clock() - began)

    def _completed(self, results: list[Result], seconds: float) -> None:
        if results:
            self.counters.count_done(results[0].task.handler.model, len(results))
            ran = sum(result.ran for result in results)
            changed("completed", [result.task.row for result in results], seconds, ran=ran)

    def _release(self, results: list[Result]) -> None:
        began = clock()
        rows = [result.task.row for result in results]
        outcome: Any = results[0].outcome
        if outcome.everyone:
            # First, or somebody else would claim the row and ask the same in vain.
            task = results[0].task
            holder, _, _ = task.claim.token.holder.partition(WORKER_MARK)
            stop_everyone(task.handler.model, self.using, outcome.delay, outcome.reason, holder)
        try:
            if outcome.quarantined:
                release(rows, quarantined=True)
            else:
                self._rows(results).release(rows, delay=outcome.delay)
        except ClaimLost as error:
            self._released(error.written, clock() - began, outcome.reason)
            raise
        self._released(rows, clock() - began, outcome.reason)

    def _released(self, rows: list[Any], seconds: float, why: str) -> None:
        if rows:
            changed("released", rows, seconds, why=why)

    def _fail(self, results: list[Result]) -> None:
        for result in results:
            began, row = clock(), result.task.row
            error: Any = result.outcome.error  # type: ignore[union-attr]
            self._rows([result]).fail([row], error)
            note_failure(self.counters, row, error, clock() - began, ran=result.ran)

    def _decide(self, results: list[Result]) -> None:
        """Find out, by the token, whether a transaction was committed whose COMMIT was not answered."""
        began = clock()
        (result,) = results
        undecided = result.outcome
        assert isinstance(undecided, Ambiguous)
        found = judge_ambiguous_commit([result.task.row], patience=0)
        if found.still_held:
            result.outcome = undecided.otherwise
            self._verbs[type(result.outcome)](self, results)
        elif found.committed:
            self._completed(results, clock() - began)
        else:
            _log_undecided(result, undecided.error)

    def _settled(self, results: list[Result]) -> None:
        """Count what is written already."""
        outcome: Any = results[0].outcome
        if outcome.completed:
            self._completed(results, 0.0)
        elif outcome.failure is not None:
            for result in results:
                _note_failed(self.counters, result.task.row, outcome.failure, 0.0, ran=result.ran)

    _verbs: "dict[type, Verb]" = {
        Done: _complete,
        PutBack: _release,
        Failed: _fail,
        Ambiguous: _decide,
        Ended: _settled,
    }

    def _rows(self, results: list[Result]) -> ClaimQuerySet[Any]:
        return ClaimQuerySet(type(results[0].task.row))


Verb = Callable[[Writer, list[Result]], None]


class _Search:
    """Tells the errors of results that cannot be written, as they are refused or end the session, from others."""

    def __init__(self, writer: Writer, began: float) -> None:
        self.writer, self.began = writer, began
        self._ended_session: Exception | None = None

    def is_of_a_row(self, error: Exception) -> bool:
        if is_contention(error):
            return False
        if not is_refusal(error):
            self._ended_session = error
            return self.writer.is_let_in_again(error)
        if not connections[self.writer.using].in_atomic_block:
            # The answer may have been the last of its session.
            ensure_usable(self.writer.using)
        return True

    def check(self, error: Exception, *, is_first: bool) -> None:
        """Raise the error of a session that has ended because the database was away: no result is to blame."""
        is_doubtful = is_first or not is_refusal(error)
        if (
            is_doubtful
            and self._ended_session is not None
            and self.writer.was_away_since(self.began)
        ):
            raise self._ended_session


def _log_undecided(result: Result, error: BaseException | str) -> None:
    broken(
        f"{named(result.task.row)}: whether its transaction was committed cannot be told any more, so this run is not"
        " repeated",
        error,
        event="undecided",
        keys=[str(result.task.claim.pk)],
    )


def note_failure(
    counters: Counters, row: Any, error: BaseException | str, seconds: float, *, ran: float
) -> None:
    """Count and log a failure that has just been written, by a statement of *seconds*."""
    raised = error if isinstance(error, BaseException) else None
    _note_failed(counters, row, class_and_text(error), seconds, ran=ran, raised=raised)


def _note_failed(
    counters: Counters,
    row: Any,
    described: tuple[str, str],
    seconds: float,
    *,
    ran: float,
    raised: BaseException | None = None,
) -> None:
    name, text = described
    final = row.__dict__.get(claim_columns(type(row)).status.attname) == Status.FAILED
    counters.count_error(type(row), f"{name}: {text}" if name else text, final=final)
    failed(row, seconds, name, text, ran=ran, final=final, raised=raised)


def _alike(results: list[Result]) -> list[list[Result]]:
    """Group results so that one statement can write each group; nearly always there is one, of rows that are done."""
    first = type(results[0].task.row) if results else None
    for result in results:
        if result.outcome is not DONE or result.locked or type(result.task.row) is not first:
            break
    else:
        return [results] if results else []
    groups: dict[Any, list[Result]] = {}
    for result in results:
        groups.setdefault(_kind(result), []).append(result)
    return list(groups.values())


def _kind(result: Result) -> object:
    """Return what results have in common that one statement can write."""
    outcome = result.outcome
    if type(outcome) is Done:
        # They are all the same, and this one is asked for nearly each row.
        return type(result.task.row), Done, result.locked
    if isinstance(outcome, (PutBack, Ended)):
        return type(result.task.row), outcome, result.locked
    return id(result)


def _those_of(results: list[Result], rows: Iterable[object]) -> list[Result]:
    wanted = {id(row) for row in rows}
    return [result for result in results if id(result.task.row) in wanted]
