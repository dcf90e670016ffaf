"""What a page shows, read under one time limit, the most important first, and made into what its templates need."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from threading import Lock
from time import monotonic
from typing import Any, TypeVar

from django.contrib.messages import get_messages
from django.core.checks import CheckMessage
from django.db import Error, connections, models
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import get_language, ngettext, pgettext, pgettext_lazy
from django.utils.translation import gettext as _

from django_taskclaim import conf
from django_taskclaim.admin.control_room import failures
from django_taskclaim.columns import has_ranges
from django_taskclaim.completion import Clear
from django_taskclaim.control import reading
from django_taskclaim.control.actions import WORKER_ACTIONS
from django_taskclaim.control.commands import open_commands
from django_taskclaim.control.models import OperatorAct, is_on
from django_taskclaim.control.reading import Mark, Slot
from django_taskclaim.doctor.blockers import reasons
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import format_duration
from django_taskclaim.models import Switch, Throttle, WorkerProcess
from django_taskclaim.monitoring.overview import (
    EVERYONE,
    Holder,
    Overview,
    Summary,
    overview,
)
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.policy import RENEWALS_PER_LEASE, policy_for
from django_taskclaim.ranges import RowCounts, row_counts
from django_taskclaim.states import Status
from django_taskclaim.tables import EVERY_MODEL
from django_taskclaim.templatetags.taskclaim_admin import clock, number

HOUR, DAY = timedelta(hours=1), timedelta(days=1)

#: The latest acts, and the processes, that a page lists.
ACTS, WORKERS = 12, 60

#: Units of the bar's whole width; a state with any rows gets at least LEAST of them.
WIDTH, LEAST = 1000.0, 4.0

#: No forecast is made of less than this share.
FORESEEABLE = 0.01

#: Everybody who looks at a page within so many seconds sees the same snapshot of it.
SHARED_FOR = 2.0

Rows = models.QuerySet[Any]
T = TypeVar("T")


# Reading


def in_time(alias: str, ask: Callable[[], T]) -> T | None:
    """Return what *ask* reads from the database; None where that is not finished in PAGE_TIMEOUT."""
    try:
        with server_for(connections[alias]).bounded(conf.duration("PAGE_TIMEOUT")):
            return ask()
    except (Error, TaskClaimError):
        if not connections[alias].in_atomic_block:
            connections[alias].close_if_unusable_or_obsolete()
        return None


class _Recent:
    """What was read last for one page, and when. Others wait while it is read, and then share it."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.found: Any = None
        self.read_at = float("-inf")

    @property
    def is_old(self) -> bool:
        return monotonic() - self.read_at > SHARED_FOR


_recent: dict[Hashable, _Recent] = defaultdict(_Recent)


def shared(request: HttpRequest, page: Hashable, read: Callable[[], T]) -> T:
    """Return what *read* gives, or gave to somebody else a moment ago: it must not depend on who looks.

    A user who has just acted reads it again: the message about that is still to be shown.
    """
    for key in [key for key, one in list(_recent.items()) if one.is_old]:
        _recent.pop(key, None)
    # Reasons and marks are sentences with times of day.
    recent = _recent[page, get_language(), timezone.get_current_timezone_name()]
    with recent.lock:
        if recent.is_old or len(get_messages(request)):
            recent.found = read()
            recent.read_at = monotonic()
        found: T = recent.found
    return found


@dataclass
class Snapshot:
    """What was read for the page of one model; None is what was not read in time, or is not there."""

    as_of: datetime
    #: Whether the time was up before everything was read.
    is_late: bool = False
    seen: Overview | None = None
    findings: list[CheckMessage] | None = None
    ranges: RowCounts | None = None
    failed: failures.Sample | None = None
    #: The command that each worker has not obeyed yet.
    commands: dict[str, str] = field(default_factory=dict)
    hour: list[Slot] | None = None
    day: list[Slot] | None = None
    rates: dict[str, float] | None = None
    acts: list[OperatorAct] | None = None
    marks: list[Mark] = field(default_factory=list)

    def read(self, model: type[models.Model], alias: str, rows: Rows) -> bool:
        """Read the parts, the most important first, with the error texts of *rows* only; the clock is read once."""
        self.seen = seen = overview(model, alias, exact=False)
        self.findings = list(reasons(seen))
        if has_ranges(model):
            self.ranges = row_counts(model, alias)
        self.failed = failures.sample(rows, seen.now)
        if is_on(alias):
            self.commands = {one.worker: one.command for one in open_commands(alias)}
            minutes = reading.minutes(model, using=alias, since=seen.now - DAY)
            self.hour, self.day = (reading.slots(minutes, seen.now, span) for span in (HOUR, DAY))
            self.rates = reading.rates(minutes, seen.living, seen.now)
            self.acts = reading.acts(model, using=alias, limit=ACTS)
            self.marks = reading.marks(model, minutes, using=alias, since=seen.now - DAY)
        return True


def snapshot_of(model: type[models.Model], alias: str, rows: Rows) -> Snapshot:
    """Return as much of a snapshot as the database tells in time."""
    found = Snapshot(timezone.now())
    found.is_late = not in_time(alias, partial(found.read, model, alias, rows))
    return found


# Whether claims flow, and if not, who or what stopped them


@dataclass(frozen=True, slots=True)
class State:
    """One word, and the sentences that go with it."""

    #: ``running``, ``ready``, ``idle``, ``pausing``, ``paused``, ``held`` or ``unknown``: also the name of its look.
    kind: str
    word: str
    sentence: str
    lines: tuple[str, ...] = ()
    #: Whether the model's own switch is off, so that "resume" turns it on.
    is_paused: bool = False
    #: Whether the switch of all models is off.
    all_are_paused: bool = False

    @property
    def lamp(self) -> str:
        """The sign beside the word, so that colour is not the only difference."""
        return {"running": "▶", "ready": "▷", "idle": "✓", "held": "◔", "unknown": "?"}.get(
            self.kind, "❚❚"
        )


def state_of(seen: Summary | None) -> State:
    """Return the state of a model's claims; None means that it was not read."""
    if seen is None:
        return State("unknown", _("UNKNOWN"), _("The database has not answered in time yet."))
    if seen.pause is not None:
        return _paused(seen, seen.pause)
    living = seen.living
    if not living:
        return State("ready", _("READY"), _("The switch is on, and no worker is alive."))
    # A process may claim again once the last of its throttles has ended; the longest come first.
    longest: dict[str, Throttle] = {}
    for worker in living:
        for throttle in seen.throttles:
            if throttle.process in (worker.name, EVERYONE):
                longest.setdefault(worker.name, throttle)
    holding = list(longest.values())
    if len(holding) == len(living):
        first = min(holding, key=lambda one: as_utc(one.until))
        until = _("HELD until %(time)s") % {"time": clock(first.until)}
        return State("held", until, f"{first.source}: {first.reason}")
    alive = ngettext(
        "%(n)s worker process is alive.", "%(n)s worker processes are alive.", len(living)
    )
    alive %= {"n": number(len(living))}
    if not seen.progress.open and not seen.progress.processing:
        return State("idle", _("IDLE"), _("There is nothing to do."), (alive,))
    return State("running", _("RUNNING"), alive)


def _paused(seen: Summary, pause: Switch) -> State:
    every, running = pause.scope == EVERY_MODEL, seen.progress.processing
    left = ngettext("%(n)s row still running", "%(n)s rows still running", running)
    if not seen.is_finishing:
        left = ngettext("%(n)s row held by people", "%(n)s rows held by people", running)
    lines = [left % {"n": number(running)}] if running else []
    if every:
        lines.append(_("All models are paused, not only this one."))
    return State(
        "pausing" if seen.is_finishing else "paused",
        _("PAUSING") if seen.is_finishing else _("PAUSED"),
        pause_sentence(pause),
        tuple(lines),
        is_paused=not every,
        all_are_paused=every,
    )


def pause_sentence(pause: Switch) -> str:
    """Return ``by Ada since 14:02 “deploy”, until 15:00``."""
    parts = []
    if pause.by:
        parts.append(_("by %(who)s") % {"who": pause.by})
    if pause.paused_at is not None:
        parts.append(_("since %(time)s") % {"time": clock(pause.paused_at)})
    if pause.reason:
        parts.append(f"“{pause.reason}”")
    until = [_("until %(time)s") % {"time": clock(pause.until)}] if pause.until else []
    return ", ".join(filter(None, [" ".join(parts), *until]))


# How far the rows have got, and when they will be through


@dataclass(frozen=True, slots=True)
class Segment:
    """One state in the bar and in the list below it."""

    name: str
    label: str
    count: int
    x: float
    width: float
    estimated: bool


@dataclass(frozen=True, slots=True)
class Bar:
    """The states, and what they come to."""

    seen: Summary
    segments: list[Segment]
    #: What becomes of rows that are done, where they cannot be counted; the page then shows what is left.
    outcome: str
    #: ``between 40 min and 1 h 5 min left``, empty where nothing can be said.
    forecast: str

    @property
    def left(self) -> int:
        return self.seen.progress.open + self.seen.progress.processing

    @property
    def share(self) -> float:
        """The share of rows that are complete."""
        progress = self.seen.progress
        return progress.complete / progress.total if progress.total else 0.0


def bar_of(seen: Summary | None, hour: Sequence[Slot] = (), day: Sequence[Slot] = ()) -> Bar | None:
    """Return the bar, None where nothing was ever counted. *hour* and *day* are slots of throughput."""
    if seen is None:
        return None
    note = policy_for(seen.model).completion.note
    return Bar(seen, _segments(seen), _(note) if note else "", forecast(seen, _rates(hour, day)))


def _segments(seen: Summary) -> list[Segment]:
    progress = seen.progress
    counts = {
        Status.COMPLETE: (pgettext("rows", "complete"), progress.complete),
        Status.FAILED: (pgettext("rows", "failed"), progress.failed),
        Status.PROCESSING: (pgettext("rows", "running"), progress.processing),
        Status.OPEN: (pgettext("rows", "waiting"), progress.open),
        Status.PAUSED: (pgettext("rows", "paused"), progress.paused),
    }
    # What would be too narrow to see takes some of the others' width.
    share = {
        status: max(LEAST, WIDTH * count / progress.total) if count else 0.0
        for status, (_label, count) in counts.items()
    }
    segments, x, whole = [], 0.0, sum(share.values()) or WIDTH
    for status, (label, count) in counts.items():
        width = share[status] * WIDTH / whole
        is_estimate = status.value in seen.estimated
        segments.append(Segment(status.value, label, count, x, width, is_estimate))
        x += width
    return segments


def _rates(hour: Sequence[Slot], day: Sequence[Slot]) -> list[float]:
    """Return rows a second while work went on: of the last minutes, the last hour and the last day.

    The last slot of each is not over yet, so it is left out.
    """
    # Work in a few of the day's long slots may have filled none of them.
    spans = ((hour[-11:-1], 1), (hour[:-1], 1), (day[:-1], 6))
    # Slots without a try, such as a night of pause, do not count. Work did not fill the slot in which it began.
    found = []
    for slots, least in spans:
        rates = [slot.rate for before, slot in pairwise(slots) if before.tries and slot.tries]
        if len(rates) >= least and any(rates):
            found.append(sum(rates) / len(rates))
    return found


def forecast(seen: Summary, rates: Sequence[float]) -> str:
    """Return how long the rest will take, as a range; nothing until a hundredth is done, unless done rows vanish."""
    progress, completion = seen.progress, policy_for(seen.model).completion
    left = progress.open + progress.processing
    is_early = completion.keeps and progress.fraction < FORESEEABLE
    if not left or not rates or is_early or isinstance(completion, Clear):
        return ""
    soonest, latest = (_rounded(left / rate) for rate in (max(rates), min(rates)))
    if latest <= soonest * 1.15:
        return _("about %(time)s left") % {"time": format_duration(latest)}
    return _("between %(soonest)s and %(latest)s left") % {
        "soonest": format_duration(soonest),
        "latest": format_duration(latest),
    }


def _rounded(seconds: float) -> timedelta:
    """Round to what is meant: five seconds, a minute, or ten of them."""
    step = 5 if seconds < 120 else 60 if seconds < 7200 else 600
    return timedelta(seconds=max(step, round(min(seconds, 3e9) / step) * step))


# The worker processes


_WORKER_STATES = {
    "running": pgettext_lazy("worker", "working"),
    "paused": pgettext_lazy("worker", "paused"),
    "draining": pgettext_lazy("worker", "draining"),
    "stopping": pgettext_lazy("worker", "stopping"),
    "silent": pgettext_lazy("worker", "silent"),
}


@dataclass(frozen=True, slots=True)
class Line:
    """One worker process, and what is known of its rows of the model."""

    worker: WorkerProcess
    state: str
    #: The command that it has not done yet.
    command: str
    last_error: str
    up: timedelta
    silence: timedelta
    #: Rows a second; None of a silent one.
    rate: float | None
    held: int = 0
    #: ``fresh``, ``ageing``, ``late`` or ``ended``; of a dead one ``returning``, or ``stranded`` where nobody alive
    #: puts its rows back; empty where nothing is held.
    lease: str = ""
    #: Until the lease ends, since it has ended, or until the rows of a dead one come back.
    lease_time: timedelta = timedelta()


def lines(
    seen: Overview | None,
    commands: Mapping[str, str],
    rates: Mapping[str, float] | None,
    *,
    sees_all: bool,
) -> list[Line]:
    """Return the processes that serve the model, with what is known of their rows and commands.

    A user who may not see all rows sees only the class of an error: its text may be about another row.
    """
    if seen is None:
        return []
    holders = {holder.name: holder for holder in seen.holders}
    found = []
    for worker in seen.workers[:WORKERS]:
        up = max(seen.now - as_utc(worker.started_at), timedelta(seconds=1))
        average = (
            worker.rows_done / up.total_seconds() if rates is None else rates.get(worker.name, 0.0)
        )
        state = worker.state if worker.alive else "silent"
        command = commands.get(worker.name)
        # The error of a worker of several models may be about a model that this user may not see.
        sees_error = sees_all and len(worker.model_labels) == 1
        line = Line(
            worker=worker,
            state=str(_WORKER_STATES.get(state, state)),
            command=str(WORKER_ACTIONS[command].done) if command else "",
            last_error=worker.last_error if sees_error else worker.last_error.partition(": ")[0],
            up=up,
            silence=seen.now - as_utc(worker.seen_at),
            rate=average if worker.alive else None,
            **_held(seen, worker, holders.get(worker.name)),
        )
        found.append(line)
    return found


def _held(seen: Overview, worker: WorkerProcess, holder: Holder | None) -> dict[str, Any]:
    """Return what a process holds of the model, and how its leases stand."""
    if holder is None:
        return {}
    left = holder.next_expiry - seen.now if holder.next_expiry else timedelta()
    length = (seen.switch and seen.switch.lease) or policy_for(seen.model).lease
    if not worker.alive:
        left += conf.duration("REAPER_INTERVAL") + length / RENEWALS_PER_LEASE
        level = "returning" if seen.living else "stranded"
    elif left <= timedelta():
        level = "ended"
    else:
        # Renewal is due at three quarters; under a quarter something is wrong.
        level = "fresh" if left > length / 2 else "ageing" if left > length / 4 else "late"
    return {"held": holder.rows, "lease": level, "lease_time": left}
