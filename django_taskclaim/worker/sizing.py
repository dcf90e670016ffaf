"""How many rows a claim asks for: what takes about a second, and never more than a third of the lease."""

from datetime import timedelta

from django_taskclaim import conf
from django_taskclaim.handlers import Handler

#: How long the rows of a claim shall take where nobody said how many to claim: what a process that dies holds back.
TARGET = timedelta(seconds=1)
#: So many rows at most where nobody said so: one statement's worth.
LARGEST = 500
#: What was known before weighs as much as this many new rows.
REMEMBERED = 50


class BatchSize:
    """The size of the next claim of one model's rows in one process, learnt from how long its rows took.

    A size given by an override, the command line, the handler or the settings is the most, for rows of any duration.
    Elsewhere the first claim asks for the default, and once as many rows are done as were asked for a claim may ask for
    twice as many. What a batch handler takes says little of one row, so its size stays what it is.
    """

    def __init__(self, handler: Handler, threads: int) -> None:
        self._handler = handler
        #: Rows that are worked on side by side.
        self._abreast = handler.concurrency if handler.is_async else threads
        #: Seconds that one row takes; None before the first.
        self._each: float | None = None
        self._last = handler.batch_size
        #: Rows done since the size is what it is.
        self._done = 0

    def note(self, rows: int, seconds: float) -> None:
        """Take into account that so many rows were done in so many seconds, all together."""
        self._done += rows
        new = seconds / rows
        if self._each is None:
            self._each = new
        else:
            self._each += (new - self._each) * rows / (rows + REMEMBERED)

    def most(self, stored: int | None, lease: timedelta | None = None) -> int:
        """Return how many rows to ask for, at least one; *stored* and *lease* are overrides."""
        handler = self._handler
        is_given = bool(stored or handler.own_batch_size) or conf.is_given("BATCH_SIZE")
        size = stored or handler.batch_size
        if self._each and not handler.batch:
            if not is_given and not handler.has_ranges:
                allowed = self._last if self._done < self._last else min(LARGEST, 2 * self._last)
                size = min(allowed, self._within(TARGET))
            size = max(1, min(size, self._within((lease or handler.lease) / 3)))
        if size != self._last:
            self._last, self._done = size, 0
        return size

    def _within(self, time: timedelta) -> int:
        """Return how many rows can be worked off in that time."""
        assert self._each
        return int(min(conf.MAX_BATCH_SIZE, time.total_seconds() * self._abreast / self._each))
