"""Working through a claimed range: a chunk and the checkpoint behind it are one transaction.

A free worker may split a range: its holder goes on with the front, the other takes the tail. The holder locks its range
while it works on a chunk, so the end of the range never moves during a chunk.
"""

import logging
import threading
import time
from collections.abc import Generator
from functools import partial
from typing import Any
from weakref import WeakSet

from django.db import IntegrityError, models
from django.db.models import F

from django_taskclaim.claim import Claim, carried_claim, clock, show, standing_claim
from django_taskclaim.db.sql import Change
from django_taskclaim.exceptions import RangeInterrupted, RangeUnfinished, RetriesExhausted
from django_taskclaim.formatting import first_line
from django_taskclaim.querysets.scope import Rows, is_running, refuse_old_snapshots, run
from django_taskclaim.querysets.writes import raise_lost
from django_taskclaim.ranges.keys import Range, RangeTarget, key_at, reached
from django_taskclaim.states import Status

logger = logging.getLogger("django_taskclaim")

# Splitting

#: How many of the ranges with most rows left are tried.
TRIED = 3

#: The fewest rows that each part of a split range has by default.
WORTH_SPLITTING = 1_000

#: Seconds to wait for the holder of a range to finish its chunk.
CHUNK_WAIT = 5

#: The models for which the database has refused the tail of a range: this process asks for no other.
_never_split: set[type[models.Model]] = set()


def split_largest(target: RangeTarget, at_least: int = WORTH_SPLITTING) -> bool:
    """Split the running range with most rows left, and say whether there was one with *at_least* rows for two."""
    running = target.ranges.filter(is_running(target.claims.columns))
    largest_first = running.order_by((F("rows_planned") - F("rows_done")).desc(), "pk")
    keys = list(largest_first.values_list("pk", flat=True)[:TRIED])
    return any(split(target, pk, at_least) for pk in keys)


def split(target: RangeTarget, pk: object, at_least: int = 1) -> bool:
    """Split the open or running range *pk* in the middle of what is left; the tail is a new open range.

    Returns False and changes nothing if either part would have fewer than *at_least* rows, if the range stays locked
    for longer than CHUNK_WAIT, or if the tail may not have what the user's own columns of the range hold.
    """
    # Without a lock first, so that the holder of a range that is too small never waits for this.
    seen = target.ranges.filter(pk=pk).first()
    is_refused = target.model in _never_split
    if is_refused or seen is None or _middle(target, seen, at_least) is None:
        return False
    try:
        return run(target.claims, partial(_split, target, pk, at_least), lock_wait=CHUNK_WAIT)
    except RetriesExhausted:
        return False
    except IntegrityError as error:
        _never_split.add(target.model)
        text = "Ranges of %s are not split any more, because the database refuses one: %s"
        logger.warning(text, target.model._meta.label, first_line(error))
        return False


def _middle(target: RangeTarget, range_: Range, at_least: int) -> tuple[str, int, int] | None:
    """Return the last key of the front half of what is left, and how many rows both halves have; None for no split."""
    status = getattr(range_, target.claims.columns.status.attname)
    if status not in (Status.OPEN, Status.PROCESSING) or range_.checkpoint == range_.upper:
        return None
    rows = target.rows().filter(target.left_in(range_))
    # Counted, for rows come and go since a range was planned.
    left = rows.count()
    front = left // 2
    middle = key_at(rows, front - 1) if front >= at_least else None
    return None if middle is None else (target.encode(middle), front, left - front)


def _split(target: RangeTarget, pk: object, at_least: int) -> bool:
    range_ = target.locked(pk)
    # Again under the lock: chunks may have been done since, perhaps beyond the middle.
    middle = None if range_ is None else _middle(target, range_, at_least)
    if middle is None:
        return False
    key, front, tail = middle
    # The tail has the user's own columns as the range itself has them.
    guarded = target.claims.columns.guarded_names
    own = {
        field.attname: getattr(range_, field.attname)
        for field in target.model._meta.concrete_fields
        if not field.primary_key and field.name not in guarded
    }
    bounds = {"lower": key, "upper": range_.upper, "position": range_.position}
    planned = range_.rows_done + front
    target.ranges.filter(pk=pk).update(upper=key, position=0, rows_planned=planned)
    target.ranges.bulk_create([target.model(**own, **bounds, rows_planned=tail)])
    return True


# Chunks

#: Rows of the first chunk, and of the largest.
FIRST, LARGEST = 1_000, 50_000

#: A chunk has at most so many times the rows of the one before, and at least that part of them.
STEP = 8

#: How many seconds a chunk should take.
TARGET = 0.5

#: On a database with one writer, the pause after a chunk: a share of the chunk's time, and its longest in seconds.
SHARE_OF_OTHERS, MOST_OF_OTHERS = 0.05, 0.05

#: The columns of a range that its holder sees change.
SHOWN = ("lower", "upper", "checkpoint", "position", "rows_planned", "rows_done")

#: By model: the size of the next chunk, so that it takes about as long as it should.
_sizes: dict[type[models.Model], int] = {}


#: By thread, under ``walks``: its walks that somebody still keeps.
_begun = threading.local()


def walk(row: models.Model, size: int | None) -> Generator[Rows, None, None]:
    """Return the rows of the range in chunks; what is done with each is committed with the checkpoint behind it."""
    chunks = _walk(row, size)
    vars(_begun).setdefault("walks", WeakSet()).add(chunks)
    return chunks


def end_walks() -> None:
    """Roll back the chunks that this thread has begun and left.

    A walk that a handler keeps in a variable lives as long as the traceback of the handler's error, and its transaction
    stays open that long. Another thread may free the traceback, and would then roll back its own transaction.
    """
    for chunks in list(vars(_begun).get("walks", ())):
        chunks.close()


def _walk(row: Range, size: int | None) -> Generator[Rows, None, None]:
    claim, target = _claim_on(row)
    while True:
        _refuse_interrupted(row, claim, target)
        began = clock()
        wanted = size or _sizes.get(target.model, FIRST)
        with target.claims.dialect.own_transaction():
            _lock(row, claim, target)
            if row.checkpoint == row.upper:
                return
            rows, last, found = _next_chunk(row, target, wanted)
            if found:
                yield rows
            _write_checkpoint(row, claim, target, last, found)
        claim.extend(began)
        if row.checkpoint == row.upper:
            return
        took = max(clock() - began, 0.001)
        if size is None:
            grown = wanted * min(STEP, max(1 / STEP, TARGET / took))
            _sizes[target.model] = max(1, min(LARGEST, int(grown)))
        if target.claims.dialect.has_one_writer:
            # Other writers retry only now and then, so they need a pause to get the lock.
            time.sleep(min(MOST_OF_OTHERS, took * SHARE_OF_OTHERS))


def _claim_on(row: models.Model) -> tuple[Claim, RangeTarget]:
    claim = standing_claim(row)
    if claim is None:
        raise_lost([row], [])
    target = RangeTarget(type(row), claim.alias)
    refuse_old_snapshots(target.claims, "The rows of a range are all that others have committed")
    return claim, target


def _refuse_interrupted(row: models.Model, claim: Claim, target: RangeTarget) -> None:
    """Raise RangeInterrupted where the worker asks for the range; one that takes too long is split first."""
    if claim.lost:
        raise_lost([row], [])
    if claim.cancel_reason:
        if claim.too_long:
            split(target, claim.pk)
        raise RangeInterrupted(0, f"{claim.cancel_reason}; the range goes on at its checkpoint")


def _lock(row: models.Model, claim: Claim, target: RangeTarget) -> None:
    """Lock the range for the current transaction, and let *row* show it as it is now; ClaimLost where it is lost."""
    now = target.locked(claim.pk, claim.token) if standing_claim(row) is not None else None
    if now is None:
        raise_lost([row], [])
    _show(row, target, {name: getattr(now, name) for name in SHOWN})


def _show(row: models.Model, target: RangeTarget, values: dict[str, Any]) -> None:
    shown: dict[Any, Any] = {target.model._meta.get_field(name): values[name] for name in values}
    show([row], shown | {target.claims.columns.expires_at: models.DEFERRED})


def _next_chunk(row: Range, target: RangeTarget, size: int) -> tuple[Rows, str, int]:
    """Return the next rows of a range, the key that they end with, and their number."""
    rows = row.source_rows().using(target.claims.alias).order_by("pk")
    rest = rows.filter(target.left_in(row))
    last = key_at(rest, size - 1)
    if last is None:
        # Fewer than wanted: the range ends here.
        return rest.order_by(), row.upper, rest.count()
    # Unordered: an UPDATE … ORDER BY takes half as long again on MySQL, twice as long on MariaDB.
    part = rows.filter(target.between(target.decode(reached(row)), last))
    return part.order_by(), target.encode(last), size


# The checkpoint


def advance(row: models.Model, key: object, rows: int) -> None:
    """Write the checkpoint of a claimed range; see ``RangeMixin.advance``."""
    claim, target = _claim_on(row)
    write = partial(_advance, row, claim, target, target.encode(key), rows)
    run(target.claims, write)


def _advance(row: Range, claim: Claim, target: RangeTarget, last: str, rows: int) -> None:
    known = row.upper
    _lock(row, claim, target)
    # Keys are compared by the database alone: is there a row between them?
    key, upper, before = (target.decode(text) for text in (last, row.upper, reached(row)))
    if before is not None and target.rows(key, before).exists():
        raise ValueError(
            f"{last} lies before the checkpoint {reached(row)}: rows would be done again."
        )
    if target.rows(upper, key).exists():
        if row.upper == known:
            raise ValueError(f"{last} lies beyond the end of the range, {row.upper}.")
        raise RangeInterrupted(
            0,
            f"the range was split, and {last} is now in the part of others; it goes on at its checkpoint",
        )
    _write_checkpoint(row, claim, target, last, rows)


def _write_checkpoint(row: Range, claim: Claim, target: RangeTarget, last: str, rows: int) -> None:
    """Write how far the range has come, renew its lease, and forget its failures: it makes progress."""
    claims, values = target.claims, {"checkpoint": last, "rows_done": row.rows_done + rows}
    sets = {**values, "expires_at": claim.lease, **({"attempts": 0} if claim.attempts else {})}
    change, fence = Change(claims.setting(sets)), claims.table.standing(claim.token)
    if not claims.dialect.write(claims.table, [claim.pk], change, fence):
        raise_lost([row], [])
    if claims.columns.attempts is not None:
        claim.attempts = 0
    _show(row, target, values)


# The end of a claim


def refuse_unfinished(row: Range) -> None:
    """Raise RangeUnfinished if rows of the claimed range are left that its handler has not done."""
    claim = carried_claim(row)
    if claim.ended:
        return
    now = RangeTarget(type(row), claim.alias).ranges.filter(pk=claim.pk).first()
    if now is None or now.checkpoint == now.upper:
        return
    raise RangeUnfinished(
        f"The handler returned at {now.checkpoint or 'the beginning'}, and its range ends with {now.upper}: walk it"
        " with rows(), or say how far it has come with advance()."
    )
