"""Rows of one key one at a time and in order: ``serial_by``.

The first row of a key that is not done is its head. Only a head is claimed, and only while no row of its key is
processing; one that waits, is paused or has failed keeps the others of its key back, and nobody else.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import models
from django.db.models import Q

from django_taskclaim.columns import ClaimColumns
from django_taskclaim.db import KeyIn
from django_taskclaim.db.sql import Key
from django_taskclaim.limits.per_key import KeyCount, KeyLimit
from django_taskclaim.policy import Policy
from django_taskclaim.querysets.scope import ClaimTarget, Rows, in_claim_order, is_open, waits
from django_taskclaim.states import Status

#: The heads of so many keys are looked up in one statement.
HEADS_AT_ONCE = 25


@dataclass(frozen=True, slots=True)
class SerialLimit(KeyLimit):
    """One row with one value of ``field`` is processing, and it is the first in ``order`` that is not done."""

    order: Sequence[Any] = ()
    failed_blocks: bool = True

    @property
    def option(self) -> str:
        return "serial_by"

    def count(self, target: ClaimTarget) -> "Heads":
        return Heads(self, target)

    @property
    def idle_blocks(self) -> list[Status]:
        """The states in which nobody works on a row that keeps those behind it back, ``open`` left out."""
        return [Status.PAUSED, *([Status.FAILED] if self.failed_blocks else [])]

    def keeps_back(self, target: ClaimTarget) -> Q:
        """Match rows of keys of which a row is running, waits, is paused or has failed."""
        states = [Status.PROCESSING, *self.idle_blocks]
        blocks = Q(**{f"{target.columns.status.name}__in": states})
        blocks |= is_open(target.columns) & waits(target.model)
        rows = target.rows.order_by().filter(blocks, **{f"{self.name}__isnull": False})
        return Q(**{f"{self.name}__in": rows.values(self.name)})


def serial_order(policy: Policy, columns: ClaimColumns) -> list[Any]:
    """Return the order of the rows of one key: the policy's own, else by priority and key.

    Without ``not_before``, for a row that waits for its retry keeps its place.
    """
    key = [field.attname for field in columns.key]
    if policy.order_by:
        return [*policy.order_by, *key]
    priority = columns.priority
    return [*([] if priority is None else [f"-{priority.name}"]), *key]


class Heads(KeyCount):
    """Which row is the next of each key."""

    limit: SerialLimit

    def __init__(self, limit: SerialLimit, target: ClaimTarget) -> None:
        super().__init__(limit, target)
        #: Rows that may go next, and the keys that were looked at for them.
        self._heads: dict[Key, None] = {}
        self._looked_up: set[Any] = set()
        #: Keys that will be asked for presumably, in that order.
        self._next: dict[Any, None] = {}

    def learn(self, keys: Iterable[Any]) -> None:
        given = [key for key in dict.fromkeys(keys) if key is not None]
        super().learn(given)
        new = [key for key in given if self._running[key] < self.limit.most]
        self._next |= {key: None for key in new if key not in self._looked_up}

    def admits(self, key: Any, row: Key) -> bool:
        if key is None:
            return True
        if not super().admits(key, row):
            return False
        if key not in self._looked_up:
            ahead = [one for one in self._next if one != key]
            part = [key, *ahead[: HEADS_AT_ONCE - 1]]
            self._heads |= dict.fromkeys(self._heads_of(part))
            self._looked_up.update(part)
            self._next = {one: None for one in self._next if one not in self._looked_up}
        return row in self._heads

    @property
    def closed(self) -> list[Any]:
        return list(dict.fromkeys([*super().closed, *self._looked_up]))

    def overlooked(self) -> list[Key]:
        return list(self._heads)

    def _heads_of(self, keys: Sequence[Any]) -> list[Key]:
        first_open, in_the_way = self._first(keys, [Status.OPEN], self.limit.idle_blocks)
        if not (in_the_way and first_open):
            return first_open
        target, field = self._target, self.limit.field
        either = dict.fromkeys([*first_open, *in_the_way])
        both = target.rows.filter(KeyIn(target.columns.owner, list(either)))
        wanted = [*target.columns.key, *([] if field in target.columns.key else [field])]
        rows = target.dialect.first(self._in_order(both), target.table, len(either), wanted)
        heads: dict[Any, Key] = {}
        for row in rows:
            heads.setdefault(row[wanted.index(field)], target.table.key_of(row))
        opened = set(first_open)
        return [row for row in heads.values() if row in opened]

    def _first(self, keys: Sequence[Any], *states: Sequence[Status]) -> list[list[Key]]:
        """Return the first rows of *keys* in each of these groups of states, at one moment."""
        target, status = self._target, self._target.columns.status.name
        groups = [self._in_order(target.rows.filter(**{f"{status}__in": some})) for some in states]
        return target.dialect.first_of_each(groups, target.table, self.limit.field, keys)

    def _in_order(self, rows: Rows) -> Rows:
        asked: Rows = models.QuerySet(self._target.model).order_by(*self.limit.order)
        return in_claim_order(rows, asked, self._target)
