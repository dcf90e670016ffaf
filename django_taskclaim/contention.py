"""Lock timeouts, deadlocks and serialization failures: recognised, and tried again where that is safe.

A retry is safe where it repeats everything the database has undone, and a deadlock undoes the whole
transaction (error 1213 of MySQL and MariaDB, where Django does not even notice). So only the code that opened
the outermost transaction may repeat a try: here each try opens one of its own, and where the caller has
opened one already the error is passed on and that transaction marked for rollback. Django's ``TestCase``
counts as such a caller, for a deadlock takes away what it had set up.

``retry_on_contention`` decorates functions and calls them; ``Retriable`` stands in front of any object,
after the idea of database gateways wrapped so that none of their callers has to think of deadlocks.
"""

import functools
import inspect
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum, auto
from typing import ParamSpec, TypeAlias, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import Error, InterfaceError, InternalError, OperationalError
from django.dispatch import Signal

from django_taskclaim import conf
from django_taskclaim.exceptions import RetriesExhausted

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

logger = logging.getLogger("django_taskclaim.contention")

#: The longest wait before the first retry in seconds, and where its doubling ends.
FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0

#: Sent before each wait for another try, with ``code``, ``attempt`` (the try that failed, from 1), ``elapsed``
#: and ``wait`` (seconds) and ``using``. So a circuit breaker hears of contention that no caller ever sees.
#: A receiver that raises is logged and stops nothing.
contention_retried = Signal()

# Codes: one table for all databases. No driver is imported for that, so none has to be installed.

#: PostgreSQL's SQLSTATE, the error number of MySQL and MariaDB, or SQLite's (extended) result code.
Code: TypeAlias = str | int


class Meaning(Enum):
    """What an error says of the statement that it answers."""

    #: A lock timeout, deadlock or serialization failure: others were in the way.
    CONTENTION = auto()
    #: The server can write nothing now: no disk or memory left, read-only, not in its cluster (Galera).
    SERVER = auto()
    #: The session has ended or was refused: a network or an operator, too many sessions, an account not let in.
    SESSION = auto()
    #: The statement was not taken, and nothing was done: it speaks of the rows, in whichever class of errors the driver
    #: puts it. It did not end the session. Every other code means this.
    REFUSAL = auto()


#: Others held a lock for longer than this session was to wait; 3572 is MySQL's NOWAIT.
LOCK_TIMEOUTS: frozenset[Code] = frozenset({"55P03", 1205, 3572})
#: The server ended a statement that took too long: because of others, of a slow disk, or of what it does.
STATEMENT_TIMEOUTS: frozenset[Code] = frozenset({"57014", 1969, 3024})
#: The transaction stood still or took too long; the server stops, or the network to it fails.
CUT_OFF: tuple[Code, ...] = ("25P03", "25P04", 1053, 1159, 1160, 1161, 1927, 4031)
#: Too many sessions, or this account is not let in.
NOT_LET_IN = (1040, 1042, 1043, 1044, 1045, 1049, 1129, 1130, 1203, 1226, 1698, 3118)

#: A short text is a class of SQLSTATEs.
CODES: dict[Meaning, tuple[Code, ...]] = {
    # serialization_failure, deadlock_detected; deadlock, changed since the snapshot (MariaDB)
    Meaning.CONTENTION: (*LOCK_TIMEOUTS, "40001", "40P01", 1213, 1020),
    # 53 and 58: insufficient resources, system error
    Meaning.SERVER: ("25006", "53", "58", 1021, 1037, 1041, 1047, 1114, 1290, 1792, 1836, 3032),
    # 08 and 57P: connection exception, operator intervention
    Meaning.SESSION: ("08", "57P", *CUT_OFF, *NOT_LET_IN),
    # temp_file_limit is a limit of one statement, although its class is that of insufficient resources.
    Meaning.REFUSAL: ("53400",),
}
MEANINGS = {code: meaning for meaning, codes in CODES.items() for code in codes}

#: Low bytes of extended codes. SQLITE_BUSY and SQLITE_LOCKED; out of memory, read-only, I/O error, corrupt, full,
#: cannot open, locking protocol, no database.
SQLITE_MEANINGS = {
    **dict.fromkeys((5, 6), Meaning.CONTENTION),
    **dict.fromkeys((7, 8, 10, 11, 13, 14, 15, 26), Meaning.SERVER),
}


def meaning_of(error: BaseException) -> Meaning | None:
    """Return what the database says with ``error``; None where it says nothing, because the error is not its own."""
    return _answer(error)[1]


#: The database was away, read-only after a failover, or contended; what was tried may be tried again.
TROUBLE = (OperationalError, InterfaceError, InternalError, RetriesExhausted)


def is_contention(error: BaseException) -> bool:
    """Say whether others were in the way, which says nothing about the database being there."""
    return isinstance(error, RetriesExhausted) or meaning_of(error) is Meaning.CONTENTION


def is_timeout(error: BaseException) -> bool:
    """Say whether the statement took too long, for which the rows may or may not be to blame; it is a refusal, too."""
    return _answer(error)[0] in STATEMENT_TIMEOUTS


def is_refusal(error: BaseException) -> bool:
    """Say whether *error* speaks of the rows that were to be written, and not of the database, nor of others."""
    return not isinstance(error, TROUBLE) or meaning_of(error) is Meaning.REFUSAL


def may_be_an_outage(error: BaseException) -> bool:
    """Say whether the database may be away: neither others nor the rows are to blame, or nobody can tell."""
    return is_timeout(error) or not (is_contention(error) or is_refusal(error))


def _answer(error: BaseException | None, depth: int = 0) -> tuple[Code | None, Meaning | None]:
    """Return the code of an error and what it means, or of what a database error was raised from.

    The cause of a database error is looked at, too, for that is where Django keeps the driver's error. The cause of
    any other error is not: code that raised a ``ValueError`` from a deadlock has dealt with the deadlock.
    """
    # No chain of causes is as long, but one may lead back to its beginning.
    if error is None or depth == 10:
        return None, None
    # PEP 249's class name, which Django, every driver and SQLAlchemy share.
    is_of_database = any(kind.__name__ == "DatabaseError" for kind in type(error).__mro__)
    # psycopg 3, asyncpg and others say sqlstate, psycopg2 says pgcode.
    sqlstate = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    sqlite_code = getattr(error, "sqlite_errorcode", None)
    # A bare number counts only in a database error: KeyError(1213) is about a key.
    number = error.args[0] if error.args and is_of_database else None
    if isinstance(sqlstate, str):
        # The code itself, or else its class.
        known = next((sqlstate[:n] for n in (5, 3, 2) if sqlstate[:n] in MEANINGS), "")
        return sqlstate, MEANINGS.get(known, Meaning.REFUSAL)
    if isinstance(sqlite_code, int):
        return sqlite_code, SQLITE_MEANINGS.get(sqlite_code & 0xFF, Meaning.REFUSAL)
    if type(error).__module__ == "sqlite3" and type(error).__name__ == "OperationalError":
        # The driver's own, without a code: a text that is not UTF-8.
        return None, Meaning.REFUSAL
    if isinstance(number, int):
        # From 2000 to 2999 the client speaks: the server is gone.
        usual = Meaning.SESSION if number // 1000 in (0, 2) else Meaning.REFUSAL
        return number, MEANINGS.get(number, usual)
    return _answer(error.__cause__ if is_of_database else None, depth + 1)


# Retries

_RETRIES = conf.or_none(conf.whole_number(least=0))

#: Set on a connection while nobody waits over it for the same lock again.
WAITS_ONCE = "_taskclaim_waits_once"


@contextmanager
def waiting_once(using: str) -> Iterator[None]:
    """Let the verbs of the block pass a lock timeout on at once, to a caller who can go around the lock.

    While they wait they hold locks of their own, so that nobody renews those rows.
    """
    own = vars(connections[using])
    own[WAITS_ONCE] = True
    try:
        yield
    finally:
        del own[WAITS_ONCE]


@dataclass(frozen=True, kw_only=True)
class retry_on_contention:
    """Repeat a whole transaction that lost against others.

    A decorator::

        @retry_on_contention(using="orders")
        def transfer(source, target, amount): ...

    or for one call: ``retry_on_contention().call(transfer, source, target, amount)``.

    Each try is a transaction of its own. One that ends by a lock timeout, a deadlock or a serialization
    failure, at its COMMIT too, is repeated up to ``retries`` times, each after a growing random wait. Then
    ``RetriesExhausted`` has ``attempts``, ``elapsed`` and ``code``, with the last error as its cause. Every other
    error passes untouched. So does one of an ``on_commit`` hook, for by then the transaction has committed. What a
    try did outside of its transaction is done again. Each retry is logged as a WARNING and sends
    ``contention_retried``.

    Inside a transaction of the caller's nothing is retried: the database's error passes, and that
    transaction is marked for rollback. ``TestCase`` is such a transaction. So is switched-off autocommit,
    where Django has no mark and the caller must roll back.

    ``atomic=False`` opens no transaction: what is called manages its own and must bear being repeated. It keeps nothing
    between calls, so one serves any number of threads and nested calls.
    """

    #: Tries after the first; None is the setting RETRIES, which is 2.
    retries: int | None = None
    #: The database alias. None is the default one, or, with ``atomic=False``, any that has a transaction open.
    using: str | None = None
    #: Whether each try gets a transaction. False is for code that manages its own.
    atomic: bool = True
    #: False passes a lock timeout on at once, to a caller who can go around the lock.
    lock_timeouts: bool = True

    def __post_init__(self) -> None:
        _RETRIES.check(self.retries, "retries")

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]:
        """Return ``function`` wrapped so that each call of it is retried."""
        if _does_nothing_yet(function):
            raise TypeError(
                f"{function!r} is a generator or coroutine function, and a call of it does no work yet. Decorate a"
                " plain function, and call that by sync_to_async() from a coroutine."
            )

        @functools.wraps(function)
        def retried(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.call(function, *args, **kwargs)

        return retried

    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return what ``function`` returns, retrying contention, that of its COMMIT included."""
        attempt, began = 1, time.monotonic()
        using = self.using or DEFAULT_DB_ALIAS
        is_outermost = self.atomic and not _in_transaction(connections[using])
        while True:
            committed: list[bool] = []
            try:
                with transaction.atomic(using) if self.atomic else nullcontext():
                    if is_outermost:
                        # The first hook of all. A later one can raise contention out of atomic(), too, but then the
                        # transaction has committed, and repeating it would double its effects.
                        transaction.on_commit(functools.partial(committed.append, True), using)
                    return function(*args, **kwargs)
            except Exception as error:
                pause = None if committed else self._pause_after(error, attempt, began)
                if pause is None:
                    raise
            time.sleep(pause)
            attempt += 1

    def _pause_after(self, error: Exception, attempt: int, began: float) -> float | None:
        """Report the next try and return the seconds until it; None if *error* must pass.

        RetriesExhausted after the last try. Contention inside a caller's transaction passes: each open one that may
        have lost effects must roll back.
        """
        code, meaning = _answer(error)
        is_passed_on = code in LOCK_TIMEOUTS and not self.lock_timeouts
        if code is None or meaning is not Meaning.CONTENTION or is_passed_on:
            return None
        # Without an alias it may be of any; another library's error comes from another library's transaction.
        others = connections.all(initialized_only=True) if isinstance(error, Error) else []
        has_alias = self.atomic or self.using is not None
        affected = [connections[self.using or DEFAULT_DB_ALIAS]] if has_alias else others
        hit = [connection for connection in affected if _in_transaction(connection)]
        for connection in hit:
            if connection.in_atomic_block:
                connection.set_rollback(True)
                # Django names it as the cause when it refuses the next query of the block.
                vars(connection)["rollback_exc"] = error
        if hit:
            return None
        elapsed = time.monotonic() - began
        retries = int(conf.setting("RETRIES")) if self.retries is None else self.retries
        if attempt > retries:
            raise RetriesExhausted(attempt, elapsed, code) from error
        # Bounded, for the power grows without an end.
        longest = min(FIRST_WAIT * 2 ** min(attempt - 1, 60), LONGEST_WAIT)
        # Anywhere between nothing and that (full jitter), so that those who met do not meet again.
        pause = random.uniform(0, longest)
        facts: dict[str, object] = {"code": code, "attempt": attempt, "elapsed": elapsed}
        facts |= {"wait": pause, "using": self.using}
        text = "Try %d met contention (database code %s) after %.3f s, trying again in %.3f s: %s"
        logger.warning(text, attempt, code, elapsed, pause, error, extra=facts)
        contention_retried.send_robust(sender=retry_on_contention, **facts)
        return pause


def Retriable(target: T, *, retries: int | None = None, using: str | None = None) -> T:
    """Return what stands in for ``target`` and retries contention in each of its public methods.

    Every other attribute is read from the target as it is. Generators and coroutines pass through unretried.

    The options are those of ``retry_on_contention``, but a method manages its own transactions, since the target may
    be anything. Without ``using``, a transaction open on any alias keeps errors of Django's from being retried; errors
    of other libraries always are.
    """
    retry = retry_on_contention(retries=retries, using=using, atomic=False)

    class Proxy:
        def __getattr__(self, name: str) -> object:
            value = getattr(target, name)
            is_public_method = inspect.isroutine(value) and not name.startswith("_")
            return retry(value) if is_public_method and not _does_nothing_yet(value) else value

    return cast(T, Proxy())


def _does_nothing_yet(function: Callable[..., object]) -> bool:
    """Return whether calling ``function`` only prepares the work, so that no retry could cover it."""
    kinds = (inspect.isgeneratorfunction, inspect.isasyncgenfunction, iscoroutinefunction)
    return any(is_kind(function) for is_kind in kinds)


def _in_transaction(connection: BaseDatabaseWrapper) -> bool:
    # get_autocommit() would connect, and what is not connected has no transaction open.
    is_connected = connection.connection is not None
    return connection.in_atomic_block or (is_connected and not connection.autocommit)
