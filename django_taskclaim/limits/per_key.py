"""Limits per key, ``limit_per``: at most so many rows of one value of a column are processing at once, over all hosts.

Claims of a limited table wait for one lock, held until they commit, so what one counts no other changes. Rows are read
in claim order without locks; those whose keys have room are claimed by their own keys, every condition repeated.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Q
from django.db.models.sql.where import AND

from django_taskclaim.db import ClaimedRow, KeyIn, SwitchIsOn
from django_taskclaim.db.sql import Key
from django_taskclaim.fields import AnyField
from django_taskclaim.querysets.scope import ClaimTarget, Rows
from django_taskclaim.states import Status

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
            **{target.columns.status.name: Status.PROCESSING, f"{self.name}__isnull": False}
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
        status, name = self._target.columns.status.name, self.limit.name
        new = [key for key in dict.fromkeys(keys) if key is not None and key not in self._running]
        for part in self._target.dialect.chunks(new, self._target.table):
            rows = self._target.rows.order_by().filter(
                **{status: Status.PROCESSING, f"{name}__in": part}
            )
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


class KeyChooser:
    """One claim under the lock: chooses rows whose keys have room, until it has enough of them."""

    def __init__(
        self,
        limits: Sequence[KeyLimit],
        target: ClaimTarget,
        due: Rows,
        switch: SwitchIsOn,
        limit: int,
    ) -> None:
        """*due* are the rows to choose from, in claim order, whatever the *switch* says."""
        self.target, self.candidates, self.limit = target, due.filter(switch), limit
        self.counts = [one.count(target) for one in limits]
        self.taken: list[ClaimedRow] = []
        #: What was chosen, whether it was got or not: nothing is tried twice.
        self._tried: set[Key] = set()
        #: What was chosen last, by key, each with its values of the limited columns.
        self._chosen: dict[Key, list[Any]] = {}
        fields, key = [one.field for one in limits], target.columns.key
        self._fields = [*key, *(field for field in dict.fromkeys(fields) if field not in key)]
        self._seen_at = [self._fields.index(field) for field in fields]

    @property
    def _wanted(self) -> int:
        return self.limit - len(self.taken)

    def choices(self) -> Iterator[tuple[Rows, int]]:
        """Yield rows to claim next, and how many they are; what came of it is noted before the next ones."""
        front = max(FRONT, 4 * self.limit)
        rows = self.candidates
        for _ in range(1 + LOOKS):
            found = self._read(rows, front)
            yield from self._choose(found)
            first = [key for one in self.counts for key in one.overlooked()]
            if self._wanted and (first := [key for key in first if key not in self._tried]):
                yield from self._choose(self._read(self._only(self.candidates, first), len(first)))
            if not self._wanted or len(found) < front:
                return
            rows = self._with_room()

    def note(self, rows: Sequence[ClaimedRow]) -> None:
        """Note which of the rows chosen last were claimed. A key that was changed meanwhile counts as it was seen."""
        self.taken += rows
        got = {row.key for row in rows}
        for key, values in self._chosen.items():
            if key not in got:
                self._add(values, -1)

    def _read(self, rows: Rows, most: int) -> list[list[Any]]:
        return self.target.dialect.first(rows, self.target.table, most, self._fields)

    def _choose(self, rows: Sequence[Sequence[Any]]) -> Iterator[tuple[Rows, int]]:
        # Others may have locked some, so the next ones are tried.
        while self._wanted and (chosen := self._with_keys_that_admit(rows)):
            for part in self.target.dialect.chunks(list(chosen), self.target.table):
                self._chosen = {key: chosen[key] for key in part}
                yield self._only(self.candidates.order_by(), part), len(part)

    def _with_keys_that_admit(self, rows: Sequence[Sequence[Any]]) -> dict[Key, list[Any]]:
        """Return the first of *rows* whose keys have room, each with its values of the limited columns."""
        for count, place in zip(self.counts, self._seen_at, strict=True):
            count.learn(row[place] for row in rows)
        chosen: dict[Key, list[Any]] = {}
        for row in rows:
            key = self.target.table.key_of(row)
            values = [row[place] for place in self._seen_at]
            if key in chosen or key in self._tried:
                continue
            if all(one.admits(value, key) for one, value in zip(self.counts, values, strict=True)):
                chosen[key] = values
                self._add(values, 1)
            if len(chosen) == self._wanted:
                break
        self._tried.update(chosen)
        return chosen

    def _add(self, values: Sequence[Any], number: int) -> None:
        for count, value in zip(self.counts, values, strict=True):
            count.add(value, number)

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
