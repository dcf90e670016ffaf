"""How a verb's statements are sent: in a transaction of their own, tried again when the database is contended.

Where a COMMIT was not answered, ``run`` raises ``AmbiguousCommit``, and the caller asks the rows by ``finished_rows``.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any, TypeVar

from django.db import DatabaseError, Error, OperationalError, connections, models
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim.claim import carried_claims
from django_taskclaim.connecting import TROUBLE, WAITS_ONCE, drop_broken
from django_taskclaim.contention import contention_code, retry_on_contention
from django_taskclaim.db import dialect_for
from django_taskclaim.db.sql import WAIT, Row
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.querysets.scope import ClaimTarget, Target
from django_taskclaim.states import Status, Token

R = TypeVar("R")

#: How many seconds a verb waits at a time for a transaction whose COMMIT was not answered.
PATIENCE = 2.0


class AmbiguousCommit(OperationalError):
    """A COMMIT was sent, and an error of the connection came instead of an answer: the rows alone tell its outcome.

    To a caller who does not look at them it is the error of the connection, which is its cause.
    """

    #: What the statements had returned before the COMMIT; None for a statement that was to commit by itself.
    result: Any = None


def run(
    target: ClaimTarget,
    statements: Callable[[], R],
    *,
    autocommit: bool = False,
    savepoint: bool = True,
    patience: float = 0.0,
) -> R:
    """Run *statements* in one transaction, or in a savepoint of the caller's, and again after contention.

    With *autocommit* it is one statement outside of any transaction, which commits by itself; see ``can_autocommit``.
    Without *savepoint* it is part of the caller's transaction, and with *patience* it waits no more seconds for a lock.
    """
    if not savepoint and target.dialect.connection.in_atomic_block:
        # An error ends that transaction, so nothing is sent again.
        return statements()
    failed: list[Error] = []
    if autocommit:
        try:
            # This is enough in nearly all cases.
            return statements()
        except Error as error:
            failed.append(error)
    own = partial(target.dialect.own_transaction, savepoint=savepoint, patience=patience)
    block = nullcontext if autocommit else own

    def once() -> R:
        with detecting_lost_commit(target, block(), is_commit=autocommit) as lost:
            if failed:
                raise failed.pop()
            lost.result = result = statements()
        return result

    waits_once = WAITS_ONCE in vars(target.dialect.connection)
    return _retry(target.alias, lock_timeouts=not waits_once).call(once)


@contextmanager
def detecting_lost_commit(
    target: Target, block: AbstractContextManager[None], *, is_commit: bool = False
) -> Iterator[AmbiguousCommit]:
    """Run the inside of *block*; AmbiguousCommit, with what was noted on it, where the COMMIT was not answered.

    Where the statement inside *is a commit*, too, it is in no transaction.
    """
    outermost = is_commit or no_transaction(target.dialect.connection)
    lost, committing = AmbiguousCommit(), is_commit
    try:
        with block:
            yield lost
            committing = outermost
    except TROUBLE as error:
        was_refused = contention_code(error) is not None or not target.dialect.may_be_done(error)
        if not committing or was_refused:
            raise
        drop_broken(target.alias)
        lost.args = error.args
        raise lost from error


@cache
def _retry(using: str, *, lock_timeouts: bool) -> retry_on_contention:
    # It is cached, since making one costs a noticeable part of a small statement.
    return retry_on_contention(using=using, atomic=False, lock_timeouts=lock_timeouts)


def finished_rows(rows: Sequence[models.Model], state: Status | None) -> list[models.Model]:
    """Return those of *rows* that are in *state* under their tokens: the COMMIT that was not answered has arrived.

    They are rows of one model, claimed on one database, that were found in the state before it no more. Of the others
    nobody can tell whether it arrived: they are gone, open again or claimed once more. That is noted on their claims.
    """
    claims = carried_claims(rows)
    target = ClaimTarget.of(type(rows[0]), claims[0].alias)
    columns, table, dialect = target.columns, target.table, target.dialect
    fields = [*columns.key, columns.status, columns.claimed_by, columns.iteration]
    keys = sorted(claim.pk for claim in claims)

    def read() -> list[Row]:
        # Under a lock: a COMMIT that is on its way only now would otherwise land after it was found missing.
        parts = dialect.chunks(keys, table)
        return [
            row for part in parts for row in dialect.select(table, fields, table.keyed(part), WAIT)
        ]

    # All rows are asked before anything is noted.
    states = {
        table.key_of(row): (row[-3], Token(*row[-2:]))
        for row in run(target, read, patience=PATIENCE)
    }
    found = []
    for row, claim in zip(rows, claims, strict=True):
        claim.unanswered = False
        if states.get(claim.pk) == (state, claim.token):
            found.append(row)
        else:
            claim.lost = claim.ambiguous = True
    return found


# Transactions of the caller's


def belongs_to_the_caller(connection: BaseDatabaseWrapper) -> bool:
    """Say whether a transaction is open that is not ``TestCase``'s, so that nothing sent now is committed."""
    blocks = connection.atomic_blocks
    if connection.in_atomic_block:
        return not (blocks and getattr(blocks[-1], "_from_testcase", False))
    return not connection.get_autocommit()


def refuse_transaction(connection: BaseDatabaseWrapper, what: str, or_else: str = "") -> None:
    """Raise RuntimeError if a transaction of the caller's is open; *what* says why none may be."""
    if belongs_to_the_caller(connection):
        raise RuntimeError(
            f"{what}, but a transaction is open here (atomic(), ATOMIC_REQUESTS, or autocommit switched off). Call it"
            f" outside, for example in a view with @transaction.non_atomic_requests.{or_else}"
        )


def refuse_old_snapshots(target: ClaimTarget, what: str) -> None:
    """Raise RuntimeError if the caller's transaction does not see what others commit; *what* needs to see it."""
    dialect = target.dialect
    if belongs_to_the_caller(dialect.connection) and not dialect.sees_new_commits():
        raise RuntimeError(
            f"{what}, and the open transaction does not see what they commit: call it outside of the transaction, or"
            " let that run at READ COMMITTED."
        )


def no_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Say whether the next transaction will be of our own making."""
    return not connection.in_atomic_block and connection.get_autocommit()


@contextmanager
def unbroken_transaction(using: str, complaint: str) -> Iterator[None]:
    """Raise TaskClaimError with *complaint* if what the block wrote is gone although it ended well.

    A deadlock rolls back the whole transaction on MySQL and MariaDB, DDL commits it, and a block that catches the
    error, or meets none, would be taken for done all the same.
    """
    connection = connections[using]
    returned = False
    try:
        with dialect_for(connection).detecting_rollback():
            yield
            returned = True
            if connection.needs_rollback:
                # An error has passed through an inner atomic(savepoint=False), so Django would roll back.
                raise TaskClaimError(complaint)
    except DatabaseError as error:
        if not returned:
            raise
        raise TaskClaimError(f"{complaint}: {error}") from error
