"""The worker processes of one model, as people watch them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from django.db import models
from django.utils.translation import gettext as _
from django.utils.translation import pgettext_lazy

from django_taskclaim import conf
from django_taskclaim.admin.control_room import words
from django_taskclaim.admin.control_room.asking import Asking
from django_taskclaim.formatting import format_duration
from django_taskclaim.monitoring.overview import Holder, Overview, Worker, workers
from django_taskclaim.policy import policy_for
from django_taskclaim.states import Status
from django_taskclaim.worker import heartbeat

#: So many processes are listed, the living first.
LISTED = 60

#: A report may be so late before anybody is told.
LATE = timedelta(seconds=2)


def somebody_works(aliases: Iterable[str], model: type[models.Model] | None = None) -> bool:
    """Say whether a worker process of *model*, or with None of any, is alive; True where a database does not tell."""
    for alias in aliases:
        known = Asking(alias, "*").ask("workers", partial(workers, alias)).value
        if known is None:
            return True
        if any(one.alive and (model is None or one.serves(model)) for one in known):
            return True
    return False


_STATES = {
    "running": pgettext_lazy("worker", "working"),
    "paused": pgettext_lazy("worker", "paused"),
    "draining": pgettext_lazy("worker", "draining"),
    "stopping": pgettext_lazy("worker", "stopping"),
}


@dataclass(frozen=True, slots=True)
class Line:
    """One worker process."""

    name: str
    host: str
    pid: int
    version: str
    state: str
    since: str
    up: str
    held: str
    done: str
    failed: str
    rate: str
    lease: str
    #: ``fresh``, ``ageing``, ``late``; empty where nothing is held.
    lease_level: str
    last_error: str
    alive: bool
    #: Seconds until the rows of a dead one come back; None for a living one, or where it held none.
    returns_in: int | None
    silence: str
    #: Whether it left rows that nobody alive puts back.
    is_stranded: bool = False
    #: What it was told to do and has not done yet.
    order: str = ""


def lines(
    model: type[models.Model],
    serving: Sequence[Worker],
    seen: Overview | None,
    orders: Mapping[str, str],
    rates: Mapping[str, float] | None,
    *,
    now: datetime,
    sees_all: bool,
) -> list[Line]:
    """Return the processes *serving* the model in the order given, with what is known of their rows and orders.

    Who does not see all rows learns of errors no more than their class: the text may be another row's.
    """
    held = {} if seen is None else {holder.name: holder for holder in seen.holders}
    found = [_line(model, worker, held.get(worker.name), now, rates) for worker in serving[:LISTED]]
    if not sees_all:
        found = [replace(line, last_error=_class_of(line.last_error)) for line in found]
    if seen is not None and Status.PROCESSING in seen.estimated:
        # Of so many running rows not all were looked at; each process has reported its own.
        reported = {worker.name: worker.held for worker in serving if len(worker.labels) == 1}
        found = [
            replace(line, held=words.number(reported[line.name])) if line.name in reported else line
            for line in found
        ]
    if not any(worker.alive for worker in serving):
        found = [
            replace(line, returns_in=None, is_stranded=line.returns_in is not None)
            for line in found
        ]
    return [replace(line, order=str(_ORDERS.get(orders.get(line.name, ""), ""))) for line in found]


def _class_of(error: str) -> str:
    return error.partition(": ")[0]


def _line(
    model: type[models.Model],
    worker: Worker,
    holder: Holder | None,
    now: datetime,
    rates: Mapping[str, float] | None,
) -> Line:
    up = max(now - worker.started_at, timedelta(seconds=1))
    lease, level = _lease(model, holder, now)
    silence = now - worker.seen_at
    return Line(
        name=worker.name,
        host=worker.host,
        pid=worker.pid,
        version=worker.version,
        state=_state(worker, silence),
        since=words.clock(worker.started_at),
        up=format_duration(up),
        held=words.number(holder.rows if holder is not None else 0),
        done=words.number(worker.done),
        failed=words.number(worker.failed),
        rate=_rate(worker, up, rates),
        lease=lease,
        lease_level=level,
        # Of several models: it may be of one that this page's onlookers must not see.
        last_error=worker.last_error if len(worker.labels) == 1 else _class_of(worker.last_error),
        alive=worker.alive,
        returns_in=None if worker.alive else _returns_in(model, holder, now),
        silence=words.ago(silence),
    )


def _state(worker: Worker, silence: timedelta) -> str:
    """Return what a process does; of one that has missed a report that is not known, only when it was last heard of."""
    if not worker.alive:
        return _("silent")
    usual = timedelta(seconds=heartbeat.EVERY if worker.held else heartbeat.EVERY_IDLE)
    if silence > usual + LATE:
        return _("last heard of %(ago)s") % {"ago": words.ago(silence)}
    return str(_STATES.get(worker.state, worker.state))


_ORDERS = {
    "drain": pgettext_lazy("order", "told to drain"),
    "stop": pgettext_lazy("order", "told to stop"),
    "release": pgettext_lazy("order", "told to give back"),
}


def _rate(worker: Worker, up: timedelta, rates: Mapping[str, float] | None) -> str:
    """Say how fast a process is; without records that is its average, and a silent one does nothing."""
    if not worker.alive:
        return "–"
    average = worker.done / up.total_seconds()
    return words.rate(average if rates is None else rates.get(worker.name, 0.0))


def _lease(model: type[models.Model], holder: Holder | None, now: datetime) -> tuple[str, str]:
    """Say how much of the lease is left. Renewal is due at three quarters; under a quarter something is wrong."""
    if holder is None or holder.next_expiry is None:
        return "", ""
    left = holder.next_expiry - now
    if left <= timedelta(0):
        return _("ended %(time)s ago") % {"time": format_duration(left)}, "late"
    share = left / policy_for(model).lease
    level = "fresh" if share > 0.5 else "ageing" if share > 0.25 else "late"
    return _("%(time)s left") % {"time": format_duration(left)}, level


def _returns_in(model: type[models.Model], holder: Holder | None, now: datetime) -> int | None:
    """Return after how many seconds at most the reaper has put the rows of a dead process back."""
    if holder is None:
        return None
    end = now if holder.next_expiry is None else holder.next_expiry
    wait = conf.duration("REAPER_INTERVAL") + policy_for(model).renewal_interval
    return max(0, round((end + wait - now).total_seconds()))
