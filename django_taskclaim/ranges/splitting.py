"""Giving a part of a range to others: its holder goes on with the front, whoever is free takes the tail.

The holder has its range locked while it works on a chunk, so the end of the range never moves under a chunk.
"""

import logging
from functools import partial
from typing import Any, NamedTuple

from django.db import DatabaseError
from django.db.models import F

from django_taskclaim.columns import claim_columns
from django_taskclaim.contention import contention_code
from django_taskclaim.db.sql import SQL
from django_taskclaim.exceptions import RetriesExhausted
from django_taskclaim.querysets.transactions import transactionally
from django_taskclaim.ranges.place import Bounds, Place
from django_taskclaim.signals import after_commit
from django_taskclaim.states import Status, Token

logger = logging.getLogger("django_taskclaim")

#: Of the ranges with most rows left that many are tried.
TRIED = 3

#: Rows that both parts of a range must have at least.
WORTH_SPLITTING = 1_000

#: Seconds to wait for the holder of a range to finish its chunk.
PATIENCE = 5


def split_largest(place: Place, at_least: int) -> bool:
    """Split the running range with most rows left, and say whether there was one with *at_least* rows for two."""
    columns = claim_columns(place.model)
    running = place.rows.filter(**{columns.status.name: Status.PROCESSING})
    keys = _by_rows_left(running).values_list("pk", flat=True)[:TRIED]
    return any(split(place, pk, at_least) for pk in list(keys))


def _by_rows_left(ranges: Any) -> Any:
    return ranges.order_by((F("rows_planned") - F("rows_done")).desc(), "pk")


def split(place: Place, pk: Any, at_least: int = 1) -> bool:
    """Split the open or running range *pk* in the middle of what is left; the tail is a new open range.

    False, and nothing changed, where fewer than *at_least* rows would be left to either part, where the range has
    moved on meanwhile, or where it stays locked for longer than is sensible to wait.
    """
    bounds, state = place.bounds(pk), _state(place, pk)
    if bounds is None or state is None or bounds.is_done:
        return False
    middle = _middle(place, bounds, at_least)
    if middle is None:
        return False
    write = partial(_split_at, place, pk, state, bounds, middle, at_least)
    try:
        return transactionally(place.claim_target, write)
    except RetriesExhausted:
        return False
    except DatabaseError as error:
        if contention_code(error) is None:
            raise
        return False


def _state(place: Place, pk: Any) -> tuple[str, Token] | None:
    columns = claim_columns(place.model)
    names = [columns.status.name, columns.claimed_by.name, columns.iteration.name]
    found = place.rows.filter(pk=pk).values_list(*names).first()
    if found is None or found[0] not in (Status.OPEN, Status.PROCESSING):
        return None
    return found[0], Token(found[1], found[2])


class Middle(NamedTuple):
    """Where a range is to be split: the last key of the front, and about how many rows both parts have."""

    key: str
    front: int
    tail: int


def _middle(place: Place, bounds: Bounds, at_least: int) -> Middle | None:
    """Return the middle of what is left; None where either part would have fewer than *at_least* rows."""
    key = place.key
    rows = key.rows().filter(key.between(bounds.reached, bounds.upper))
    left = bounds.rows_left
    middle = key.at(rows, left // 2 - 1) if left >= 2 else None
    if middle is None or not key.rows().filter(key.between(middle, bounds.upper)).exists():
        # Fewer than planned, or more: rows come and go.
        left = rows.count()
        middle = key.at(rows, left // 2 - 1) if left >= 2 else None
    if middle is None or left // 2 < at_least:
        return None
    return Middle(middle, left // 2, left - left // 2)


def _split_at(
    place: Place,
    pk: Any,
    state: tuple[str, Token],
    seen: Bounds,
    middle: Middle | None,
    at_least: int,
) -> bool:
    if not _lock(place, pk, state):
        return False
    now = place.locked_bounds(pk)
    if (now.upper, now.position) != (seen.upper, seen.position):
        return False
    if now.reached != seen.reached:
        # A chunk was done while this waited for it, perhaps beyond the middle.
        middle = None if now.is_done else _middle(place, now, at_least)
    if middle is None:
        return False
    position = _position_before(place, now.position)
    if not position < now.position:
        return False
    assignments = [
        place.assign("upper", middle.key),
        place.assign("position", position),
        place.assign("rows_planned", now.rows_done + middle.front),
    ]
    claim_target = place.claim_target
    if not claim_target.dialect.update_where(
        claim_target.table, [pk], _condition(place, state), assignments
    ):
        return False
    _insert_tail(place, pk, now, middle.key, middle.tail)
    log = partial(
        logger.info,
        "%s %s was split: about %d rows are left to it, %d are open again",
        place.model._meta.label,
        pk,
        middle.front,
        middle.tail,
        extra={
            "event": "split",
            "model": place.model._meta.label,
            "keys": [str(pk)],
            "rows": middle.tail,
        },
    )
    after_commit(claim_target.alias, log)
    return True


def _lock(place: Place, pk: Any, state: tuple[str, Token]) -> bool:
    """Lock the range, waiting for a chunk under way to end, and say whether it is still as it was seen."""
    claim_target = place.claim_target
    status, token = state
    columns = claim_target.columns
    with claim_target.dialect.limit_lock_wait(PATIENCE):
        if status == Status.PROCESSING:
            return bool(claim_target.dialect.lock_standing(claim_target.table, token, [pk]))
        found = claim_target.dialect.lock_at_once(
            claim_target.table, [pk], [columns.status, columns.iteration]
        )
        return found == [[status, token.iteration]]


def _condition(place: Place, state: tuple[str, Token]) -> SQL:
    status, token = state
    table = place.claim_target.table
    return table.standing(token) if status == Status.PROCESSING else table.in_state(Status.OPEN)


def _position_before(place: Place, position: float) -> float:
    """Return a position between that of the range before and *position*; the tail keeps the old one."""
    before = place.rows.filter(position__lt=position).order_by("-position")
    previous: float = before.values_list("position", flat=True).first() or 0.0
    middle = (previous + position) / 2
    return middle if previous < middle else position


def _insert_tail(place: Place, pk: Any, bounds: Bounds, lower: str, rows: int) -> None:
    """Store the tail as a new open range, with the user's own columns as the range itself has them."""
    range_ = place.rows.get(pk=pk)
    guarded = place.claim_target.columns.guarded_names
    own = {
        field.attname: getattr(range_, field.attname)
        for field in place.model._meta.concrete_fields
        if not field.primary_key and field.name not in guarded
    }
    tail = place.model(
        **own, lower=lower, upper=bounds.upper, position=bounds.position, rows_planned=rows
    )
    place.rows.bulk_create([tail])
