"""All that one page shows, read in one transaction under one time limit, and shared by everyone who looks."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from threading import Lock
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import Error, connections, models
from django.utils import timezone
from django.utils.translation import get_language

from django_taskclaim import conf
from django_taskclaim.admin.control_room import failures
from django_taskclaim.claim import clock
from django_taskclaim.columns import has_ranges
from django_taskclaim.control import reading
from django_taskclaim.control.commands import open_commands
from django_taskclaim.control.installed import is_on
from django_taskclaim.doctor.blockers import reasons
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.monitoring.overview import (
    Overview,
    Worker,
    overview,
    summaries,
    workers,
)
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.ranges.strip import strip

#: Seconds for which a snapshot is shared by all who refresh the same page.
SHARED_FOR = 2.0

#: So many snapshots are remembered, the latest.
MOST = 200

#: With less time than this nothing is asked.
LEAST = timedelta(milliseconds=5)

#: Of more ranges than this no strip is drawn.
MOST_RANGES = 20_000

HOUR, DAY = timedelta(hours=1), timedelta(days=1)

#: The latest acts that a page lists.
ACTS = 12

Rows = models.QuerySet[Any]


class Snapshot:
    """What this process last read for one page, part by part."""

    def __init__(self) -> None:
        self.lock = Lock()
        self._parts: dict[str, tuple[Any, datetime]] = {}
        self._read_at = float("-inf")
        #: When the oldest part was read, where the database has not answered in time.
        self.late_since: datetime | None = None
        self.as_of = timezone.now()

    def get(self, name: str) -> Any:
        """Return a part; None where it was never read, because the database takes too long."""
        return self._parts.get(name, (None,))[0]

    @property
    def is_fresh(self) -> bool:
        """Whether it is young enough to be shown to the next who looks."""
        return clock() - self._read_at < SHARED_FOR

    def read(self, alias: str, parts: Iterator[tuple[str, Any]]) -> None:
        """Take in the *parts*, the most important first, as far as the database answers in PAGE_TIMEOUT."""
        self.as_of = now = timezone.now()
        limit = conf.duration("PAGE_TIMEOUT")
        try:
            if limit < LEAST:
                raise TimeoutError
            with server_for(connections[alias]).bounded(limit):
                for name, value in parts:
                    self._parts[name] = value, now
        except (Error, TaskClaimError, TimeoutError):
            if not connections[alias].in_atomic_block:
                connections[alias].close_if_unusable_or_obsolete()
            self.late_since = min((at for _value, at in self._parts.values()), default=now)
        else:
            self.late_since = None
        self._read_at = clock()


_snapshots: OrderedDict[tuple[str, ...], Snapshot] = OrderedDict()
_lock = Lock()


def forget() -> None:
    """Forget every snapshot; for tests."""
    _snapshots.clear()


def _current(
    key: tuple[str, ...], alias: str, parts: Iterator[tuple[str, Any]], *, share: bool
) -> Snapshot:
    """Return the snapshot under *key*, read by one thread at a time; again unless it may be shared and is fresh."""
    with _lock:
        found = _snapshots.setdefault(key, Snapshot())
        _snapshots.move_to_end(key)
        while len(_snapshots) > MOST:
            _snapshots.popitem(last=False)
    with found.lock:
        if not (share and found.is_fresh):
            found.read(alias, parts)
    return found


def snapshot_of(
    model: type[models.Model], alias: str, rows: Rows, viewer: str, *, share: bool
) -> Snapshot:
    """Return what there is to see of *model*; of *rows*, which the *viewer* may see, error texts are shown."""
    # Marks are sentences in the reader's language.
    key = (alias, model._meta.label, get_language() or "", viewer, _sql(rows))
    return _current(key, alias, _parts(model, alias, rows), share=share)


def summaries_of(alias: str, of: Sequence[type[models.Model]], *, share: bool) -> Snapshot:
    """Return a ``Summary`` of each of the models, under its label."""
    parts = ((seen.model._meta.label, seen) for seen in summaries(of, alias))
    return _current((alias, *(model._meta.label for model in of)), alias, parts, share=share)


def workers_of(alias: str) -> list[Worker] | None:
    """Return every worker that reports on the database as it is now; None where that is not learned in time."""
    parts = (("workers", found) for found in map(workers, [alias]))
    known = _current((alias, "workers"), alias, parts, share=False)
    found: list[Worker] | None = None if known.late_since else known.get("workers")
    return found


def _sql(rows: Rows) -> str:
    try:
        return str(rows.query)
    except EmptyResultSet:
        return "none"


def _parts(model: type[models.Model], alias: str, rows: Rows) -> Iterator[tuple[str, Any]]:
    """Read one part after the other, the most important first, all by one look at the database's clock."""
    seen = overview(model, alias, exact=False)
    yield "overview", seen
    yield "findings", list(reasons(seen))
    if has_ranges(model):
        yield "strip", strip(model, alias, most=MOST_RANGES)
    if is_on(alias):
        yield from _recorded(seen)
    yield "failed", failures.sample(rows, seen.now)


def _recorded(seen: Overview) -> Iterator[tuple[str, Any]]:
    """Read what the control app has written down."""
    yield "commands", {one.worker: one.command for one in open_commands(seen.alias)}
    minutes = reading.minutes(seen.model, using=seen.alias, since=seen.now - DAY)
    hour, day = (reading.slots(minutes, seen.now, span) for span in (HOUR, DAY))
    yield "hour", hour
    yield "day", day
    yield "rates", reading.rates(minutes, seen.living, seen.now)
    acts = reading.acts(seen.model, using=seen.alias, limit=ACTS)
    yield "acts", acts
    yield (
        "marks",
        reading.marks(seen.model, minutes, day, seen.pause, using=seen.alias, since=seen.now - DAY),
    )
