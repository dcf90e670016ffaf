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

    waited_first: float = WAITED_FIRST
    #: Whether the last claim took all that it was to take, so that there may be more.
    was_full: bool = False
    #: Whether there is a row that the bound stands at …
    _stands: bool = False
    #: … and of that row what finds those of its priority, where the model has one, and the key.
    _alike: dict[str, Any] = field(default_factory=dict)
    _key: Any = None
    _full_look_at: float = 0.0

    @classmethod
    def behind(cls, row: Any, desk: Desk) -> "LowerBound":
        """Return a bound at an instance, whose next claim looks everywhere in turn."""
        bound = cls(waited_first=1.0, _full_look_at=clock() + FULL_LOOK_EVERY)
        field = desk.columns.priority
        priority = None if field is None else getattr(row, field.attname)
        bound._stand(desk, desk.columns.key_of(row), priority)
        return bound

    def claim(self, order: ClaimOrder, desk: Desk) -> list[Row]:
        """Claim as the dialect does, beyond the bound first, and move the bound."""
        self.was_full = False
        rows: dict[Any, Row] = {}
        for candidates in self._narrowed(order.candidates, desk):
            rows |= _look(order, candidates, rows, desk)
        everywhere = len(rows) < order.limit
        if everywhere:
            began = clock()
            rows |= _look(order, order.candidates, rows, desk)
            pause = max(FULL_LOOK_EVERY, (clock() - began) / FULL_LOOK_SHARE)
            self._full_look_at = clock() + pause
        self.was_full = len(rows) == order.limit
        self._move(order, list(rows.values()), desk, everywhere=everywhere)
        return list(rows.values())

    def _narrowed(self, candidates: Rows, desk: Desk) -> Iterator[Rows]:
        """Yield what is looked at before everything is, or instead."""
        if not self._stands:
            return
        alike, waiting = candidates.filter(**self._alike), desk.columns.not_before
        if waiting is not None:
            if random.random() < self.waited_first:
                yield alike.filter(**{f"{waiting.name}__gt": NEVER_WAITED})
            alike = alike.filter(**{waiting.name: NEVER_WAITED})
        if clock() < self._full_look_at and _has_bounds(desk):
            yield alike.filter(**{f"{_key_name(desk)}__gt": self._key})

    def _move(self, order: ClaimOrder, rows: list[Row], desk: Desk, *, everywhere: bool) -> None:
        """Stand at the last of *rows* that never waited; nowhere, where a look at everything found too few."""
        columns, places = desk.columns, {one: n for n, one in enumerate(order.returning)}
        if columns.not_before is not None:
            place = places[columns.not_before]
            rows = [row for row in rows if as_utc(row[place]) == NEVER_WAITED]
        if everywhere and not (rows and self.was_full):
            self._stands = False
        elif columns.priority is None:
            if rows:
                self._stand(desk, max(map(desk.table.key_of, rows)))
        elif rows:
            place = places[columns.priority]
            behind, key = max((-row[place], desk.table.key_of(row)) for row in rows)
            self._stand(desk, key, -behind)

    def _stand(self, desk: Desk, key: Any, priority: int | None = None) -> None:
        self._stands, self._key = True, key
        field = desk.columns.priority
        self._alike = {} if field is None else {field.name: priority}


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
