"""How a verb's statements are sent: in a transaction of their own, tried again when the database is contended."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar

from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim.claim import commits_by_itself
from django_taskclaim.contention import ContentionRetry, contention_code, retry_on_contention
from django_taskclaim.db import dialect_for, savepoint_around
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.querysets.lost_commits import AWAY, give_up
from django_taskclaim.querysets.scope import ClaimTarget

R = TypeVar("R")


#: Given what the statements returned, says what really came of them; a database error if that cannot be told.
LookAgain = Callable[[R], R]


def transactionally(
    target: ClaimTarget, statements: Callable[[], R], look_again: LookAgain[R] | None = None
) -> R:
    """Run *statements* in one transaction, or in a savepoint of the caller's.

    Inside ``joined`` it is the caller's transaction itself, and whatever fails ends that. Where it was our own and its
    COMMIT was not answered, *look_again* finds out what came of it.
    """
    if joins(target):
        # Whatever fails ends that transaction, and is nobody's to try again but its owner's.
        try:
            return statements()
        except BaseException as error:
            connection: Any = target.dialect.connection
            connection.needs_rollback, connection.rollback_exc = True, error
            raise
    return _retried(target, statements, look_again, durable=False)


def alone(
    target: ClaimTarget, statement: Callable[[], R], look_again: Callable[[], R] | None = None
) -> R:
    """Run the one *statement* outside of any transaction, so that it commits by itself.

    Where it was not answered, *look_again* finds out what came of it. Only where ``may_stand_alone``.
    """

    def once() -> R:
        try:
            return statement()
        except AWAY as error:
            if contention_code(error) is not None or not target.dialect.may_be_done(error):
                raise
            raise _Unanswered(None, error) from error

    if look_again is None:
        return _answered(target, once, None)
    look = look_again
    return _answered(target, once, lambda unknown: look())


def may_stand_alone(target: ClaimTarget) -> bool:
    """Say whether a single statement needs no transaction of ours around it: a third of the round trips."""
    return no_transaction(target.dialect.connection) and target.dialect.commits_alone


def durably(
    target: ClaimTarget,
    statements: Callable[[], R],
    look_again: LookAgain[R] | None = None,
    *,
    durable: bool = True,
) -> R:
    """Run *statements* in a transaction that has committed on return; RuntimeError inside a caller's.

    ``TestCase`` counts as no transaction, as with Django's ``atomic(durable=True)``; switched-off autocommit does.
    """
    connection = target.dialect.connection
    if durable and belongs_to_the_caller(connection):
        raise RuntimeError(
            "claim_batch() must commit before it returns, but a transaction is open here (atomic(), ATOMIC_REQUESTS,"
            " or autocommit switched off). Call it outside, for example in a view with"
            " @transaction.non_atomic_requests, or pass durable=False: the claim is then provisional until you commit."
        )
    return _retried(target, statements, look_again, durable=durable)


def belongs_to_the_caller(connection: BaseDatabaseWrapper) -> bool:
    """Say whether a transaction is open that is not ``TestCase``'s, so that nothing sent now is committed."""
    blocks = connection.atomic_blocks
    if connection.in_atomic_block:
        return not (blocks and getattr(blocks[-1], "_from_testcase", False))
    return not connection.get_autocommit()


def refuse_old_snapshots(target: ClaimTarget, what: str) -> None:
    """Raise RuntimeError inside a transaction of the caller's that does not see what others commit; *what* must."""
    dialect = target.dialect
    if belongs_to_the_caller(dialect.connection) and not dialect.sees_new_commits():
        raise RuntimeError(
            f"{what}, and the open transaction does not see what they commit: call it outside of the transaction, or"
            " let that run at READ COMMITTED."
        )


def no_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Say whether the next transaction will be of our own making."""
    return not connection.in_atomic_block and commits_by_itself(connection)


@contextmanager
def whole(using: str, complaint: str, *, asking: bool = False) -> Iterator[None]:
    """Raise TaskClaimError with *complaint* if what the block wrote is gone although it ended well.

    A deadlock rolls back the whole transaction on MySQL and MariaDB, DDL commits it, and a block that catches the
    error, or meets none, would be taken for done all the same. With *asking* the server is asked also where the driver
    should know: so a session that it has ended meanwhile is told with the same complaint.
    """
    connection = connections[using]
    guard = savepoint_around(connection) if asking else dialect_for(connection).kept_whole()
    returned = False
    try:
        with guard:
            yield
            returned = True
            if connection.needs_rollback:
                # Django would roll back what an error inside atomic(savepoint=False) has passed through, caught or not.
                raise TaskClaimError(complaint)
    except DatabaseError as error:
        if not returned:
            raise
        raise TaskClaimError(f"{complaint}: {error}") from error


#: Whether the verbs of this thread join the transaction that is open as it is.
_joined = ContextVar("taskclaim_joined", default=False)


@contextmanager
def joined() -> Iterator[None]:
    """Let the verbs of the block do without savepoints of their own: whatever fails there ends the transaction."""
    token = _joined.set(True)
    try:
        yield
    finally:
        _joined.reset(token)


def joins(target: ClaimTarget) -> bool:
    """Say whether a verb would join the transaction that is open, so that nothing of it could be undone alone."""
    return _joined.get() and target.dialect.connection.in_atomic_block


#: Whether verbs of this thread wait for a lock once only.
_waits_once = ContextVar("taskclaim_waits_once", default=False)


@contextmanager
def waiting_once() -> Iterator[None]:
    """Let the verbs of the block pass a lock timeout on at once, to a caller who can go around the lock.

    While they wait they hold locks of their own, so that nobody renews those rows.
    """
    token = _waits_once.set(True)
    try:
        yield
    finally:
        _waits_once.reset(token)


class _Unanswered(Exception):
    """The COMMIT was sent, and an error of the connection came instead of an answer."""

    def __init__(self, result: Any, error: Exception) -> None:
        super().__init__(result, error)
        self.result, self.error = result, error


def _retried(
    target: ClaimTarget,
    statements: Callable[[], R],
    look_again: LookAgain[R] | None,
    *,
    durable: bool,
) -> R:
    connection = target.dialect.connection

    def once() -> R:
        outermost = no_transaction(connection)
        committing = False
        try:
            with target.dialect.own_transaction(durable=durable):
                result = statements()
                committing = outermost
            return result
        except AWAY as error:
            if not committing or contention_code(error) is not None:
                raise
            if not target.dialect.may_be_done(error):
                raise
            raise _Unanswered(result, error) from error

    return _answered(target, once, look_again)


@cache
def _retry(using: str, lock_timeouts: bool) -> ContentionRetry:
    # Kept, for making one costs a small part of a small statement.
    return retry_on_contention(using=using, atomic=False, lock_timeouts=lock_timeouts)


def _answered(target: ClaimTarget, once: Callable[[], R], look_again: LookAgain[R] | None) -> R:
    """Return what *once* returns, tried again on contention, or what *look_again* finds where it was not answered."""
    try:
        return _retry(target.alias, not _waits_once.get()).call(once)
    except _Unanswered as lost:
        give_up(target.dialect.connection)
        if look_again is None:
            raise lost.error from lost.error.__cause__
        try:
            return look_again(lost.result)
        except AWAY:
            raise lost.error from lost.error.__cause__
