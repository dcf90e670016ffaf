"""Limits per key, ``limit_per``: at most so many rows of one value of a column are processing at once, over all hosts.

Claims of a limited table wait for one lock, held until they commit, so what one counts no other changes. Rows are read
in claim order without locks. Those whose keys are below their limit are claimed by their own keys, and every condition
is repeated.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from django.db.models import Count, Q
from django.db.models.sql.where import AND

from django_taskclaim.db import ClaimedRow, KeyIn
from django_taskclaim.db.sql import Key
from django_taskclaim.fields import AnyField
from django_taskclaim.querysets.candidates import ClaimCall, candidates, prepare, send
from django_taskclaim.querysets.conditions import is_running
from django_taskclaim.querysets.cursor import Scan
from django_taskclaim.querysets.scope import ClaimTarget, Rows

#: So many rows in claim order are read before those of keys at their limit are left out.
READ_AHEAD = 200

#: How often one claim reads more when it is still short.
MORE_READS = 5


class KeyLimit:
    """At most ``most`` rows with one value of ``field``, a key, are processing; rows where it is NULL are not limited.

    Made for one claim: it knows how many rows of each key are processing, and asks the database once for each.
    """

    #: The option of ``@handler`` that sets it.
    option = "limit_per"

    def __init__(self, field: AnyField, most: int) -> None:
        self.field, self.most = field, most
        #: The field as querysets call it, without a join.
        self.name = field.attname
        self._running: Counter[Any] = Counter()

    def learn(self, target: ClaimTarget, keys: Iterable[object]) -> None:
        """Count what is processing of *keys*, for any holder, expired or not.

        Counted by value here: what two values are equal is another question on each database.
        """
        new = [key for key in dict.fromkeys(keys) if key is not None and key not in self._running]
        for part in target.dialect.chunks(new, target.table):
            rows = _running(target).filter(**{f"{self.name}__in": part})
            found = Counter(rows.values_list(self.name, flat=True))
            self._running.update({key: found[key] for key in part})

    def admits(self, target: ClaimTarget, key: object, row: Key) -> bool:
        """Say whether *row*, which has this key, may be claimed now."""
        return key is None or self._running[key] < self.most

    def add(self, key: object, number: int) -> None:
        """Note that so many more rows of the key are processing."""
        if key is not None:
            self._running[key] += number

    @property
    def closed(self) -> list[Any]:
        """The keys of which this claim can take no more rows."""
        return [key for key, number in self._running.items() if number >= self.most]

    @property
    def first_rows(self) -> list[Key]:
        """Rows that have to go before others of their keys, at any place in the order."""
        return []

    def full(self, target: ClaimTarget) -> Q:
        """Match rows of keys that have as many rows processing as they may."""
        running = _running(target).filter(**{f"{self.name}__isnull": False})
        counts = running.values(self.name).annotate(n=Count("*"))
        return Q(**{f"{self.name}__in": counts.filter(n__gte=self.most).values(self.name)})

    def keeps_back(self, target: ClaimTarget) -> Q:
        """Match rows that an empty claim may have left for this limit."""
        return self.full(target)


def _running(target: ClaimTarget) -> Rows:
    return target.rows.order_by().filter(is_running(target.columns))


class KeyClaim:
    """One claim under the lock: takes rows whose keys are below their limit, until it has enough of them."""

    def __init__(self, call: ClaimCall, limits: Sequence[KeyLimit], scan: Scan, limit: int) -> None:
        self.call, self.target, self.scan, self.limit = call, call.target, scan, limit
        self.candidates = candidates(call, scan)
        self.limits = limits
        self.taken: list[ClaimedRow] = []
        #: What was chosen, whether it was got or not: nothing is tried twice.
        self._tried: set[Key] = set()
        limited = [one.field for one in limits]
        self._fields = list(dict.fromkeys([*self.target.columns.key, *limited]))
        self._seen_at = [self._fields.index(field) for field in limited]

    @property
    def _wanted(self) -> int:
        return self.limit - len(self.taken)

    def run(self) -> list[ClaimedRow]:
        """Claim the rows and return them."""
        most = max(READ_AHEAD, 4 * self.limit)
        rows = self.candidates
        for _ in range(1 + MORE_READS):
            found = self._read(rows, most)
            self._claim_from(found)
            first = [row for one in self.limits for row in one.first_rows if row not in self._tried]
            if self._wanted and first:
                self._claim_from(self._read(self._only(self.candidates, first), len(first)))
            if not self._wanted or len(found) < most:
                break
            rows = self._below_limit()
        return self.taken

    def _claim_from(self, rows: Sequence[Sequence[Any]]) -> None:
        """Claim the first of *rows* whose keys are below their limit; where some are locked, the next ones."""
        while self._wanted and (chosen := self._choose(rows)):
            for part in self.target.dialect.chunks(list(chosen), self.target.table):
                chosen_rows = self._only(self.candidates.order_by(), part)
                statement = prepare(self.call, self.scan, chosen_rows, simple=False)
                claimed = send(self.call, statement, len(part), self.scan)
                self.taken += claimed
                # A key that was changed meanwhile counts as it was seen.
                for missed in set(part).difference(row.key for row in claimed):
                    self._add(chosen[missed], -1)

    def _choose(self, rows: Sequence[Sequence[Any]]) -> dict[Key, list[Any]]:
        """Return the first of *rows* whose keys are below their limit, each with its values of the limited columns."""
        for one, place in zip(self.limits, self._seen_at, strict=True):
            one.learn(self.target, [row[place] for row in rows])
        chosen: dict[Key, list[Any]] = {}
        for row in rows:
            key = self.target.table.key_of(row)
            values = [row[place] for place in self._seen_at]
            if key in self._tried:
                continue
            pairs = zip(self.limits, values, strict=True)
            if all(one.admits(self.target, value, key) for one, value in pairs):
                chosen[key] = values
                self._tried.add(key)
                self._add(values, 1)
            if len(chosen) == self._wanted:
                break
        return chosen

    def _add(self, values: Sequence[object], number: int) -> None:
        for one, value in zip(self.limits, values, strict=True):
            one.add(value, number)

    def _read(self, rows: Rows, most: int) -> list[list[Any]]:
        return self.target.dialect.first(rows, self.target.table, most, self._fields)

    def _only(self, rows: Rows, keys: Sequence[Key]) -> Rows:
        rows = rows.all()
        # Not by filter(): MySQL is then told "… = TRUE", and finds no index for that.
        rows.query.where.add(KeyIn(self.target.columns.owner, keys), AND)
        return rows

    def _below_limit(self) -> Rows:
        """Return the candidates without those of keys at their limit."""
        rows = self.candidates
        for one in self.limits:
            if closed := one.closed:
                rows = rows.exclude(**{f"{one.name}__in": closed})
            rows = rows.exclude(one.full(self.target))
        return rows
