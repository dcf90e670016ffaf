"""The worker processes of one model, as people watch them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from django.utils.translation import gettext as _
from django.utils.translation import pgettext_lazy

from django_taskclaim import conf
from django_taskclaim.admin.localized import ago
from django_taskclaim.control.actions import WORKER_ACTIONS
from django_taskclaim.monitoring.overview import Overview, Worker
from django_taskclaim.policy import RENEWALS_PER_LEASE, policy_for
from django_taskclaim.states import Status
from django_taskclaim.worker import heartbeat

#: So many processes are listed, the living first.
LISTED = 60

#: A report may be so late before the page says so.
LATE = timedelta(seconds=2)

_STATES = {
    "running": pgettext_lazy("worker", "working"),
    "paused": pgettext_lazy("worker", "paused"),
    "draining": pgettext_lazy("worker", "draining"),
    "stopping": pgettext_lazy("worker", "stopping"),
}


@dataclass(frozen=True, slots=True)
class Line:
    """One worker process, and what is known of its rows of the model."""

    worker: Worker
    held: int
    #: What it does, and the command that it has not done yet.
    state: str
    command: str
    last_error: str
    up: timedelta
    silence: timedelta
    #: Rows a second; None of a silent one.
    rate: float | None
    #: How much of the lease is left, negative once it has ended; None where nothing is held.
    lease_left: timedelta | None = None
    #: ``fresh``, ``ageing`` or ``late``. Renewal is due at three quarters; under a quarter something is wrong.
    lease_level: str = ""
    #: Seconds until the rows of a dead one come back; None for a living one, or where it held none.
    returns_in: int | None = None
    #: Whether it left rows that nobody alive puts back.
    is_stranded: bool = False

    @property
    def lease_ended(self) -> bool:
        """Whether a lease of its rows is over."""
        return self.lease_left is not None and self.lease_left <= timedelta()


def lines(
    seen: Overview | None,
    commands: Mapping[str, str],
    rates: Mapping[str, float] | None,
    *,
    sees_all: bool,
) -> list[Line]:
    """Return the processes that serve the model, with what is known of their rows and commands.

    Who does not see all rows learns of errors no more than their class: the text may be another row's.
    """
    if seen is None:
        return []
    return [_line(seen, worker, commands, rates, sees_all) for worker in seen.workers[:LISTED]]


def _line(
    seen: Overview,
    worker: Worker,
    commands: Mapping[str, str],
    rates: Mapping[str, float] | None,
    sees_all: bool,
) -> Line:
    up, silence = max(seen.now - worker.started_at, timedelta(seconds=1)), seen.now - worker.seen_at
    alone = len(worker.labels) == 1
    holder = next((one for one in seen.holders if one.name == worker.name), None)
    held = holder.rows if holder else 0
    if alone and Status.PROCESSING in seen.estimated:
        # Of so many running rows not all were looked at; each process has reported its own.
        held = worker.held
    left = holder.next_expiry - seen.now if holder and holder.next_expiry else None
    lease = (seen.switch and seen.switch.lease) or policy_for(seen.model).lease
    wait = conf.duration("REAPER_INTERVAL") + lease / RENEWALS_PER_LEASE
    returns_in = max(0, round(((left or timedelta()) + wait).total_seconds()))
    is_lost = holder is not None and not worker.alive
    average = worker.done / up.total_seconds() if rates is None else rates.get(worker.name, 0.0)
    return Line(
        worker=worker,
        held=held,
        state=_state(worker, silence),
        command=str(WORKER_ACTIONS[commands[worker.name]].pending)
        if worker.name in commands
        else "",
        # Of several models: it may be of one that this page's viewers must not see.
        last_error=worker.last_error
        if alone and sees_all
        else worker.last_error.partition(": ")[0],
        up=up,
        silence=silence,
        rate=average if worker.alive else None,
        lease_left=left,
        lease_level="" if left is None else _level(left / lease),
        returns_in=returns_in if is_lost and seen.living else None,
        is_stranded=is_lost and not seen.living,
    )


def _level(share: float) -> str:
    return "fresh" if share > 0.5 else "ageing" if share > 0.25 else "late"


def _state(worker: Worker, silence: timedelta) -> str:
    """Return what a process does; of one that has missed a report only when it was last heard of."""
    if not worker.alive:
        return _("silent")
    usual = timedelta(seconds=heartbeat.EVERY if worker.held else heartbeat.EVERY_IDLE)
    if silence > usual + LATE:
        return _("last heard of %(ago)s") % {"ago": ago(silence)}
    return str(_STATES.get(worker.state, worker.state))
