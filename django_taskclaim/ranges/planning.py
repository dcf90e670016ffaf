"""Cutting the keys of a source into ranges, by walking its primary key: by hand, or by workers that find none due."""

from collections.abc import Callable
from itertools import islice
from typing import Any

from django.db import models

from django_taskclaim.querysets.manager import ClaimQuerySet
from django_taskclaim.querysets.transactions import in_transaction, refuse_old_snapshots
from django_taskclaim.ranges.keys import Key, Part, key_at
from django_taskclaim.ranges.late_commits import make_due, refuse_unknown_commits, waiting
from django_taskclaim.ranges.splitting import split_largest
from django_taskclaim.ranges.target import RangeTarget

#: Ranges that are stored together.
BATCH = 20

#: Ranges that a worker plans at once.
AHEAD = 16

#: Called with the number of ranges that have been stored so far.
Progress = Callable[[int], object]

#: The last planned key and its position, where the plan goes on.
End = tuple[str | None, float]


def plan(
    target: RangeTarget,
    chunk_size: int,
    limit: int | None = None,
    progress: Progress | None = None,
    *,
    until: Key | None = None,
    only_full: bool = False,
) -> int:
    """Store ranges of *chunk_size* rows for all keys behind the last planned one, and return how many.

    Plans no key beyond *until*, if that is given, and with *only_full* no range of fewer rows. Commits as it goes.
    Where another planner has stored ranges meanwhile, throws away what it has found, and goes on behind those.
    """
    refuse_unknown_commits(target)
    refuse_old_snapshots(target.claims, "plan() goes on behind what others have planned")
    make_due(target)
    keys, added = target.keys, 0
    while limit is None or added < limit:
        end = end_of_plan(target)
        parts = keys.parts(keys.rows(until=until), chunk_size, keys.decode(end[0]))
        most = BATCH if limit is None else min(BATCH, limit - added)
        found = [part for part in islice(parts, most) if part.rows == chunk_size or not only_full]
        if not found:
            break
        added += in_transaction(target.claims, _store, target, end, found)
        if progress is not None:
            progress(added)
    return added


def end_of_plan(target: RangeTarget) -> End:
    """Return where the last range ends, and its position."""
    last_first = target.ranges.order_by("-position").values_list("upper", "position")
    return last_first.first() or (None, 0.0)


def _store(target: RangeTarget, end: End, parts: list[Part]) -> int:
    """Store these ranges, unless somebody has planned beyond *end* since; return how many."""
    target.claims.dialect.advisory_lock(f"{target.model._meta.label_lower}:#planner")
    if end_of_plan(target) != end:
        return 0
    wait, (last_key, position) = waiting(target), end
    uppers = [target.keys.encode(part.until) for part in parts]
    bounds = zip([last_key, *uppers], uppers, parts, strict=False)
    ranges = [
        target.model(
            lower=lower,
            upper=upper,
            rows_planned=part.rows,
            position=position + number,
            **wait,
        )
        for number, (lower, upper, part) in enumerate(bounds, 1)
    ]
    return len(target.ranges.bulk_create(ranges))


# By workers


def open_more(
    model: type[models.Model], alias: str, *, plans: bool = True, until: Key | None = None
) -> bool:
    """Open a range for workers that find none, and say whether there is one more now.

    Makes those due that have waited for late commits. Where none is due, plans the next if the model has
    ``plan_ahead``, up to the key *until* if that is given. Where none is open at all, splits the running one with most
    rows left.
    """
    target = RangeTarget.of(model, alias)
    if make_due(target):
        return True
    opened: ClaimQuerySet[Any] = ClaimQuerySet(model, using=alias).open()
    if opened.due().exists():
        return False
    ahead = getattr(model, "plan_ahead", None) if plans else None
    if ahead is not None:
        # While planned ones wait for late commits, rows that have come since wait until they make a full range.
        only_full = opened.filter(**{target.claims.columns.iteration.name: 0}).exists()
        if plan(target, ahead, AHEAD, until=until, only_full=only_full):
            return True
    return not opened.exists() and split_largest(target)


def end_of_source(model: type[models.Model], alias: str) -> Key | None:
    """Return the newest key of the source, as ``open_more`` takes it; None where it is empty."""
    return key_at(RangeTarget.of(model, alias).keys.rows().reverse(), 0)


def is_unplanned(model: type[models.Model], alias: str, until: Key | None) -> bool:
    """Say whether workers have ranges to plan yet, up to the key *until*; False without one."""
    if getattr(model, "plan_ahead", None) is None or until is None:
        return False
    target = RangeTarget.of(model, alias)
    return target.keys.rows(target.keys.decode(end_of_plan(target)[0]), until).exists()
