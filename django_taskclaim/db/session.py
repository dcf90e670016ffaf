"""What a connection does beside claiming: transactions of our own, bounded lock waits, and sessions that end."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper


class Session:
    """The transactions and the session of one connection, and how where nothing special is known."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.connection = connection

    @contextmanager
    def own_transaction(
        self, *, durable: bool = False, savepoint: bool = True, patience: float = 0.0
    ) -> Iterator[None]:
        """Open a transaction that sees each other commit at once (READ COMMITTED).

        Inside a caller's transaction it is a savepoint, or part of it without *savepoint*, or, with *durable*, Django's
        RuntimeError. With *patience* it waits at most so many seconds for a lock, as in ``limit_lock_wait``.
        """
        outermost = not self.connection.in_atomic_block and self.connection.get_autocommit()
        block = transaction.atomic(self.connection.alias, savepoint, durable)
        with ExitStack() as stack:
            with self.beginning() if outermost else nullcontext():
                stack.enter_context(block)
            if patience:
                stack.enter_context(self.limit_lock_wait(patience))
            yield

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Surround the BEGIN of our outermost transaction, and set that up."""
        yield

    @contextmanager
    def detecting_rollback(self) -> Iterator[None]:
        """Raise a DatabaseError at the end of the block if what it wrote in the open transaction is gone."""
        savepoint = str(self.connection.savepoint())
        yield
        self.connection.savepoint_commit(savepoint)

    @contextmanager
    def guarded_transaction(self, idle: timedelta) -> Iterator[None]:
        """Open a transaction that the server ends, and with it our session, once it has been idle for so long.

        What the session had before counts again afterwards. Durable.
        """
        with self.own_transaction(durable=True):
            yield

    @contextmanager
    def limit_lock_wait(self, seconds: float) -> Iterator[None]:
        """Let the open transaction wait at most *seconds* for a lock in this block, where the database has a limit.

        On PostgreSQL that holds until the transaction ends.
        """
        yield

    def end_idle_transactions(
        self, idle: timedelta, *, ours_alone: bool, atomic: bool | None
    ) -> None:
        """Let the server end this session once a transaction of it has been idle for so long.

        A process that is frozen in the middle of one would keep its row locks otherwise. *ours_alone* says that no
        code of the user's runs on the connection, *atomic* that it does so in our transaction (False that it does no
        more): then a session that is idle outside a transaction may end as well.
        """

    def session_mark(self) -> tuple[Any, ...] | None:
        """Return what ``end_session`` finds this connection's new session by; None where nothing can end it."""
        return None

    def end_session(self, mark: tuple[Any, ...]) -> bool:
        """End another of our sessions: its transaction is rolled back, its locks are freed. False if it is gone.

        Another session that has got its number meanwhile is left alone.
        """
        return False

    def service_options(self) -> dict[str, object]:
        """Return OPTIONS of a connection that must notice soon when its server is gone."""
        raise NotImplementedError

    def advisory_lock(self, name: str) -> None:
        """Let transactions that name the same wait for each other, until each has ended."""
        raise NotImplementedError

    def sees_new_commits(self) -> bool:
        """Say whether each statement of the open transaction sees what others have committed before it."""
        return True

    def open_transactions(self) -> frozenset[str] | None:
        """Name what may still commit keys that it has been given by now; None where the database does not tell.

        Until the server starts again no later transaction bears one of these names, but ``PREPARED``, which stands for
        all that are half committed.
        """
        return None
