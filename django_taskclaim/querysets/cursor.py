"""Where one claim looks: at one place after the other, from where the last claim ended.

What was claimed leaves dead entries at the head of the index for a while, and a claim that begins there reads past all
of them again. So each claim goes on where the one before ended. Rows that are put back, or come in, in front of that
are found by a full scan, which follows now and then, and whenever a claim comes back short.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.db.models import Q

from django_taskclaim.claim import clock
from django_taskclaim.columns import ClaimColumns
from django_taskclaim.db.sql import ClaimedRow
from django_taskclaim.fields import NEVER_WAITED, QUARANTINED, as_utc
from django_taskclaim.querysets import scope
from django_taskclaim.querysets.scope import ClaimTarget

#: Under backlog a full scan follows after so many seconds, …
FULL_SCAN_EVERY = 1.0
#: … or later, if full scans would take more than this share of the time: until dead index entries are cleaned up, a
#: full scan takes as long as dozens of other claims. A look for quarantined rows takes long where priorities are many.
FULL_SCAN_SHARE = 0.1
#: … but after so many seconds at the latest.
LONGEST_PAUSE = 10.0
#: So many priorities are looked at one by one, and then all together.
MOST_PRIORITIES = 20
#: One claim in so many begins with rows that have waited: they stand behind all rows that never waited. One claim in
#: so many begins with a quarantined row, if nobody has looked in vain for one since FULL_SCAN_EVERY.
TURN = 10


class Scan(NamedTuple):
    """A part of the rows that a claim looks at: a condition of ``scope``, and the priority and key that it adds."""

    which: Callable[[ClaimColumns], Q] = scope.has_waited
    values: Mapping[str, Any] = {}

    def condition(self, columns: ClaimColumns) -> Q:
        """Return which open rows the scan finds."""
        found = self.which(columns)
        if columns.priority is not None and "priority" in self.values:
            found &= Q(**{columns.priority.name: self.values["priority"]})
        if "key" in self.values:
            name = "pk" if len(columns.key) > 1 else columns.key[0].attname
            found &= Q(**{f"{name}__gt": self.values["key"]})
        return found


#: Most claims scan this. It leaves quarantined rows out, which may have killed their worker.
EVERYTHING = Scan()


def quarantined_scans(target: ClaimTarget) -> list[Scan]:
    """Return where to look for a quarantined row: at each priority that has one, the highest first."""
    columns, scans = target.columns, list[Scan]()
    if columns.not_before is None:
        return []
    if columns.priority is None:
        return [Scan(scope.is_quarantined)]
    # One range over all priorities would read every open row. The last row of each priority is the one that waits
    # longest, and the index finds it without the entries of rows done since the last vacuum.
    found = target.rows.filter(scope.is_open(columns)).order_by(*columns.order).reverse()
    rows = found = found.values_list(columns.priority.name, columns.not_before.name)
    for _ in range(MOST_PRIORITIES):
        if (row := rows.first()) is None:
            return scans
        priority, wait = row
        if as_utc(wait) >= QUARANTINED:
            scans.insert(0, Scan(scope.is_quarantined, {"priority": priority}))
        rows = found.filter(**{f"{columns.priority.name}__gt": priority})
    return [*scans, Scan(scope.is_quarantined)]


@dataclass(slots=True)
class Cursor:
    """How far one worker's claims from one queryset have come, in claim order."""

    #: Key and priority of the row after which the next claim begins; None for a full scan.
    _position: tuple[Any, int | None] | None = None
    #: By ``clock()``: when the present claim began, and when the next full scan is due.
    _began: float = 0.0
    _full_scan_at: float = 0.0
    #: By ``clock()``, when the next look for quarantined rows may follow.
    quarantined_at: float = 0.0

    def may_look_aside(self, pause: float = 0.0) -> bool:
        """Say whether to look for a quarantined row, *pause* seconds after another look may follow the last one."""
        return self.quarantined_at + pause <= clock()

    def scans(self, target: ClaimTarget, *, retried_first: bool) -> list[Scan]:
        """Return where a claim looks until it has all the rows it wants; everywhere at last."""
        self._began = clock()
        scans = [EVERYTHING]
        if self._position is None:
            return scans
        key, priority = self._position
        columns = target.columns
        at = {} if columns.priority is None else {"priority": priority}
        # The index must find what lies behind a key.
        seeks = len(columns.key) == 1 or target.dialect.seeks_row_values
        if seeks and self._began < self._full_scan_at:
            scans.insert(0, Scan(scope.never_waited, {**at, "key": key}))
        if columns.not_before is not None and retried_first:
            scans.insert(0, Scan(scope.was_retried, at))
        return scans

    def advance(self, rows: Sequence[ClaimedRow], last: Scan, *, full: bool) -> None:
        """Go on behind the last of *rows* that never waited; nowhere, where a scan of everything found too little.

        *rows* are what the claim took, in order, and *last* is its last scan; *full* says that it took all it wanted.
        """
        if last is EVERYTHING:
            self._full_scan_at = next_time(self._began, FULL_SCAN_EVERY)
        without_wait = (
            row
            for row in reversed(rows)
            if row.not_before is None or as_utc(row.not_before) == NEVER_WAITED
        )
        found = next(without_wait, None)
        if last is EVERYTHING and (found is None or not full):
            self._position = None
        elif found is not None:
            self._position = found.key, found.priority


def next_time(began: float, pause: float = 0.0) -> float:
    """Return when, by ``clock()``, a look that began at *began* and ends now may be repeated.

    That is after *pause* seconds, or later, so that such looks take FULL_SCAN_SHARE of the time; at most LONGEST_PAUSE.
    """
    now = clock()
    return now + min(LONGEST_PAUSE, max(pause, (now - began) / FULL_SCAN_SHARE))
