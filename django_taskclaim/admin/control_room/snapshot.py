"""All that one page shows, read in one transaction under one time limit, the most important first."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db import Error, connections, models
from django.utils import timezone

from django_taskclaim import conf
from django_taskclaim.admin.control_room import failures
from django_taskclaim.columns import has_ranges
from django_taskclaim.control import reading
from django_taskclaim.control.commands import open_commands
from django_taskclaim.control.installed import is_on
from django_taskclaim.doctor.blockers import reasons
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.monitoring.overview import Overview, overview
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.ranges.manager import strip

#: With less time than this nothing is asked.
LEAST = timedelta(milliseconds=5)

#: Of more ranges than this no strip is drawn.
MOST_RANGES = 20_000

HOUR, DAY = timedelta(hours=1), timedelta(days=1)

#: The latest acts that a page lists.
ACTS = 12

Rows = models.QuerySet[Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Snapshot:
    """What was read for one page, part by part."""

    parts: Mapping[str, Any]
    as_of: datetime
    #: Whether the time was up before all parts were read.
    is_late: bool

    def get(self, name: str) -> Any:
        """Return a part; None where it was not read in time."""
        return self.parts.get(name)


def read(alias: str, parts: Iterator[tuple[str, Any]]) -> Snapshot:
    """Read the *parts* one after the other, as far as the database answers in PAGE_TIMEOUT."""
    now, known, is_late = timezone.now(), {}, False
    limit = conf.duration("PAGE_TIMEOUT")
    try:
        if limit < LEAST:
            raise TimeoutError
        with server_for(connections[alias]).bounded(limit):
            for name, value in parts:
                known[name] = value
    except (Error, TaskClaimError, TimeoutError):
        is_late = True
        if not connections[alias].in_atomic_block:
            connections[alias].close_if_unusable_or_obsolete()
    return Snapshot(known, now, is_late)


def in_time(alias: str, ask: Callable[[], T]) -> T | None:
    """Return what *ask* reads from the database; None where it does not answer in PAGE_TIMEOUT."""
    found: T | None = read(alias, (("answer", ask()) for _once in range(1))).get("answer")
    return found


def parts_of(model: type[models.Model], alias: str, rows: Rows) -> Iterator[tuple[str, Any]]:
    """Read what there is to see of *model*, by one look at the database's clock; error texts of *rows* only."""
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
    yield "acts", reading.acts(seen.model, using=seen.alias, limit=ACTS)
    yield (
        "marks",
        reading.marks(seen.model, minutes, day, seen.pause, using=seen.alias, since=seen.now - DAY),
    )
