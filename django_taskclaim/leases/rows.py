"""The statements behind named leases.

Each is a single statement outside any transaction. A process that is frozen or cut off between two of them leaves no
lock behind, and keeps nobody out for longer than its lease.
"""

from contextlib import suppress
from datetime import timedelta
from typing import Self

from django.db import IntegrityError, connections, models
from django.db.models.expressions import RawSQL

from django_taskclaim.claim import clock
from django_taskclaim.db import DatabaseLater, DatabaseNow, dialect_for
from django_taskclaim.exceptions import LeaseUnavailable
from django_taskclaim.states import Token
from django_taskclaim.tables import NamedLease

#: The year 2020, where the iterations of new names begin.
EPOCH = 1_577_836_800


class LeaseRows(models.QuerySet[NamedLease]):
    """The table of named leases on one database."""

    @classmethod
    def on(cls, using: str) -> Self:
        """Return all of them; what decides is never read from a replica."""
        return cls(NamedLease, using=using)

    def free(self, since: timedelta = timedelta()) -> Self:
        """Match names that nobody holds, or whose lease ended *since* ago."""
        unheld = models.Q(claimed_by=None) | models.Q(expires_at=None)
        return self.filter(unheld | models.Q(expires_at__lte=DatabaseLater(-since)))

    def standing(self, name: str, token: Token) -> Self:
        """Match the name only while the hold that *token* names is the current one."""
        return self.filter(name=name, claimed_by=token.holder, iteration=token.iteration)

    def take(self, name: str, holder: str, lease: timedelta) -> tuple[Token, float]:
        """Take the lease if it is free; return its token, and ``clock()`` from before the lease began.

        *holder* must be unique. Raises LeaseUnavailable with the holder and the expiry seen.
        """
        row = self.filter(name=name)
        while True:
            began = clock()
            row.free().update(
                claimed_by=holder,
                claimed_at=DatabaseNow(),
                expires_at=DatabaseLater(lease),
                iteration=models.F("iteration") + 1,
            )
            found = row.first()
            if found is None:
                # Another process may be faster; the next try decides who of the two gets the lease.
                with suppress(IntegrityError):
                    self.create(
                        name=name, claimed_at=DatabaseNow(), iteration=self._first_iteration()
                    )
            elif found.claimed_by == holder:
                return Token(holder, found.iteration), began
            elif found.claimed_by is not None:
                raise LeaseUnavailable(name, found.claimed_by, found.expires_at)

    def renew(self, name: str, token: Token, lease: timedelta) -> bool:
        """Extend the lease from now; False if it is held no more."""
        return bool(self.standing(name, token).update(expires_at=DatabaseLater(lease)))

    def give_back(self, name: str, token: Token) -> bool:
        """End the hold; False, and nothing written, if it had ended already."""
        return bool(self.standing(name, token).update(claimed_by=None, expires_at=None))

    def forget(self, unused_for: timedelta, limit: int) -> int:
        """Delete up to *limit* names that nobody has held for so long, and return how many.

        A name that changed hands more than once a second stays for now: a new count would begin below its old one.
        """
        unused = self.free(since=unused_for).filter(
            claimed_at__lt=DatabaseLater(-unused_for),
            iteration__lt=self._first_iteration(unused_for),
        )
        names = list(unused.values_list("name", flat=True)[:limit])
        # One statement that repeats the condition; delete() would read the rows first where signals are connected.
        return int(unused.filter(name__in=names)._raw_delete(self.db)) if names else 0

    def _first_iteration(self, ago: timedelta = timedelta()) -> RawSQL:
        """Return the seconds since 2020 by the database's clock, as they were *ago*.

        A new name begins there, so a name that was forgotten continues above every iteration it had.
        """
        seconds = dialect_for(connections[self.db]).unix_time
        offset = EPOCH + int(ago.total_seconds())
        return RawSQL(f"{seconds} - %s", [offset], output_field=models.BigIntegerField())
