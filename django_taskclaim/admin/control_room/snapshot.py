"""What a page shows, read under one time limit, the most important first, and made into what its templates need."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from statistics import fmean
from threading import Lock
from time import monotonic
from typing import Any, NamedTuple, TypeVar, cast

from django.contrib.messages import get_messages
from django.core.checks import CheckMessage
from django.db import connections, models
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import get_language, ngettext
from django.utils.translation import gettext as _

from django_taskclaim import conf
from django_taskclaim.admin.control_room import failures
from django_taskclaim.admin.display import STATES, RowFacts, longest_running
from django_taskclaim.columns import has_ranges
from django_taskclaim.completion import Clear
from django_taskclaim.control import reading
from django_taskclaim.control.actions import PAUSE, RESET, RESUME
from django_taskclaim.control.models import OperatorAct, is_on
from django_taskclaim.control.reading import DAY, HOUR, Slot
from django_taskclaim.doctor import missing_table, reasons
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import format_duration
from django_taskclaim.handlers import handler_for
from django_taskclaim.monitoring.overview import Holder, Overview, overview, overviews
from django_taskclaim.monitoring.server import in_time
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets import ClaimQuerySet, Progress
from django_taskclaim.ranges import RowCounts, row_counts
from django_taskclaim.states import Status
from django_taskclaim.switch import describe_pause
from django_taskclaim.tables import WorkerProcess, scope_of
from django_taskclaim.templatetags.taskclaim import clock, number

#: The latest acts that the chart has flags for (the page lists twelve), and the processes and rows that a page lists.
ACTS, WORKERS, RUNNING = 200, 60, 8

#: Everybody who looks at a page within so many seconds sees the same snapshot of it.
SHARED_FOR = 2.0

#: How far back a chart may look, by the name in the address; the first if none is named.
RANGES = {"1h": HOUR, "6h": 6 * HOUR, "24h": DAY, "7d": 7 * DAY}

#: Acts that a chart has flags for.
MARKED = (PAUSE.name, RESUME.name, RESET.name)

Rows = ClaimQuerySet[Any]
T = TypeVar("T")


# Reading


#: When each page was read last, and what was found.
_recent: dict[Hashable, tuple[float, Any]] = {}
#: Held while a page is read; others wait, and then share it.
_reading: dict[Hashable, Lock] = defaultdict(Lock)


def shared(request: HttpRequest, page: Hashable, read: Callable[[], T]) -> T:
    """Return what *read* gives, or gave to somebody else a moment ago: it must not depend on who looks.

    A user who has just acted reads it again: the message about that is still to be shown.
    """
    # A tenant of django-tenants has tables of its own under the same names.
    schemas = tuple(getattr(one, "schema_name", None) for one in connections.all())
    # Reasons and marks are sentences with times of day.
    key = page, schemas, get_language(), timezone.get_current_timezone_name()
    with _reading[key]:
        read_at, found = _recent.get(key, (float("-inf"), None))
        if monotonic() - read_at > SHARED_FOR or len(get_messages(request)):
            for other, (was_read_at, _old) in list(_recent.items()):
                if monotonic() - was_read_at > SHARED_FOR:
                    _recent.pop(other, None)
            found = read()
            _recent[key] = monotonic(), found
    return cast(T, found)


@dataclass
class Snapshot:
    """What was read of one model; None is what was not read in time, or is not there."""

    as_of: datetime
    #: Whether the time was up before everything was read.
    is_late: bool = False
    #: What stands where something was not read.
    unread: str = field(default_factory=lambda: _("The database has not answered in time yet."))
    seen: Overview | None = None
    #: Minute by minute, where they are written down.
    hour: list[Slot] = field(default_factory=list)
    # On the page of the model alone
    findings: list[CheckMessage] | None = None
    ranges: RowCounts | None = None
    failed: failures.Sample | None = None
    #: The rows that have run longest, as people read them.
    running: list[RowFacts] | None = None
    chart: "Chart | None" = None
    forecast: str = ""
    acts: list[OperatorAct] | None = None

    def read(self, model: type[models.Model], alias: str, rows: Rows, span: timedelta) -> bool:
        """Read the parts, the most important first, with what *rows* hold only; the clock is read once."""
        self.seen = seen = overview(model, alias, exact=False)
        self.findings = list(reasons(seen))
        if has_ranges(model):
            self.ranges = row_counts(model, alias)
        self.failed = failures.sample(rows, seen.now)
        self.running = longest_running(rows, seen.now, RUNNING)
        if is_on(alias):
            minutes = reading.minutes(model, using=alias, since=seen.now - max(span, DAY))
            self.hour = reading.slots(minutes, seen.now, HOUR)
            self.acts = reading.acts(model, using=alias, limit=ACTS)
            known = reading.known_failures(model, using=alias)
            for group in self.failed.groups:
                group.known = known.get(group.id)
            for act in self.acts:
                if act.act == "mark as known":
                    act.key = act.key.partition(" ")[2]
            self.chart = chart(reading.slots(minutes, seen.now, span), self.acts)
            self.forecast = forecast(seen, self.hour, reading.slots(minutes, seen.now, DAY))
        return True

    def is_refused(self, model: type[models.Model], alias: str) -> bool:
        """Say whether a table of *model* cannot be read; then the doctor's words tell it. False once the time is up."""
        if timezone.now() - self.as_of >= conf.duration("PAGE_TIMEOUT"):
            return False
        found = in_time(alias, lambda: list(missing_table(model, alias)))
        if found:
            self.unread, self.findings = found[0].msg, [*found, *(self.findings or ())]
        return bool(found)


def snapshot_of(model: type[models.Model], alias: str, rows: Rows, span: timedelta) -> Snapshot:
    """Return as much of a snapshot as the database tells in time, with a chart of the last *span*."""
    found = Snapshot(timezone.now())
    is_read = in_time(alias, partial(found.read, model, alias, rows, span))
    found.is_late = not is_read and not found.is_refused(model, alias)
    return found


def read_cards(
    places: Sequence[tuple[type[models.Model], str]],
) -> dict[type[models.Model], Snapshot]:
    """Return as much of models, each on its database, as the databases tell in time."""
    found = {model: Snapshot(timezone.now()) for model, alias in places}
    for alias in set(dict(places).values()):
        there = {model: one for model, one in found.items() if (model, alias) in places}
        while there and not in_time(alias, partial(_read_cards, there, alias)):
            first = next((model for model, one in there.items() if one.seen is None), None)
            if first is None or not there[first].is_refused(first, alias):
                for one in there.values():
                    one.is_late = True
                break
            # Its table cannot be read: the other models are read without it.
            del there[first]
    return found


def _read_cards(found: Mapping[type[models.Model], Snapshot], alias: str) -> bool:
    """Read what the overview shows of the models of one database."""
    for seen in overviews([*found], alias):
        found[seen.model].seen = seen
    if is_on(alias):
        written = reading.minutes(*found, using=alias, since=seen.now - HOUR)
        for model, one in found.items():
            mine = [row for row in written if row.model == scope_of(model)]
            one.hour = reading.slots(mine, seen.now, HOUR)
    return True


# Whether claims flow, and if not, who or what stopped them


class State(NamedTuple):
    """One word, the sign beside it, so that colour is not the only difference, and the sentence that goes with it."""

    #: Also the name of its look.
    kind: str
    lamp: str
    word: str
    sentence: str


#: The kinds of states, the worst first.
KINDS = [
    "unknown",
    "unserved",
    "throttled",
    "ready",
    "paused",
    "pausing",
    "running",
    "open",
    "idle",
    "done",
]


def state_of(known: Snapshot) -> State:
    """Return the state of a model's claims."""
    if (seen := known.seen) is None:
        return State("unknown", "?", _("UNKNOWN"), known.unread)
    if seen.pause is not None:
        sentence = describe_pause(seen.pause)
        if seen.is_finishing:
            return State("pausing", "❚❚", _("PAUSING"), sentence)
        return State("paused", "❚❚", _("PAUSED"), sentence)
    if not seen.progress.left and seen.progress.complete == seen.progress.total > 0:
        return State("done", "✓", _("DONE"), _("All rows are complete."))
    for_people = not seen.living and handler_for(seen.model) is None
    if not seen.progress.left:
        alone = _("There is nothing to do, and no worker is alive.")
        sentence = _("There is nothing to do.") if seen.living or for_people else alone
        return State("idle", "✓", _("IDLE"), sentence)
    if (stop := seen.stopped_by) is not None:
        until = _("THROTTLED until %(time)s") % {"time": clock(stop.until)}
        return State("throttled", "◔", until, f"{stop.source}: {stop.reason}")
    if for_people:
        sentence = _("Rows wait for people, or for code of your own: no worker serves this model.")
        return State("open", "▷", _("OPEN"), sentence)
    if not seen.living and seen.due:
        return State("unserved", "!", _("NO WORKER"), _("Rows are due, and no worker is alive."))
    if not seen.living:
        return State("ready", "▷", _("READY"), _("Rows wait, and no worker is alive."))
    alive = ngettext(
        "%(n)s worker process is alive.", "%(n)s worker processes are alive.", len(seen.living)
    )
    return State("running", "▶", _("RUNNING"), alive % {"n": number(len(seen.living))})


# How far the rows have got, and when they will be through


#: The states in the order of the bar.
BAR = (Status.COMPLETE, Status.FAILED, Status.PROCESSING, Status.OPEN, Status.PAUSED)


def segments(progress: Progress) -> list[tuple[Status, str, int]]:
    """Return the states as the bar and the list below it show them: with their words, and how many rows there are."""
    return [(status, STATES[status], getattr(progress, status.value)) for status in BAR]


# The worker processes


def worker_lines(
    known: Snapshot, *, sees_all: bool
) -> list[tuple[WorkerProcess, Holder | None, str]]:
    """Return the processes that serve the model, each with what it holds, if anything, and its last error.

    A user who may not see all rows sees only the class of an error: its text may be about another row.
    """
    seen, found = known.seen, []
    if seen is None:
        return []
    holders = {holder.name: holder for holder in seen.holders}
    for worker in seen.workers[:WORKERS]:
        # The error of a worker of several models may be about a model that this user may not see.
        sees_error = sees_all and len(worker.labels) == 1
        error = worker.last_error if sees_error else worker.last_error.partition(": ")[0]
        found.append((worker, holders.get(worker.name), error))
    return found


# Throughput as the page draws it, no script is needed for that, and what it lets expect


class Chart(NamedTuple):
    """What slots of one length show."""

    #: All of the time, oldest first, and those in which anything came to its end, the latest first.
    slots: Sequence[Slot]
    worked: list[Slot]
    #: Rows a second at most.
    top: float
    #: What people did meanwhile, oldest first, by where its flag stands in the chart, in percent.
    marks: dict[int, list[OperatorAct]]

    @property
    def ticks(self) -> Sequence[Slot]:
        """The slots whose time stands below the chart."""
        return self.slots[:: len(self.slots) // 4]


def chart(slots: Sequence[Slot], acts: Sequence[OperatorAct]) -> Chart:
    """Return what there is to draw, with flags for some of the *acts*, which come newest first."""
    worked = [slot for slot in reversed(slots) if slot.tries]
    begins, marks = slots[0].at, dict[int, list[OperatorAct]]()
    span = (slots[1].at - begins) * len(slots)
    for act in reversed(acts):
        # Flags at every fifth percent do not overlap on a phone; acts that lie closer together share one.
        place = (as_utc(act.at) - begins) // (span / 20) * 5
        if act.act in MARKED and 0 <= place < 100:
            marks.setdefault(place, []).append(act)
    return Chart(slots, worked, top=max(slot.rate for slot in slots), marks=marks)


def average_rate(slots: Sequence[Slot]) -> float:
    """Return rows a second, on average of the slots in which rows were tried, but for those in which that began."""
    rates = [slot.rate for before, slot in pairwise(slots) if before.tries and slot.tries]
    return fmean(rates or [0.0])


def forecast(seen: Overview, hour: Sequence[Slot], day: Sequence[Slot]) -> str:
    """Return about how long the rest will take, as fast as it went in the last slots in which rows were worked on.

    Nothing without a living worker that may claim, and where done rows are opened again.
    """
    progress, completion = seen.progress, policy_for(seen.model).completion
    rests = seen.pause or seen.stopped_by or not seen.living or not progress.left
    if rests or isinstance(completion, Clear):
        return ""
    # Of ten minutes, else of an hour, else of a day. The last slot is not over yet.
    for slots in (hour[-11:-1], hour[:-1], day[:-1]):
        if rate := average_rate(slots):
            left = timedelta(seconds=min(max(1.0, progress.left / rate), 3e9))
            return _("about %(time)s left") % {"time": format_duration(left)}
    return ""
