"""Limits per key, ``limit_per``: at most so many rows of one value of a column are processing at once, over all hosts.

Claims of a limited table wait for one lock, held until they commit, so what one counts no other changes. Rows are read
in claim order without locks; those whose keys have room are claimed by their own keys, every condition repeated.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db.models import Count, Q
from django.db.models.sql.where import AND

from django_taskclaim.db import ClaimedRow, KeyIn
from django_taskclaim.db.sql import Key
from django_taskclaim.fields import AnyField
from django_taskclaim.querysets.conditions import is_running
from django_taskclaim.querysets.scope import ClaimTarget, Rows

if TYPE_CHECKING:
    from django_taskclaim.querysets.claiming import ClaimCall
    from django_taskclaim.querysets.cursor import Scan

#: So many rows in claim order are looked at before those of keys without room are left out.
FRONT = 200

#: How often one claim looks further when it is still short.
LOOKS = 5


@dataclass(frozen=True, slots=True)
class KeyLimit:
    """At most ``most`` rows with one value of ``field`` are processing; rows where it is NULL are not limited."""

    field: AnyField
    most: int

    @property
    def option(self) -> str:
        """The option of ``@handler`` that sets it."""
        return "limit_per"

    @property
    def name(self) -> str:
        """The field as querysets call it, without a join."""
        return self.field.attname

    def count(self, target: ClaimTarget) -> "KeyCount":
        """Return what counts for one claim."""
        return KeyCount(self, target)

    def full(self, target: ClaimTarget) -> Q:
        """Match rows of keys that have as many rows processing as they may."""
        running = target.rows.order_by().filter(
            is_running(target.columns), **{f"{self.name}__isnull": False}
        )
        counts = running.values(self.name).annotate(n=Count("*"))
        return Q(**{f"{self.name}__in": counts.filter(n__gte=self.most).values(self.name)})

    def keeps_back(self, target: ClaimTarget) -> Q:
        """Match rows that an empty claim may have left for this limit."""
        return self.full(target)


class KeyCount:
    """How many more rows of each key may be claimed. The database is asked once for each key."""

    def __init__(self, limit: KeyLimit, target: ClaimTarget) -> None:
        self.limit = limit
        self._target = target
        self._running: Counter[Any] = Counter()

    def learn(self, keys: Iterable[Any]) -> None:
        """Count what is processing of *keys*, whoever holds it, expired or not.

        Counted by value here: what two values are equal is another question on each database.
        """
        name, columns = self.limit.name, self._target.columns
        new = [key for key in dict.fromkeys(keys) if key is not None and key not in self._running]
        for part in self._target.dialect.chunks(new, self._target.table):
            rows = self._target.rows.order_by().filter(is_running(columns), **{f"{name}__in": part})
            found = Counter(rows.values_list(name, flat=True))
            self._running.update({key: found[key] for key in part})

    def admits(self, key: Any, row: Key) -> bool:
        """Say whether *row*, which has this key, may be claimed now."""
        return key is None or self._running[key] < self.limit.most

    def add(self, key: Any, number: int) -> None:
        if key is not None:
            self._running[key] += number

    @property
    def closed(self) -> list[Any]:
        """The keys of which this claim can take no more rows."""
        return [key for key, number in self._running.items() if number >= self.limit.most]

    def overlooked(self) -> list[Key]:
        """Return rows that have to go before others of their keys, wherever they stand."""
        return []


class KeyClaim:
    """One claim under the lock: takes rows whose keys have room, until it has enough of them."""

    def __init__(
        self, call: "ClaimCall", limits: Sequence[KeyLimit], scan: "Scan", limit: int
    ) -> None:
        self.call, self.target, self.scan, self.limit = call, call.target, scan, limit
        self.candidates = call.rows(scan)
        self.counts = [one.count(self.target) for one in limits]
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
        front = max(FRONT, 4 * self.limit)
        rows = self.candidates
        for _ in range(1 + LOOKS):
            found = self._read(rows, front)
            self._claim_from(found)
            first = [key for one in self.counts for key in one.overlooked()]
            if self._wanted and (first := [key for key in first if key not in self._tried]):
                self._claim_from(self._read(self._only(self.candidates, first), len(first)))
            if not self._wanted or len(found) < front:
                break
            rows = self._with_room()
        return self.taken

    def _claim_from(self, rows: Sequence[Sequence[Any]]) -> None:
        """Claim the first of *rows* whose keys have room. Others may have locked some, so the next ones are tried."""
        while self._wanted and (chosen := self._choose(rows)):
            for part in self.target.dialect.chunks(list(chosen), self.target.table):
                candidates = self._only(self.candidates.order_by(), part)
                statement = self.call.prepare(self.scan, candidates, simple=False)
                claimed = self.call.send(statement, len(part), self.scan)
                self.taken += claimed
                # A key that was changed meanwhile counts as it was seen.
                for missed in set(part).difference(row.key for row in claimed):
                    self._add(chosen[missed], -1)

    def _choose(self, rows: Sequence[Sequence[Any]]) -> dict[Key, list[Any]]:
        """Return the first of *rows* whose keys have room, each with its values of the limited columns."""
        for count, place in zip(self.counts, self._seen_at, strict=True):
            count.learn(row[place] for row in rows)
        chosen: dict[Key, list[Any]] = {}
        for row in rows:
            key = self.target.table.key_of(row)
            values = [row[place] for place in self._seen_at]
            if key in self._tried:
                continue
            if all(one.admits(value, key) for one, value in zip(self.counts, values, strict=True)):
                chosen[key] = values
                self._tried.add(key)
                self._add(values, 1)
            if len(chosen) == self._wanted:
                break
        return chosen

    def _add(self, values: Sequence[Any], number: int) -> None:
        for count, value in zip(self.counts, values, strict=True):
            count.add(value, number)

    def _read(self, rows: Rows, most: int) -> list[list[Any]]:
        return self.target.dialect.first(rows, self.target.table, most, self._fields)

    def _only(self, rows: Rows, keys: Sequence[Key]) -> Rows:
        rows = rows.all()
        # Not by filter(): MySQL is then told "… = TRUE", and finds no index for that.
        rows.query.where.add(KeyIn(self.target.columns.owner, keys), AND)
        return rows

    def _with_room(self) -> Rows:
        """Return the candidates without those of keys that have no room."""
        rows = self.candidates
        for count in self.counts:
            if closed := count.closed:
                rows = rows.exclude(**{f"{count.limit.name}__in": closed})
            rows = rows.exclude(count.limit.full(self.target))
        return rows
