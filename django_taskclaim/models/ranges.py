"""``RangeMixin``: rows that are ranges of another model's keys, for tables too large for a status on each row."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, ClassVar, Self

from django_taskclaim.conf import NUMBER_OR_NONE
from django_taskclaim.fields import RangeCountField, RangeTextField
from django_taskclaim.models.mixins import ClaimBase
from django_taskclaim.querysets.scope import Rows
from django_taskclaim.ranges import RangeManager, walking
from django_taskclaim.ranges.keys import Keys, source_of


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
    lower = RangeTextField(null=True, default=None, editable=False)
    #: Included. Moves down where the range is split.
    upper = RangeTextField(editable=False)
    #: The last key that is done; NULL before the first.
    checkpoint = RangeTextField(null=True, default=None, editable=False)
    #: The number under which the range was planned; 0 for the front of one that was split. A plan goes on behind the
    #: last.
    position = RangeCountField(db_index=True, editable=False)
    #: About how many rows there are, and how many are done.
    rows_planned = RangeCountField(default=0, db_default=0, editable=False)
    rows_done = RangeCountField(default=0, db_default=0, editable=False)
    #: The transactions that may still add rows to a range of a growing source; NULL for none.
    open_transactions = RangeTextField(null=True, default=None, editable=False)

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
        ``rows_done``. Raises ClaimLost where the claim is lost, RangeSplit where *key* belongs to others now,
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
