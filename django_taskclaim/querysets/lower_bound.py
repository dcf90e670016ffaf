"""The moving lower bound of a worker's claims: each goes on where the one before ended.

What was claimed leaves dead entries at the head of the index for a while, and a claim that begins there reads past all
of them again. What is put back below the bound, or comes in there, is found by the full look that follows now and then.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from django_taskclaim.dialects import ClaimOrder, Spellings
from django_taskclaim.fields import NEVER_WAITED, as_utc
from django_taskclaim.querysets.scope import Desk, sort_claimed
from django_taskclaim.tokens import clock

Row: TypeAlias = list[Any]

#: Under backlog everything is looked at so often, in seconds, and so are rows of a higher priority alone …
FULL_LOOK_EVERY = 1.0
#: … or more rarely, where that would take more than this part of the time. While somebody holds a transaction open,
#: nothing of what is done is cleared away, and a look in full takes as long as dozens of other claims.
FULL_LOOK_SHARE = 0.005
URGENT_LOOK_SHARE = 0.1
#: … but at least so often, however long one look took.
LONGEST_PAUSE = 10.0
#: How many claims begin with rows that have waited, which stand behind all those that never did.
WAITED_FIRST = 0.1

#: Of how many priorities, batch sizes and so on the spelling of a statement is kept.
MOST_SPELLINGS = 50


class Looks(NamedTuple):
    """Where a claim looks before it looks at everything, which it does where it still lacks rows."""

    #: At rows of a higher priority than the bound's.
    urgent: bool = False
    #: At rows that have waited, wherever they stand.
    waited: bool = False
    beyond: bool = False


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
    _urgent_look_at: float = 0.0
    #: How the statements of each kind of look are spelt, by priority and connection.
    _spellings: dict[Any, Spellings] = field(default_factory=dict)

    @classmethod
    def behind(cls, row: Any, desk: Desk) -> "LowerBound":
        """Return a bound at an instance, whose next claim looks everywhere in turn."""
        bound = cls(waited_first=1.0, _full_look_at=clock() + FULL_LOOK_EVERY)
        field = desk.columns.priority
        priority = None if field is None else getattr(row, field.attname)
        bound._stand(desk, desk.columns.key_of(row), priority)
        return bound

    def next_looks(self, desk: Desk) -> Looks:
        """Decide where the next claim looks first."""
        if not self._stands:
            return Looks()
        now, columns = clock(), desk.columns
        beyond = now < self._full_look_at and _has_bounds(desk)
        return Looks(
            urgent=beyond and columns.priority is not None and now >= self._urgent_look_at,
            waited=columns.not_before is not None and random.random() < self.waited_first,
            beyond=beyond,
        )

    def anything_beside(self, looks: Looks, order: ClaimOrder, desk: Desk) -> bool:
        """Say whether a claim has to look beside the bound, at an urgent row or at one that has waited and is due.

        Questions, which lock nothing.
        """
        if looks.urgent:
            start = clock()
            if _is_there(self._urgent(order, desk), desk):
                return True
            self._found_nothing_urgent(start)
        return looks.waited and _is_there(self._waited(order, desk), desk)

    def _found_nothing_urgent(self, start: float) -> None:
        now = clock()
        self._urgent_look_at = now + _pause(now - start, URGENT_LOOK_SHARE)

    def claim_beyond(self, order: ClaimOrder, desk: Desk) -> list[Row]:
        """Claim what there is beyond the bound, in order, and move it; none of these rows has ever waited."""
        claimed = desk.dialect.claim(self._beyond(order, desk), desk.columns)
        rows = sort_claimed(claimed, order.returning, desk)
        self.was_full = len(rows) == order.limit
        self._pass(order, rows, desk)
        return rows

    def claim(
        self, order: ClaimOrder, desk: Desk, looks: Looks, begun: Sequence[Row] = ()
    ) -> list[Row]:
        """Claim what is wanted beside what was *begun*, and move the bound; return all of it in order."""
        rows: dict[Any, Row] = {desk.table.key_of(row): row for row in begun}
        if looks.urgent:
            start = clock()
            rows |= _look(self._urgent(order, desk), rows, desk)
            if len(rows) < order.limit:
                self._found_nothing_urgent(start)
        if looks.waited:
            rows |= _look(self._waited(order, desk), rows, desk)
        if looks.beyond:
            rows |= _look(self._beyond(order, desk), rows, desk)
        everywhere = len(rows) < order.limit
        if everywhere:
            start = clock()
            rows |= _look(self._spelt(order, desk, "full"), rows, desk)
            self._full_look_at = clock() + _pause(clock() - start, FULL_LOOK_SHARE)
            self._urgent_look_at = clock() + FULL_LOOK_EVERY
        self.was_full = len(rows) == order.limit
        ordered = sort_claimed(list(rows.values()), order.returning, desk)
        self._move(order, ordered, desk, everywhere=everywhere)
        return ordered

    def look_in_full(self) -> None:
        """Let the next claim look everywhere: some of the rows just claimed were put back."""
        self._stands = False

    def _urgent(self, order: ClaimOrder, desk: Desk) -> ClaimOrder:
        higher = {f"{name}__gt": priority for name, priority in self._alike.items()}
        urgent = replace(order, rows=lambda: order.candidates.filter(**higher))
        return self._spelt(urgent, desk, "urgent")

    def _waited(self, order: ClaimOrder, desk: Desk) -> ClaimOrder:
        waiting, alike = desk.columns.not_before, self._alike
        assert waiting is not None, "else nothing waits"
        later = {f"{waiting.name}__gt": NEVER_WAITED}
        waited = replace(order, rows=lambda: order.candidates.filter(**alike, **later))
        return self._spelt(waited, desk, "waited")

    def _beyond(self, order: ClaimOrder, desk: Desk) -> ClaimOrder:
        alike, key = self._alike, self._key
        further = {f"{_key_name(desk)}__gt": key}
        beyond = replace(order, rows=lambda: order.never_waited().filter(**alike).filter(**further))
        if len(desk.columns.key) > 1:
            return beyond
        return self._spelt(beyond, desk, "beyond", bound=desk.table.prepared_key(key)[0])

    def _spelt(self, order: ClaimOrder, desk: Desk, look: str, *, bound: Any = None) -> ClaimOrder:
        """Have the statements of this look spelt as those before it were, where nothing but the *bound* can differ."""
        if not order.simple:
            return order
        if len(self._spellings) > MOST_SPELLINGS:
            self._spellings.clear()
        alike = () if look == "full" else tuple(self._alike.values())
        kind = (look, *alike, *order.scopes, id(desk.dialect.connection))
        spellings = self._spellings.setdefault(kind, Spellings())
        spellings.bound = bound
        return replace(order, spellings=spellings)

    def _move(self, order: ClaimOrder, rows: list[Row], desk: Desk, *, everywhere: bool) -> None:
        """Stand at the last of *rows* that never waited; nowhere, where a look at everything found too few."""
        waiting = desk.columns.not_before
        if waiting is not None:
            place = order.place_of(waiting)
            rows = [row for row in rows if as_utc(row[place]) == NEVER_WAITED]
        if everywhere and not (rows and self.was_full):
            self._stands = False
        else:
            self._pass(order, rows, desk)

    def _pass(self, order: ClaimOrder, rows: list[Row], desk: Desk) -> None:
        """Stand at the last of *rows*, none of which has ever waited, if there are any."""
        if not rows:
            return
        field, last = desk.columns.priority, rows[-1]
        priority = None if field is None else last[order.place_of(field)]
        self._stand(desk, desk.table.key_of(last), priority)

    def _stand(self, desk: Desk, key: Any, priority: int | None = None) -> None:
        self._stands, self._key = True, key
        field = desk.columns.priority
        self._alike = {} if field is None else {field.name: priority}


def _look(order: ClaimOrder, rows: dict[Any, Row], desk: Desk) -> dict[Any, Row]:
    """Claim what is still wanted beside *rows*."""
    wanted = order.limit - len(rows)
    if not wanted:
        return {}
    part = order if wanted == order.limit else replace(order, limit=wanted)
    # By key: a strategy that finds its rows by their holder returns those of the look before, too.
    return {desk.table.key_of(row): row for row in desk.dialect.claim(part, desk.columns)}


def _pause(took: float, share: float) -> float:
    """Return how long to wait, in seconds, after a look that *took* so long, so that such looks take that *share*."""
    return min(LONGEST_PAUSE, max(FULL_LOOK_EVERY, took / share))


def _is_there(order: ClaimOrder, desk: Desk) -> bool:
    """Say whether there is a row that a claim would lock."""
    keys = desk.dialect.candidate_keys(order, desk.table, 1)
    return keys is not None and bool(desk.dialect.fetch(keys))


def _has_bounds(desk: Desk) -> bool:
    """Say whether the index finds what lies beyond a key."""
    return len(desk.columns.key) == 1 or desk.dialect.seeks_row_values


def _key_name(desk: Desk) -> str:
    (first, *others) = desk.columns.key
    return "pk" if others else first.attname
