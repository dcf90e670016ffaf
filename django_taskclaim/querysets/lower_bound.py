"""The moving lower bound of a worker's claims: each goes on where the one before ended.

What was claimed leaves dead entries at the head of the index for a while, and a claim that begins there reads past all
of them again. What is put back below the bound, or comes in there, is found by the full look that follows now and then.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from django_taskclaim.dialects import ClaimOrder
from django_taskclaim.fields import NEVER_WAITED, as_utc
from django_taskclaim.querysets.scope import Desk, Rows
from django_taskclaim.tokens import clock

Row: TypeAlias = list[Any]

#: Under backlog everything is looked at so often, in seconds …
FULL_LOOK_EVERY = 1.0
#: … or more rarely, where that would take more than this part of the time.
FULL_LOOK_SHARE = 0.1
#: How many claims begin with rows that have waited, which stand behind all those that never did.
WAITED_FIRST = 0.1


@dataclass(slots=True)
class LowerBound:
    """How far one worker's claims from one queryset have come, in claim order.

    A claim that comes back short looks at everything in the same call, so rows that are few are never overlooked.
    """

    #: Whether the last claim was a full one, so that there is more behind it; else everything is looked at.
    _is_set: bool = False
    #: Of the row that the bound stands at: its priority, where the model has one, and its key.
    _priority: dict[str, Any] = field(default_factory=dict)
    _key: Any = None
    _full_look_at: float = 0.0
    _waited_first: float | None = None

    @classmethod
    def behind(cls, row: Any, desk: Desk) -> "LowerBound":
        """Return a bound at an instance, whose next claim looks everywhere in turn."""
        priority = desk.columns.priority
        return cls(
            True,
            {} if priority is None else {priority.name: getattr(row, priority.attname)},
            desk.columns.key_of(row),
            _full_look_at=clock() + FULL_LOOK_EVERY,
            _waited_first=1.0,
        )

    def claim(self, order: ClaimOrder, desk: Desk) -> list[Row]:
        """Claim as the dialect does, beyond the bound first, and move the bound."""
        rows: dict[Any, Row] = {}
        for candidates in self._narrowed(order.candidates, desk):
            rows |= _look(order, candidates, rows, desk)
        if len(rows) < order.limit:
            began = clock()
            rows |= _look(order, order.candidates, rows, desk)
            pause = max(FULL_LOOK_EVERY, (clock() - began) / FULL_LOOK_SHARE)
            self._full_look_at = clock() + pause
        self._move(order, list(rows.values()), desk)
        return list(rows.values())

    def _narrowed(self, candidates: Rows, desk: Desk) -> Iterator[Rows]:
        """Yield the candidates that need no look in full, if there is a bound and that look is not due."""
        if not self._is_set or clock() >= self._full_look_at:
            return
        alike = candidates.filter(**self._priority)
        waiting = desk.columns.not_before
        if waiting is not None:
            share = WAITED_FIRST if self._waited_first is None else self._waited_first
            if random.random() < share:
                yield alike.filter(**{f"{waiting.name}__gt": NEVER_WAITED})
            alike = alike.filter(**{waiting.name: NEVER_WAITED})
        if _has_bounds(desk):
            yield alike.filter(**{f"{_key_name(desk)}__gt": self._key})

    def _move(self, order: ClaimOrder, rows: list[Row], desk: Desk) -> None:
        """Stand behind the last of *rows* that never waited; nowhere, where they are all there were."""
        if len(rows) < order.limit:
            self._is_set = False
            return
        columns, places = desk.columns, {one: n for n, one in enumerate(order.returning)}
        if columns.not_before is not None:
            place = places[columns.not_before]
            rows = [row for row in rows if as_utc(row[place]) == NEVER_WAITED]
        if not rows:
            return
        if columns.priority is None:
            last = max(rows, key=desk.table.key_of)
        else:
            place = places[columns.priority]
            last = max(rows, key=lambda row: (-row[place], desk.table.key_of(row)))
            self._priority = {columns.priority.name: last[place]}
        self._key = desk.table.key_of(last)
        self._is_set = True


def _look(order: ClaimOrder, candidates: Rows, rows: dict[Any, Row], desk: Desk) -> dict[Any, Row]:
    """Claim from *candidates* what is still wanted beside *rows*."""
    wanted = order.limit - len(rows)
    if not wanted:
        return {}
    part = replace(order, candidates=candidates, limit=wanted)
    # By key: a strategy that finds its rows by their holder returns those of the look before, too.
    return {desk.table.key_of(row): row for row in desk.dialect.claim(part, desk.columns)}


def _has_bounds(desk: Desk) -> bool:
    """Say whether claims leave something behind to be passed over, and the index finds what lies beyond a key."""
    seeks = len(desk.columns.key) == 1 or desk.dialect.seeks_row_values
    return desk.dialect.leaves_dead_entries and seeks


def _key_name(desk: Desk) -> str:
    (first, *others) = desk.columns.key
    return "pk" if others else first.attname
