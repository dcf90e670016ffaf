"""Cutting the keys of a source into ranges, by walking its primary key: by hand, or by workers that find none due.

A transaction takes its key early and commits late: a planner that has read key 3 may have passed key 2, whose row was
not visible yet. So a range of a growing source is due only when nobody can commit a row among its keys any more. If the
database can name the open transactions, each range waits for those that were open after its keys were read. Otherwise
it waits for the model's ``commits_within``: the longest time between a key and the commit of its row.
"""

import json
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any

from django.db import models
from django.db.models.fields import AutoFieldMixin

from django_taskclaim.conf import DURATION, NUMBER_OR_NONE
from django_taskclaim.db.sql import PREPARED
from django_taskclaim.fields import NEVER_WAITED, OPEN_ENDED
from django_taskclaim.querysets.manager import ClaimQuerySet
from django_taskclaim.querysets.scope import is_open, refuse_old_snapshots, run
from django_taskclaim.ranges.keys import Key, Part, RangeTarget, key_at
from django_taskclaim.ranges.walking import split_largest

#: Ranges that are stored together.
BATCH = 20

#: Ranges that a worker plans at once.
AHEAD = 16

#: Called with the number of ranges that have been stored so far.
Progress = Callable[[int], object]

#: The last planned key and its position, where the plan goes on.
End = tuple[str | None, int]


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

    Plans no key beyond *until*, if that is given, and with *only_full* no range of fewer rows. Commits as it goes. If
    another planner has stored ranges meanwhile, this one drops what it has found and goes on behind them.
    """
    refuse_unplannable(target)
    refuse_old_snapshots(target.claims, "plan() goes on behind what others have planned")
    make_due(target)
    added = 0
    while limit is None or added < limit:
        end = end_of_plan(target)
        parts = target.parts(target.rows(until=until), chunk_size, target.decode(end[0]))
        most = BATCH if limit is None else min(BATCH, limit - added)
        found = [part for part in islice(parts, most) if part.rows == chunk_size or not only_full]
        if not found:
            break
        added += run(target.claims, partial(_store, target, end, found))
        if progress is not None:
            progress(added)
    return added


def end_of_plan(target: RangeTarget) -> End:
    """Return where the last range ends, and its position."""
    last_first = target.ranges.order_by("-position").values_list("upper", "position")
    return last_first.first() or (None, 0)


def _store(target: RangeTarget, end: End, parts: list[Part]) -> int:
    """Store these ranges, unless another planner has planned beyond *end* since; return how many."""
    target.claims.dialect.advisory_lock(f"{target.model._meta.label_lower}:#planner")
    if end_of_plan(target) != end:
        return 0
    wait, (last_key, position) = waiting(target), end
    uppers = [target.encode(part.until) for part in parts]
    bounds = zip([last_key, *uppers], uppers, parts, strict=False)
    ranges = [
        target.model(
            lower=lower, upper=upper, rows_planned=part.rows, position=position + number, **wait
        )
        for number, (lower, upper, part) in enumerate(bounds, 1)
    ]
    return len(target.ranges.bulk_create(ranges))


# By workers


def open_more(
    model: type[models.Model], alias: str, *, plans: bool = True, until: Key | None = None
) -> bool:
    """Open a range for workers that find none, and say whether there is one more now.

    Ranges that have waited long enough for late commits become due. If none is due and the model has ``plan_ahead``,
    the next ranges are planned, up to the key *until* if that is given. If none is open at all, the running range with
    most rows left is split.
    """
    target = RangeTarget(model, alias)
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
    return key_at(RangeTarget(model, alias).rows().reverse(), 0)


# Late commits


def _commits_within(model: Any) -> timedelta | None:
    named = model.commits_within
    name = f"{model._meta.label}.commits_within"
    return None if named is None else DURATION.check(named, name)


def refuse_unplannable(target: RangeTarget) -> None:
    """Raise TypeError where it is not known when a range of a growing source has all its rows.

    ValueError where ``commits_within`` is no duration, or ``plan_ahead`` no number of rows.
    """
    model: Any = target.model
    NUMBER_OR_NONE.check(model.plan_ahead, f"{model._meta.label}.plan_ahead")
    if not model.growing:
        return
    is_known = _commits_within(model) is not None or (
        # A key that the database gives is younger than the transaction that inserts its row.
        len(target.fields) == 1
        and isinstance(target.fields[0], AutoFieldMixin)
        and target.claims.dialect.names_open_transactions
    )
    is_random = any(getattr(field, "default", None) is uuid.uuid4 for field in target.fields)
    if is_random or not is_known or target.claims.columns.not_before is None:
        raise TypeError(
            f"{model._meta.label} is growing: it needs RetryMixin, for its ranges wait for late commits; keys of"
            f" {target.source._meta.label} that grow; and, where the database does not say how late smaller keys may"
            " be committed, commits_within: how long after its key was given a row is committed at the latest."
        )


def waiting(target: RangeTarget) -> dict[str, object]:
    """Return the columns of new ranges that have to wait for late commits.

    To be called after their keys were read: a transaction that begins later is given larger ones.
    """
    model: Any = target.model
    field, dialect = target.claims.columns.not_before, target.claims.dialect
    if field is None or not model.growing:
        return {}
    wait = _commits_within(model)
    if wait is not None:
        return {field.attname: dialect.current_time() + wait}
    still_open = dialect.open_transactions()
    if not still_open:
        return {}
    names = json.dumps(sorted(still_open | {PREPARED}))
    return {field.attname: OPEN_ENDED, "open_transactions": names}


def make_due(target: RangeTarget) -> int:
    """Make those ranges due whose transactions have ended, and return how many."""
    columns, dialect = target.claims.columns, target.claims.dialect
    if columns.not_before is None:
        return 0
    open_ended = target.ranges.filter(is_open(columns), **{columns.not_before.name: OPEN_ENDED})
    marks = list(open_ended.order_by("pk").values_list("pk", "open_transactions"))
    # After the marks were read: what is not open now has ended since they were made.
    still_open = dialect.open_transactions() if marks else None
    if still_open is None:
        return 0
    over = [pk for pk, names in marks if names and still_open.isdisjoint(json.loads(names))]
    due: Any = {columns.not_before.name: NEVER_WAITED, "open_transactions": None}
    return sum(
        run(target.claims, partial(open_ended.filter(pk__in=part).update, **due))
        for part in dialect.chunks(over, target.claims.table)
    )
