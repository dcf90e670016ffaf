"""Ranges of keys: planned over the primary key of a source, worked through in chunks, split where workers idle.

Here are ``RangeMixin``, for tables too large for a status on each row, its manager, and plans: keys are cut into ranges
by walking the source's primary key, by hand, or by workers that find none due. ``keys`` compares and stores keys and
finds the ranges of a model, ``walking`` does chunks and checkpoints, and splits.

A transaction takes its key early and commits late: a planner that has read key 3 may have passed key 2, whose row was
not visible yet. So a range of a growing source is due only when nobody can commit a row among its keys any more. If the
database can name the open transactions, each range waits for those that were open after its keys were read. Otherwise
it waits for the model's ``commits_within``: the longest time between a key and the commit of its row.
"""

import json
import uuid
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

from django.db import models
from django.db.models import Sum
from django.db.models.fields import AutoFieldMixin

from django_taskclaim.awaitables import async_twin
from django_taskclaim.conf import DURATION, NUMBER_OR_NONE, or_none
from django_taskclaim.db.sql import PREPARED
from django_taskclaim.fields import NEVER_WAITED, OPEN_ENDED, RangeCountField, RangeTextField
from django_taskclaim.mixins import ClaimBase
from django_taskclaim.querysets.manager import ClaimManager, ClaimQuerySet
from django_taskclaim.querysets.scope import Rows, is_open, refuse_old_snapshots, run
from django_taskclaim.ranges import walking
from django_taskclaim.ranges.keys import Key, Keys, Part, RangeTarget, key_at, source_of

M = TypeVar("M", bound=models.Model)

#: Rows of a range unless the caller or the model says otherwise.
CHUNK_SIZE = 100_000

#: Ranges that are stored together, and that a worker plans at once.
BATCH = 16

#: The last planned key and its position, where the plan goes on.
End = tuple[str | None, int]


class RangeQuerySet(ClaimQuerySet[M]):
    """A queryset of ranges; to inherit from, as ``ClaimQuerySet`` is."""

    def plan(self, *, chunk_size: int | None = None) -> int:
        """Store ranges of *chunk_size* rows for all keys of the source that have none yet, and return how many.

        Without a size it is the model's ``plan_ahead``, or 100,000. Ranges of a ``growing`` source are due later; those
        of earlier calls that have waited long enough become due. TypeError where that moment is not known,
        RuntimeError in a transaction of the caller's that does not see what others commit.

        Goes on behind the last planned key, so it may be repeated and broken off at any moment, and run twice at
        once. Commits as it goes, unless called in a transaction.
        """
        self._for_write = True
        NUMBER_OR_NONE.check(chunk_size, "chunk_size")
        model: Any = self.model
        target, size = RangeTarget(model, self.db), chunk_size or model.plan_ahead or CHUNK_SIZE
        make_due(target)
        added = 0
        while (stored := plan_more(target, size)) is not None:
            added += stored
        return added

    vars(plan)["alters_data"] = True
    aplan = async_twin(plan)


if TYPE_CHECKING:
    # A manager's methods and a queryset's are typed differently by django-stubs.
    class RangeManager(RangeQuerySet[M], ClaimManager[M]):  # type: ignore[misc,override]
        """The same in words that type checkers understand: a manager and a queryset in one."""

else:

    class RangeManager(ClaimManager.from_queryset(RangeQuerySet)):
        """The manager that ``RangeMixin`` brings."""


class RangeMixin(ClaimBase):
    """A range of keys of *source*, beyond ``lower`` up to and with ``upper``; for use with ``TaskMixin``.

    The columns hold keys as JSON. ``lower_key``, ``upper_key`` and ``checkpoint_key`` are the keys themselves.
    """

    #: The model whose rows are worked through, or its label, ``"photos.Photo"``; on the same database.
    source: ClassVar[Any] = None

    #: Rows come behind the newest key all the time: a range is due once none can come inside it any more.
    growing: ClassVar[bool] = False
    #: Rows are committed within this time after their key was given (seconds or timedelta), for databases that cannot
    #: name the open transactions, and for keys that are given outside the transaction that inserts them.
    commits_within: ClassVar[float | timedelta | None] = None
    #: Rows of each range that workers plan by themselves once none is due; None leaves planning to ``plan()``.
    plan_ahead: ClassVar[int | None] = None

    #: Excluded; NULL where the range begins with the first row.
    lower = RangeTextField(null=True, default=None)
    #: Included. Moves down where the range is split.
    upper = RangeTextField()
    #: The last key that is done; NULL before the first.
    checkpoint = RangeTextField(null=True, default=None)
    #: The number under which the range was planned; 0 for the front of one that was split. A plan goes on behind the
    #: last.
    position = RangeCountField(db_index=True)
    #: About how many rows there are, and how many are done.
    rows_planned = RangeCountField(default=0, db_default=0)
    rows_done = RangeCountField(default=0, db_default=0)
    #: The transactions that may still add rows to a range of a growing source; NULL for none.
    open_transactions = RangeTextField(null=True, default=None)

    objects: ClassVar[RangeManager[Self]] = RangeManager()

    class Meta:
        abstract = True

    @classmethod
    def source_rows(cls) -> Rows:
        """Return the rows that are worked through, in any order; override it to leave some out.

        What it selects may change by the work itself (``filter(width=None)``), but not by that of others meanwhile.
        """
        return source_of(cls)._default_manager.all()

    def rows(self, size: int | None = None) -> Iterator[Any]:
        """Yield what is left of the claimed range, chunk by chunk, each inside a transaction of its own.

        A chunk is an unordered queryset; the chunks follow each other in the order of keys.

        The body of the loop may use ``update()``, ``delete()`` or the instances. Its writes on this database are
        committed with the checkpoint behind them when the loop goes on, and rolled back when it is left by
        an exception, ``break`` or ``return``. Chunks have *size* rows, or as many, up to 50,000, as take half a second.
        Each checkpoint renews the lease.

        Raises ClaimLost where the claim is lost, and RangeInterrupted between two chunks where the worker asks for the
        range: it stops, or the model was paused, or the range takes longer than its timeout. RuntimeError in a
        transaction of the caller's that does not see what others commit.
        """
        NUMBER_OR_NONE.check(size, "size")
        return walking.walk(self, size)

    def advance(self, key: object, *, rows: int = 0) -> None:
        """Write that the claimed range is done up to and with *key* of the source; for loops that ``rows()`` is not.

        To be called in the transaction of what was done, so that both are committed or neither. *rows* adds to
        ``rows_done``. Raises ClaimLost where the claim is lost, RangeInterrupted where *key* belongs to others now,
        and ValueError for a key outside what is left of the range; the transaction must then be rolled back.
        RuntimeError in one that does not see what others commit.
        """
        walking.advance(self, key, rows)

    @property
    def lower_key(self) -> Any:
        """The key beyond which the range begins; None where it begins with the first row."""
        return self._keys().decode(self.lower)

    @property
    def upper_key(self) -> Any:
        """The last key of the range, as it was when the range was last looked at."""
        return self._keys().decode(self.upper)

    @property
    def checkpoint_key(self) -> Any:
        """The last key that is done; None before the first checkpoint."""
        return self._keys().decode(self.checkpoint)

    def _keys(self) -> Keys:
        return Keys(source_of(type(self)), self._state.db or "default")


class RowCounts(NamedTuple):
    """How many rows of the source the ranges have, about, and how many are done."""

    planned: int
    done: int


def row_counts(model: type[models.Model], alias: str) -> RowCounts:
    """Return the rows of all ranges of *model*."""
    rows: Rows = models.QuerySet(model, using=alias)
    totals = rows.aggregate(planned=Sum("rows_planned"), done=Sum("rows_done"))
    return RowCounts(totals["planned"] or 0, totals["done"] or 0)


# Plans


def plan_more(
    target: RangeTarget, chunk_size: int, *, until: Key | None = None, only_full: bool = False
) -> int | None:
    """Store the next ranges of *chunk_size* rows, BATCH of them, and return how many; None where no key is left.

    Plans no key beyond *until*, if that is given, and with *only_full* no range of fewer rows. If another planner has
    stored ranges meanwhile, this one drops what it has found.
    """
    refuse_unplannable(target)
    refuse_old_snapshots(target.claims, "plan() goes on behind what others have planned")
    end = end_of_plan(target)
    parts = target.parts(target.rows(until=until), chunk_size, target.decode(end[0]))
    found = [part for part in islice(parts, BATCH) if part.rows == chunk_size or not only_full]
    return run(target.claims, partial(_store, target, end, found)) if found else None


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
        if plan_more(target, ahead, until=until, only_full=only_full):
            return True
    return not opened.exists() and walking.split_largest(target)


def end_of_source(model: type[models.Model], alias: str) -> Key | None:
    """Return the newest key of the source, as ``open_more`` takes it; None where it is empty."""
    return key_at(RangeTarget(model, alias).rows().reverse(), 0)


# Late commits


def _commits_within(model: Any) -> timedelta | None:
    return or_none(DURATION).check(model.commits_within, f"{model._meta.label}.commits_within")


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
    # All ranges that were stored together wait for the same transactions.
    marks = open_ended.values_list("open_transactions", flat=True).distinct()
    waited_for = [names for names in marks if names]
    # After the marks were read: what is not open now has ended since they were made.
    still_open = dialect.open_transactions() if waited_for else None
    if still_open is None:
        return 0
    over = [names for names in waited_for if still_open.isdisjoint(json.loads(names))]
    due: Any = {columns.not_before.name: NEVER_WAITED, "open_transactions": None}
    ended = open_ended.filter(open_transactions__in=over)
    return run(target.claims, partial(ended.update, **due))
