"""Splitting a range: its holder goes on with the front, a free worker takes the tail.

The holder locks its range while it works on a chunk, so the end of the range never moves during a chunk.
"""

import logging
from functools import partial
from typing import Any, NamedTuple

from django.db import DatabaseError
from django.db.models import F

from django_taskclaim.contention import contention_code
from django_taskclaim.exceptions import RetriesExhausted
from django_taskclaim.querysets.conditions import is_running
from django_taskclaim.querysets.transactions import in_transaction
from django_taskclaim.ranges.keys import RangeTarget, reached
from django_taskclaim.signals import after_commit
from django_taskclaim.states import Status

logger = logging.getLogger("django_taskclaim")

#: How many of the ranges with most rows left are tried.
TRIED = 3

#: The fewest rows that each part of a split range has by default.
WORTH_SPLITTING = 1_000

#: Seconds to wait for the holder of a range to finish its chunk.
PATIENCE = 5


class Middle(NamedTuple):
    """Where a range is to be split: the last key of the front, and how many rows both parts have."""

    key: str
    front: int
    tail: int


def split_largest(target: RangeTarget, at_least: int = WORTH_SPLITTING) -> bool:
    """Split the running range with most rows left, and say whether there was one with *at_least* rows for two."""
    running = target.ranges.filter(is_running(target.claims.columns))
    largest_first = running.order_by((F("rows_planned") - F("rows_done")).desc(), "pk")
    keys = list(largest_first.values_list("pk", flat=True)[:TRIED])
    return any(split(target, pk, at_least) for pk in keys)


def split(target: RangeTarget, pk: object, at_least: int = 1) -> bool:
    """Split the open or running range *pk* in the middle of what is left; the tail is a new open range.

    Returns False and changes nothing if either part would have fewer than *at_least* rows, or if the range stays locked
    for longer than PATIENCE.
    """
    # Without a lock first, so that the holder of a range that is too small never waits for this.
    seen = target.ranges.filter(pk=pk).first()
    if seen is None or _middle(target, seen, at_least) is None:
        return False
    try:
        return in_transaction(target.claims, _split, target, pk, at_least)
    except (RetriesExhausted, DatabaseError) as error:
        if isinstance(error, DatabaseError) and contention_code(error) is None:
            raise
        return False


def _middle(target: RangeTarget, range_: Any, at_least: int) -> Middle | None:
    """Return the middle of what is left; None where it is not to be split."""
    status = getattr(range_, target.claims.columns.status.attname)
    if status not in (Status.OPEN, Status.PROCESSING) or range_.checkpoint == range_.upper:
        return None
    rows = target.source_rows(reached(range_), range_.upper)
    # Counted, for rows come and go since a range was planned.
    left = rows.count()
    front = left // 2
    middle = target.key_at(rows, front - 1) if front >= at_least else None
    return None if middle is None else Middle(middle, front, left - front)


def _split(target: RangeTarget, pk: object, at_least: int) -> bool:
    with target.claims.dialect.limit_lock_wait(PATIENCE):
        range_ = target.locked(pk)
    # Again under the lock: chunks may have been done since, perhaps beyond the middle.
    middle = None if range_ is None else _middle(target, range_, at_least)
    if middle is None:
        return False
    # The tail keeps the position; the front gets one between that and the range before.
    lower = target.ranges.filter(position__lt=range_.position).order_by("-position")
    before: float = lower.values_list("position", flat=True).first() or 0.0
    position = (before + range_.position) / 2
    if not before < position < range_.position:
        # No number is left between them.
        return False
    # The tail has the user's own columns as the range itself has them.
    guarded = target.claims.columns.guarded_names
    own = {
        field.attname: getattr(range_, field.attname)
        for field in target.model._meta.concrete_fields
        if not field.primary_key and field.name not in guarded
    }
    bounds = {"lower": middle.key, "upper": range_.upper, "position": range_.position}
    planned = range_.rows_done + middle.front
    target.ranges.filter(pk=pk).update(upper=middle.key, position=position, rows_planned=planned)
    target.ranges.bulk_create([target.model(**own, **bounds, rows_planned=middle.tail)])
    label = target.model._meta.label
    said = (
        f"{label} {pk} was split: {middle.front} rows are left to it, {middle.tail} are open again"
    )
    facts = {"event": "split", "model": label, "keys": [str(pk)], "rows": middle.tail}
    after_commit(target.claims.alias, partial(logger.info, "%s", said, extra=facts))
    return True
