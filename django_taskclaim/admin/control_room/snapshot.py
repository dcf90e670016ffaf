"""All that one page shows, read in one transaction under one time limit, and shared by everyone who looks."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

#: So many snapshots are remembered, the latest, …
MOST = 50
#: … and none that nobody has looked at for so many seconds.
FORGOTTEN_AFTER = 120.0

#: With less time than this nothing is asked.
LEAST = timedelta(milliseconds=5)

#: Of more ranges than this no strip is drawn.
MOST_RANGES = 20_000

HOUR, DAY = timedelta(hours=1), timedelta(days=1)

#: The latest acts that a page lists.
ACTS = 12

Rows = models.QuerySet[Any]


@dataclass(frozen=True)
class Snapshot:
    """What this process last read for one page, part by part."""

    parts: Mapping[str, tuple[Any, datetime]] = field(default_factory=dict)
    as_of: datetime = field(default_factory=timezone.now)
    #: By ``clock()``, when the reading began.
    began: float = float("-inf")
    #: When the oldest part was read, where the database has not answered in time.
    late_since: datetime | None = None

    def get(self, name: str) -> Any:
        """Return a part; None where it was never read, because the database takes too long."""
        return self.parts.get(name, (None,))[0]

    def late(self) -> "Snapshot":
        """Return the same as what is shown while the database does not answer."""
        return replace(
            self, late_since=min((at for _, at in self.parts.values()), default=self.as_of)
        )


def read(alias: str, parts: Iterator[tuple[str, Any]], before: Snapshot) -> Snapshot:
    """Read the *parts*, the most important first, as far as the database answers in PAGE_TIMEOUT; else as *before*."""
    began, now, known = clock(), timezone.now(), dict(before.parts)
    limit, is_late = conf.duration("PAGE_TIMEOUT"), False
    try:
        if limit < LEAST:
            raise TimeoutError
        with server_for(connections[alias]).bounded(limit):
            for name, value in parts:
                known[name] = value, now
    except (Error, TaskClaimError, TimeoutError):
        is_late = True
        if not connections[alias].in_atomic_block:
            connections[alias].close_if_unusable_or_obsolete()
    found = Snapshot(known, now, began)
    return found.late() if is_late else found


class Shared:
    """The latest snapshot of one page, which one thread at a time reads."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.latest = Snapshot()
        self.used = clock()


_shared: OrderedDict[tuple[str, ...], Shared] = OrderedDict()
_lock = Lock()


def forget() -> None:
    """Forget every snapshot; for tests."""
    _shared.clear()


def _current(
    key: tuple[str, ...], alias: str, parts: Iterator[tuple[str, Any]], *, share: bool
) -> Snapshot:
    """Return the snapshot under *key*, read since this call began, or a moment before it where it may be shared.

    While another thread waits for the database for longer than a reading may take, it is the last one.
    """
    # Rows of one name may belong to several tenants, each with a schema of its own.
    key = (alias, str(getattr(connections[alias], "schema_name", "")), *key)
    arrived = clock()
    oldest = arrived - SHARED_FOR if share else arrived
    with _lock:
        shared = _shared.setdefault(key, Shared())
        shared.used = arrived
        _shared.move_to_end(key)
        while len(_shared) > MOST or next(iter(_shared.values())).used < arrived - FORGOTTEN_AFTER:
            _shared.popitem(last=False)
    if not shared.lock.acquire(timeout=2 * conf.duration("PAGE_TIMEOUT").total_seconds()):
        return shared.latest.late()
    try:
        if shared.latest.began < oldest:
            shared.latest = read(alias, parts, shared.latest)
        return shared.latest
    finally:
        shared.lock.release()


def snapshot_of(
    model: type[models.Model], alias: str, rows: Rows, viewer: str, *, share: bool
) -> Snapshot:
    """Return what there is to see of *model*; of *rows*, which the *viewer* may see, error texts are shown."""
    # Marks and findings are sentences in the reader's language, with moments of the reader's time zone.
    reader = (get_language() or "", timezone.get_current_timezone_name(), viewer)
    key = (model._meta.label, *reader, _sql(rows, alias))
    return _current(key, alias, _parts(model, alias, rows), share=share)


def summaries_of(alias: str, of: Sequence[type[models.Model]], *, share: bool) -> Snapshot:
    """Return a ``Summary`` of each of the models, under its label."""
    parts = ((seen.model._meta.label, seen) for seen in summaries(of, alias))
    return _current(tuple(model._meta.label for model in of), alias, parts, share=share)


def workers_of(alias: str) -> list[Worker] | None:
    """Return every worker that reports on the database as it is now; None where that is not learned in time."""
    parts = (("workers", found) for found in map(workers, [alias]))
    known = _current(("workers",), alias, parts, share=False)
    found: list[Worker] | None = None if known.late_since else known.get("workers")
    return found


def _sql(rows: Rows, alias: str) -> str:
    try:
        return repr(rows.query.get_compiler(alias).as_sql())
    except EmptyResultSet:
        return "none"


def _parts(model: type[models.Model], alias: str, rows: Rows) -> Iterator[tuple[str, Any]]:
    """Read one part after the other, the most important first, all by one look at the database's clock."""
    seen = overview(model, alias, exact=False)
    yield "overview", seen
    yield "findings", list(reasons(seen))
    if has_ranges(model):
        yield "strip", strip(model, alias, most=MOST_RANGES)
    yield "failed", failures.sample(rows, seen.now)
    if is_on(alias):
        yield from _recorded(seen)


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
