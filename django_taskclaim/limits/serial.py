"""Rows of one key one at a time and in order: ``serial_by``.

The first row of a key that is not done is its head. Only a head is claimed, and only while no row of its key is
processing; one that waits, is paused or has failed keeps the others of its key back, and nobody else.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from django.db import models
from django.db.models import Q

from django_taskclaim.columns import ClaimColumns
from django_taskclaim.db import Bound, KeyIn
from django_taskclaim.db.sql import SQL, Key
from django_taskclaim.fields import AnyField
from django_taskclaim.limits.per_key import KeyLimit
from django_taskclaim.policy import Policy
from django_taskclaim.querysets.conditions import in_state, is_open, is_waiting
from django_taskclaim.querysets.ordering import in_claim_order
from django_taskclaim.querysets.scope import ClaimTarget, Rows
from django_taskclaim.states import Status

#: The heads of so many keys are looked up in one statement.
HEADS_AT_ONCE = 25


class SerialLimit(KeyLimit):
    """One row of a key is processing, and it is the first in ``order`` that is not done."""

    option = "serial_by"

    def __init__(self, field: AnyField, order: Sequence[Any], *, failed_blocks: bool) -> None:
        super().__init__(field, 1)
        self.order = order
        #: The states in which nobody works on a row that keeps those behind it back, ``open`` left out.
        self.idle_blocks = [Status.PAUSED, *([Status.FAILED] if failed_blocks else [])]
        #: Rows that may go next, and the keys that were looked at for them.
        self._heads: list[Key] = []
        self._looked_up: set[Any] = set()
        #: The keys that may be asked for, in that order.
        self._expected: list[Any] = []

    def learn(self, target: ClaimTarget, keys: Iterable[object]) -> None:
        self._expected = [key for key in dict.fromkeys(keys) if key is not None]
        super().learn(target, self._expected)

    def admits(self, target: ClaimTarget, key: object, row: Key) -> bool:
        if key is None or not super().admits(target, key, row):
            return key is None
        if key not in self._looked_up:
            self._fetch_heads(target, key)
        return row in self._heads

    @property
    def closed(self) -> list[Any]:
        return list(dict.fromkeys([*super().closed, *self._looked_up]))

    @property
    def first_rows(self) -> list[Key]:
        return self._heads

    def keeps_back(self, target: ClaimTarget) -> Q:
        """Match rows of keys of which a row is running, waits, is paused or has failed."""
        blocks = in_state(target.columns, Status.PROCESSING, *self.idle_blocks)
        blocks |= is_open(target.columns) & is_waiting(target.columns)
        rows = target.rows.order_by().filter(blocks, **{f"{self.name}__isnull": False})
        return Q(**{f"{self.name}__in": rows.values(self.name)})

    def _fetch_heads(self, target: ClaimTarget, key: object) -> None:
        """Find the heads of this key and of those that are expected next."""
        closed = set(self.closed)
        part = list(dict.fromkeys([key, *(one for one in self._expected if one not in closed)]))
        self._heads += self._heads_of(target, part[:HEADS_AT_ONCE])
        self._looked_up.update(part[:HEADS_AT_ONCE])

    def _heads_of(self, target: ClaimTarget, keys: Sequence[object]) -> list[Key]:
        """Return, of each of *keys*, the first open row, unless one that keeps it back comes before it."""
        opened, blocking = self._first(target, keys, [Status.OPEN], self.idle_blocks)
        if not (opened and blocking):
            return list(opened)
        key, place_of = target.columns.key, opened | blocking
        both = self._in_order(target, target.rows.filter(KeyIn(target.columns.owner, [*place_of])))
        found = target.dialect.first(both, target.table, len(place_of), key)
        heads: dict[int, Key] = {}
        for row in target.table.keys_of(found):
            heads.setdefault(place_of[row], row)
        return [row for row in heads.values() if row in opened]

    def _first(
        self, target: ClaimTarget, keys: Sequence[object], *states: Sequence[Status]
    ) -> list[dict[Key, int]]:
        """Return the first row of each of *keys* in each of these groups of states, with the place of its key.

        By one statement, so as they are at one moment.
        """
        prepared = [self.field.get_db_prep_value(key, target.dialect.connection) for key in keys]
        parts: list[SQL] = []
        for group, some in enumerate(states):
            is_one = {self.field.attname: Bound("key")}
            rows = target.rows.filter(in_state(target.columns, *some), **is_one)
            first = target.dialect.compiled(self._in_order(target, rows), 1, target.columns.key)
            assert first is not None, "rows in some state are possible"
            for place, key in enumerate(prepared):
                name = f"taskclaim_{len(parts)}"
                text = f"SELECT {name}.*, {group}, {place} FROM ({first.text}) {name}"
                params = [key if type(one) is Bound else one for one in first.params]
                parts.append(SQL(text, tuple(params)))
        found = target.dialect.fetch(SQL.join(" UNION ALL ", parts))
        rows_of: list[dict[Key, int]] = [{} for _ in states]
        found_keys = target.table.python_keys([row[:-2] for row in found])
        for (*_, group, place), row in zip(found, found_keys, strict=True):
            rows_of[group][row] = place
        return rows_of

    def _in_order(self, target: ClaimTarget, rows: Rows) -> Rows:
        asked: Rows = models.QuerySet(target.model).order_by(*self.order)
        return in_claim_order(rows, asked, target)


def serial_order(policy: Policy, columns: ClaimColumns) -> list[object]:
    """Return the order of the rows of one key: the policy's own, else by priority and key.

    Without ``not_before``, for a row that waits for its retry keeps its place.
    """
    key = [field.attname for field in columns.key]
    if policy.order_by:
        return [*policy.order_by, *key]
    priority = columns.priority
    return [*([] if priority is None else [f"-{priority.name}"]), *key]
