"""Cutting the keys of a source into ranges, by walking its primary key; nothing but keys is read."""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from django_taskclaim.claim import clock
from django_taskclaim.querysets.transactions import refuse_old_snapshots, transactionally
from django_taskclaim.ranges.place import Place
from django_taskclaim.ranges.settling import refuse_unsettled, settle, waiting

logger = logging.getLogger("django_taskclaim")

#: Ranges that are stored together, and the seconds after which those found so far are stored.
BATCH, LONGEST_WALK = 500, 2.0

#: Told how many ranges have been stored so far.
Progress = Callable[[int], object]


class Cut(NamedTuple):
    """Where a range ends, and how many rows it has."""

    upper: str
    rows: int


class End(NamedTuple):
    """The last planned range: where the plan goes on."""

    upper: str | None = None
    position: float = 0.0


def plan(
    place: Place,
    chunk_size: int,
    limit: int | None = None,
    progress: Progress | None = None,
    *,
    until: str | None = None,
    whole: bool = False,
) -> int:
    """Store ranges of *chunk_size* rows for all keys behind the last planned one, and return how many.

    No key beyond *until* is planned, where that is given, and with *whole* no range of fewer rows. Commits as it goes.
    Where another planner has stored ranges meanwhile, what was walked is thrown away and the walk goes on behind those.
    """
    refuse_unsettled(place)
    refuse_old_snapshots(place.claim_target, "plan() goes on behind what others have planned")
    settle(place)
    added = 0
    while limit is None or added < limit:
        end = end_of_plan(place)
        most = BATCH if limit is None else min(BATCH, limit - added)
        walk = _walk(place, end.upper, until, chunk_size, whole=whole)
        cuts = _walk_for_a_while(walk, most)
        if not cuts:
            break
        added += transactionally(place.claim_target, partial(_store, place, end, cuts))
        if progress is not None:
            progress(added)
    return added


def end_of_plan(place: Place) -> End:
    """Return where the last range ends, and its position."""
    last = place.rows.order_by("-position").values_list("upper", "position").first()
    return End() if last is None else End(*last)


def newest_key(place: Place) -> str | None:
    """Return the largest key that the source has now; None where it is empty."""
    return place.key.last(place.key.rows())


def _walk_for_a_while(walk: Iterator[Cut], most: int) -> list[Cut]:
    began = clock()
    cuts: list[Cut] = []
    for cut in islice(walk, most):
        cuts.append(cut)
        if clock() - began > LONGEST_WALK:
            break
    return cuts


def _walk(
    place: Place, behind: str | None, until: str | None, size: int, *, whole: bool
) -> Iterator[Cut]:
    """Yield the ends of ranges of *size* rows; the last one may be shorter, unless all are to be *whole*."""
    key = place.key
    while True:
        start = behind
        rows = key.rows().filter(key.between(start, until))
        behind = key.at(rows, size - 1)
        if behind is None:
            break
        yield Cut(behind, size)
    if whole:
        return
    last = key.last(rows)
    if last is not None:
        # Counted up to there: rows may have come since.
        yield Cut(last, key.rows().filter(key.between(start, last)).count())


def _store(place: Place, end: End, cuts: list[Cut]) -> int:
    """Store the ranges that end at *cuts*, unless somebody has planned beyond *end* since; return how many."""
    place.claim_target.dialect.advisory_lock(f"{place.model._meta.label_lower}:#planner")
    if end_of_plan(place) != end:
        return 0
    place.rows.bulk_create(_ranges(place, end, cuts), batch_size=100)
    return len(cuts)


def _ranges(place: Place, end: End, cuts: list[Cut]) -> list[Any]:
    lowers = [end.upper, *(cut.upper for cut in cuts)]
    common = waiting(place)
    return [
        place.model(
            lower=lower,
            upper=cut.upper,
            rows_planned=cut.rows,
            position=end.position + number,
            **common,
        )
        for number, (lower, cut) in enumerate(zip(lowers, cuts, strict=False), 1)
    ]
