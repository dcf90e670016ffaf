"""The statements behind named leases.

Each is a single statement outside any transaction, so a process that is frozen or cut off between two of them, at
whatever instant, leaves no lock behind and keeps nobody out for longer than its lease.
"""

import contextlib
from datetime import datetime, timedelta
from typing import Any, Self

from django.db import IntegrityError, connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim import conf
from django_taskclaim.claim import clock
from django_taskclaim.contention import ContentionRetry, retry_on_contention
from django_taskclaim.db import DatabaseLater, DatabaseNow, dialect_for
from django_taskclaim.exceptions import LeaseUnavailable, TaskClaimError
from django_taskclaim.querysets.transactions import belongs_to_the_caller
from django_taskclaim.states import Token
from django_taskclaim.tables import NamedLease

#: How often a taker looks again when others were faster each time; each of them got the lease, so it ends long before.
MOST_LOOKS = 100


class FirstIteration(models.Expression):
    """Where the count of a new name begins: the seconds since 2020 by the database's clock, *wait* from now.

    A name that was forgotten and comes back thus goes on above every count it had before.
    """

    EPOCH = 1_577_836_800

    def __init__(self, wait: timedelta = timedelta()) -> None:
        super().__init__(output_field=models.IntegerField())
        self.wait = wait

    def as_sql(self, compiler: Any, connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:  # type: ignore[override]
        seconds = dialect_for(connection).unix_time
        start = 0 if seconds == "0" else -self.EPOCH
        return f"({seconds} + %s)", [start + int(self.wait.total_seconds())]


class LeaseRows(models.QuerySet[NamedLease]):
    """The table of named leases on one database."""

    @classmethod
    def on(cls, using: str) -> Self:
        """Return all of them; what decides is never read from a replica."""
        return cls(NamedLease, using=using)

    def free(self) -> Self:
        """Match names that nobody holds, or whose holder let the lease end."""
        return self.filter(_nobody_holds(DatabaseNow()))

    def standing(self, name: str, token: Token) -> Self:
        """Match the name only while the hold that *token* names is the current one."""
        return self.filter(name=name, claimed_by=token.holder, iteration=token.iteration)

    def take(self, name: str, holder: str, lease: timedelta) -> tuple[Token, float]:
        """Take the lease if it is free, and return its token with the ``clock()`` from before it began.

        Raises LeaseUnavailable with the holder and the expiry seen, and RuntimeError inside a caller's transaction.
        """
        refuse_transaction(self.db)
        for _ in range(MOST_LOOKS):
            seen = self._look(name)
            if seen is None:
                self._introduce(name)
                continue
            iteration, current_holder, expires_at, is_free = seen
            if not is_free:
                raise LeaseUnavailable(name, current_holder, expires_at)
            began = clock()
            if self._swap(name, iteration, holder, lease):
                return Token(holder, iteration + 1), began
        raise TaskClaimError(
            f"Lease {name!r} changed hands {MOST_LOOKS} times while it was asked for."
        )

    def renew(self, name: str, token: Token, lease: timedelta) -> bool:
        """Extend the lease from now; False if it is held no more."""
        held = self.standing(name, token)
        # A connection that counts changed rows only may say 0: look again before that is called a loss.
        return bool(held.update(expires_at=DatabaseLater(lease))) or held.exists()

    def give_back(self, name: str, token: Token) -> bool:
        """End the hold; False, and nothing written, if it had ended already."""
        return bool(self.standing(name, token).update(claimed_by=None, expires_at=None))

    def forget(self, unused_for: timedelta, limit: int) -> int:
        """Delete up to *limit* names that nobody has held for so long, and return how many.

        A name whose count is ahead of the clock (it changed hands more than once a second) stays for now.
        """
        past = DatabaseLater(-unused_for)
        unused = self.filter(
            _nobody_holds(past), claimed_at__lt=past, iteration__lt=FirstIteration(-unused_for)
        )
        names = list(unused.values_list("name", flat=True)[:limit])
        # One statement that repeats the condition; delete() would read the rows first where signals are connected.
        return int(unused.filter(name__in=names)._raw_delete(self.db)) if names else 0

    def _look(self, name: str) -> tuple[int, str | None, datetime | None, bool] | None:
        """Return the iteration, the holder, the expiry and whether the name is free; None for a new name."""
        is_free = models.ExpressionWrapper(_nobody_holds(DatabaseNow()), models.BooleanField())
        rows = self.filter(name=name).annotate(is_free=is_free)
        return rows.values_list("iteration", "claimed_by", "expires_at", "is_free").first()

    def _introduce(self, name: str) -> None:
        """Let the name exist, held by nobody; another process may have been faster."""
        in_test_case = connections[self.db].in_atomic_block
        savepoint = transaction.atomic(using=self.db) if in_test_case else contextlib.nullcontext()
        with contextlib.suppress(IntegrityError), savepoint:
            self.create(name=name, claimed_at=DatabaseNow(), iteration=FirstIteration())

    def _swap(self, name: str, iteration: int, holder: str, lease: timedelta) -> bool:
        """Take the lease unless it has moved since the look that found this iteration."""
        now = DatabaseNow()
        still = self.free().filter(name=name, iteration=iteration)
        return bool(
            still.update(
                claimed_by=holder,
                claimed_at=now,
                expires_at=DatabaseLater(lease),
                iteration=iteration + 1,
            )
        )


def _nobody_holds(moment: models.Expression) -> models.Q:
    return models.Q(claimed_by=None) | models.Q(expires_at=None) | models.Q(expires_at__lte=moment)


def refuse_transaction(using: str) -> None:
    """Raise RuntimeError where a lease taken now would be seen by nobody before the caller's transaction ends."""
    if belongs_to_the_caller(connections[using]):
        raise RuntimeError(
            "named_lease() must commit before its block begins, but a transaction is open here (atomic(),"
            " ATOMIC_REQUESTS, or autocommit switched off): others would not see the lease, and would take it too once"
            " you commit. Take it outside and open the transaction inside its block."
        )


def take(name: str, holder: str, lease: timedelta, using: str) -> tuple[Token, float]:
    """Take the lease as ``LeaseRows.take`` does, again where the database was contended."""
    return _retry(using).call(LeaseRows.on(using).take, name, holder, lease)


def give_back(name: str, token: Token, using: str) -> bool:
    """End the hold as ``LeaseRows.give_back`` does, again where the database was contended."""
    return _retry(using).call(LeaseRows.on(using).give_back, name, token)


def _retry(using: str) -> ContentionRetry:
    return retry_on_contention(retries=int(conf.setting("RETRIES")), using=using, atomic=False)
