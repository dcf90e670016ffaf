"""Working through a claimed range: a chunk and the checkpoint behind it are one transaction."""

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakSet

from django.db import models

from django_taskclaim.claim import Claim, carried_claim, clock, standing_claim
from django_taskclaim.db.sql import SQL
from django_taskclaim.exceptions import RangeInterrupted, RangeSplit, RangeUnfinished
from django_taskclaim.guard import show
from django_taskclaim.querysets.losses import raise_lost
from django_taskclaim.querysets.transactions import refuse_old_snapshots, transactionally
from django_taskclaim.querysets.writes import lock_claim
from django_taskclaim.ranges.place import Bounds, Place
from django_taskclaim.ranges.splitting import split

#: Rows of the first chunk, and of the largest.
FIRST, LARGEST = 1_000, 50_000

#: A chunk is so many times as large as the one before at most, and as small.
STEP = 8

#: How long a chunk shall take.
TARGET = timedelta(seconds=0.5)

#: What a walk needs of a transaction of the caller's.
READS = "The rows of a range are all that others have committed"

#: Where there is one writer, others can write for such a share of a chunk's time after it, and so many seconds at most.
SHARE_OF_OTHERS, MOST_OF_OTHERS = 0.05, 0.05

#: By model: how many rows took about as long as they should, lately.
_sizes: dict[type[models.Model], int] = {}


#: By thread: the walks that somebody still keeps.
_begun = threading.local()


class Chunk(NamedTuple):
    """The next rows of a range, and the key that they end with."""

    rows: "models.QuerySet[Any]"
    last: str
    size: int


def walk(row: Any, size: int | None, target: timedelta, largest: int) -> Iterator[Any]:
    """Return the rows of the range in chunks; what is done with each is committed with the checkpoint behind it."""
    chunks = _walk(row, size, target, largest)
    _begun.walks = getattr(_begun, "walks", None) or WeakSet()
    _begun.walks.add(chunks)
    return chunks


def _walk(row: Any, size: int | None, target: timedelta, largest: int) -> Iterator[Any]:
    claim = _claim_on(row)
    place = Place.of(type(row), claim.alias)
    refuse_old_snapshots(place.claim_target, READS)
    others_until = 0.0
    while True:
        _give_way(row, claim, place)
        began = clock()
        wanted = size or min(_sizes.get(place.model, FIRST), largest)
        # Looked for without a lock: where there is one writer, others write meanwhile.
        known = _known(row, place)
        chunk = _next_chunk(row, place, known, wanted)
        time.sleep(max(0.0, others_until - clock()))
        with place.claim_target.dialect.own_transaction():
            bounds = _hold(row, claim, place)
            if bounds.is_done:
                return
            if (bounds.reached, bounds.upper) != (known.reached, known.upper):
                chunk = _next_chunk(row, place, bounds, wanted)
            if chunk.size:
                yield chunk.rows
            _write_checkpoint(row, claim, place, bounds, chunk.last, chunk.size)
        claim.extend(began)
        if chunk.last == bounds.upper:
            return
        took = clock() - began
        if size is None:
            _sizes[place.model] = _adapted(wanted, took, target, largest)
        if place.claim_target.dialect.has_one_writer:
            # Those who wait look only now and then whether they may write.
            others_until = clock() + min(MOST_OF_OTHERS, took * SHARE_OF_OTHERS)


def end_walks() -> None:
    """Roll back the chunks that this thread has begun and left.

    A walk that its handler has kept in a variable lives as long as the traceback of what it raised, and would roll
    back, in whichever thread forgets that, what is under way there then.
    """
    for one in list(getattr(_begun, "walks", ())):
        one.close()


def _claim_on(row: Any) -> Claim:
    claim = standing_claim(row)
    if claim is None:
        raise_lost([row], [])
    return claim


def _give_way(row: Any, claim: Claim, place: Place) -> None:
    """Raise RangeInterrupted where the worker would have the range back; what is too long for it is split first."""
    if claim.lost:
        raise_lost([row], [])
    if not claim.asked_back:
        return
    if claim.too_long:
        split(place, claim.pk)
    raise RangeInterrupted(0, f"{claim.asked_back}; the range goes on at its checkpoint")


def _hold(row: Any, claim: Claim, place: Place) -> Bounds:
    """Lock the range for the current transaction, so that its end stays where it is, and return its bounds."""
    if standing_claim(row) is None or not lock_claim(row, claim.alias):
        raise_lost([row], [])
    bounds = place.locked_bounds(claim.pk)
    _show(row, place, bounds)
    return bounds


def _known(row: Any, place: Place) -> Bounds:
    """Return the bounds of the range as they were when it was last looked at."""
    return Bounds(*(getattr(row, place.field(name).attname) for name in Bounds._fields))


def _next_chunk(row: Any, place: Place, bounds: Bounds, size: int) -> Chunk:
    key = place.key
    rows = _source_rows(row, place)
    rest = rows.filter(key.between(bounds.reached, bounds.upper))
    last = key.at(rest, size - 1)
    if last is None:
        # Fewer than wanted: the range ends here.
        return Chunk(rest.order_by(), bounds.upper, rest.count())
    # Unordered: an UPDATE … ORDER BY takes half as long again on MySQL, twice as long on MariaDB.
    return Chunk(rows.filter(key.between(bounds.reached, last)).order_by(), last, size)


def _source_rows(row: Any, place: Place) -> "models.QuerySet[Any]":
    rows: models.QuerySet[Any] = row.source_rows()
    return rows.using(place.claim_target.alias).order_by(*place.key.names)


def _adapted(size: int, took: float, target: timedelta, largest: int) -> int:
    """Return the size that would have taken as long as *target*, as far as one step goes."""
    factor = target.total_seconds() / max(took, 0.001)
    return max(1, min(largest, int(size * min(STEP, max(1 / STEP, factor)))))


# The checkpoint


def advance(row: Any, key: Any, rows: int) -> None:
    """Write the checkpoint of a claimed range; see ``RangeMixin.advance``."""
    claim = _claim_on(row)
    place = Place.of(type(row), claim.alias)
    refuse_old_snapshots(place.claim_target, READS)
    transactionally(
        place.claim_target, partial(_advance, row, claim, place, place.key.encode(key), rows)
    )


def _advance(row: Any, claim: Claim, place: Place, last: str, rows: int) -> None:
    known = row.upper
    bounds = _hold(row, claim, place)
    if _has_rows(place, last, bounds.reached):
        raise ValueError(
            f"{last} lies before the checkpoint {bounds.reached}: rows would be done again."
        )
    if _has_rows(place, bounds.upper, last):
        if bounds.upper == known:
            raise ValueError(f"{last} lies beyond the end of the range, {bounds.upper}.")
        raise RangeSplit(
            0,
            f"the range was split, and {last} is now in the part of others; it goes on at its checkpoint",
        )
    _write_checkpoint(row, claim, place, bounds, last, rows)


def _has_rows(place: Place, after: str, until: str | None) -> bool:
    """Say whether the source has rows beyond *after* up to *until*; keys are compared by the database alone."""
    if until is None:
        return False
    key = place.key
    return key.rows().filter(key.between(after, until)).exists()


def _write_checkpoint(
    row: Any, claim: Claim, place: Place, bounds: Bounds, last: str, rows: int
) -> None:
    """Write how far the range has come, which renews its lease, and forgets failures: it gets on."""
    claim_target = place.claim_target
    attempts = claim_target.columns.attempts
    assignments = [
        place.assign("checkpoint", last),
        place.assign(
            "rows_done", SQL(f"{claim_target.table.column(place.field('rows_done'))} + %s", (rows,))
        ),
        claim_target.dialect.extension(claim_target.table, claim.lease),
    ]
    if attempts is not None and claim.attempts:
        assignments.append(claim_target.table.assign(attempts, SQL("0")))
    if not claim_target.dialect.update_held(
        claim_target.table, claim.token, [claim.pk], assignments
    ):
        raise_lost([row], [])
    claim.attempts = 0 if attempts is not None else claim.attempts
    _show(row, place, bounds._replace(checkpoint=last, rows_done=bounds.rows_done + rows))


def _show(row: Any, place: Place, bounds: Bounds) -> None:
    values: dict[Any, Any] = {place.field(name): one for name, one in bounds._asdict().items()}
    show([row], values | {place.claim_target.columns.expires_at: models.DEFERRED})


def halve(row: Any) -> None:
    """Split what is left of a range that took too long, if it is still open, so that both parts may do better."""
    claim = carried_claim(row)
    split(Place.of(type(row), claim.alias), claim.pk)


def refuse_unfinished(row: Any) -> None:
    """Raise RangeUnfinished for a claimed range that is to be completed although rows of it were not done."""
    claim = carried_claim(row)
    if claim.ended:
        return
    place = Place.of(type(row), claim.alias)
    bounds = place.bounds(claim.pk)
    if bounds is None or bounds.is_done:
        return
    reached = (
        "before its first checkpoint" if bounds.checkpoint is None else f"at {bounds.checkpoint}"
    )
    raise RangeUnfinished(
        f"The handler returned {reached}, and its range ends with {bounds.upper}: walk it with rows(), or say"
        " how far it has come with advance()."
    )
