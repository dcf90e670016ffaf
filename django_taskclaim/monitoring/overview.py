"""What is going on with one model on one database: for ``claimstatus``, ``claimdoctor`` and the control room.

Everything here is read without locks, by the database's own clock, and may be a moment old when it is shown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import connections, models
from django.db.models import Count, Min, Q

from django_taskclaim.columns import ClaimColumns, claim_columns, has_ranges
from django_taskclaim.db import dialect_for
from django_taskclaim.fields import NEVER_WAITED, OPEN_ENDED, as_utc, is_quarantine_mark
from django_taskclaim.limits import ModelLimits, Stops, stops_among
from django_taskclaim.models import Switch, WorkerProcess
from django_taskclaim.monitoring.counts import MOST, count_rows
from django_taskclaim.querysets import ClaimQuerySet, Progress
from django_taskclaim.querysets.scope import is_due, is_expired, is_running, never_waited
from django_taskclaim.states import WORKER_MARK, Status
from django_taskclaim.tables import scope_of, stop_scopes

#: Workers report every 5 s; one that missed three reports counts as gone.
ALIVE_WITHIN = timedelta(seconds=20)

#: What stands in place of a process where a throttle holds for all.
EVERYONE = "everyone"


class Throttle(NamedTuple):
    """An automatic stop of one model's claims, by one process or by everyone, until a moment in UTC."""

    process: str
    source: str
    reason: str
    until: datetime


class Holder(NamedTuple):
    """Who holds running rows; the batches of one worker process are taken together."""

    name: str
    rows: int
    #: When the first of the leases ends, None where a row has no expiry.
    next_expiry: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The state of one model's rows at the moment ``now``, and what stops or limits claims; moments are in UTC.

    Where ``open`` is among the estimated states, ``due`` is an estimate as well.
    """

    model: type[models.Model]
    alias: str
    now: datetime
    progress: Progress
    #: The pause that stops claims of this model now.
    pause: Switch | None = None
    #: Whether unexpired rows of workers, or of code like theirs, still run in spite of that pause.
    is_finishing: bool = False
    #: The automatic stops in force, each of one process or of everyone, the one that holds longest first.
    throttles: list[Throttle] = field(default_factory=list)
    #: What all who claim keep to together.
    limits: ModelLimits = field(default_factory=ModelLimits)
    #: The model's own switch with its overrides; an empty one where nothing was ever stored.
    switch: Switch = field(default_factory=Switch)
    #: The worker processes that serve this model, the living first.
    workers: list[WorkerProcess] = field(default_factory=list)
    due: int = 0
    #: Since when the oldest due row is due: its waiting time is over, or it was created, where ``created_column`` says
    #: so. None where no row is due, or nothing says since when.
    due_since: datetime | None = None
    #: When the first of the waiting rows becomes due.
    next_due: datetime | None = None
    #: Ranges of keys among which rows may still be committed.
    open_ended: int = 0
    #: Who holds rows, and whose leases have ended; empty where the holders were not asked for.
    expired: int = 0
    expired_since: datetime | None = None
    holders: list[Holder] = field(default_factory=list)

    @property
    def stopped_by(self) -> Throttle | None:
        """The automatic stop that keeps every living process from claiming, and ends first; None where one may claim.

        Where no process is alive, that of everyone. A process may claim again once the last of its stops has ended.
        """
        names = [worker.name for worker in self.living] or [EVERYONE]
        stops = [[one for one in self.throttles if one.process in (n, EVERYONE)] for n in names]
        return min((one[0] for one in stops), key=lambda one: one.until) if all(stops) else None

    @property
    def living(self) -> list[WorkerProcess]:
        """The worker processes that are alive."""
        return [worker for worker in self.workers if worker.alive]

    @property
    def waiting(self) -> int:
        """Open rows that are not due yet; rows may be added between the two counts."""
        return max(0, self.progress.open - self.due)


def overview(model: type[models.Model], alias: str, *, exact: bool = True) -> Overview:
    """Return what is going on with *model* on the database *alias*.

    Unless it must be *exact*, a large table is not read: its ``estimated`` states are, counted in part and estimated.
    """
    return next(overviews([model], alias, exact=exact, holders=True))


def overviews(
    of: Sequence[type[models.Model]], alias: str, *, exact: bool = False, holders: bool = False
) -> Iterator[Overview]:
    """Yield what is going on with each of the models; what stops and who serves them is asked once for all."""
    now = database_time(alias)
    scopes = {scope for model in of for scope in stop_scopes(model)}
    switches = {row.scope: row for row in Switch.objects.using(alias).filter(scope__in=scopes)}
    known = workers(alias, now)
    for model in of:
        rows: Any = ClaimQuerySet(model, using=alias)
        columns, progress = claim_columns(model), count_rows(model, alias, exact=exact)
        stops = stops_among(switches, model, now)
        pause = next(iter(stops.pauses), None)
        by_worker = {f"{columns.claimed_by.name}__contains": WORKER_MARK}
        yield Overview(
            model=model,
            alias=alias,
            now=now,
            progress=progress,
            pause=pause,
            is_finishing=bool(pause and progress.processing)
            and rows.filter(is_running(columns) & ~is_expired(columns), **by_worker).exists(),
            throttles=_throttles(scope_of(model), known, stops, now),
            limits=stops.limits,
            switch=stops.own,
            workers=[worker for worker in known if worker.serves(model)],
            **_waiting(rows.open(), progress, now),
            **(_running(rows, columns) if holders else {}),
        )


def _throttles(
    label: str, processes: Sequence[WorkerProcess], stops: Stops, now: datetime
) -> list[Throttle]:
    """Return the automatic stops in force, those of everyone among them whether a worker is alive or not."""
    found = [
        Throttle(worker.name, one["source"], one["reason"], datetime.fromisoformat(one["until"]))
        for worker in processes
        for one in worker.throttles
        if one["label"] == label
    ]
    stop, closed = stops.throttle, stops.closed
    if stop is not None and stop.until is not None:
        source = stop.by or EVERYONE
        found.append(Throttle(EVERYONE, source, stop.reason, as_utc(stop.until)))
    if closed is not None and closed.until is not None:
        found.append(Throttle(EVERYONE, "hours", closed.reason, as_utc(closed.until)))
    found = [one for one in found if one.until > now]
    return sorted(found, key=lambda one: one.until, reverse=True)


def database_time(alias: str) -> datetime:
    """Return what the clock of the database says, in UTC."""
    return dialect_for(connections[alias]).current_time()


def workers(alias: str, now: datetime | None = None) -> list[WorkerProcess]:
    """Return every worker that has reported on the database lately, the living first."""
    now = now or database_time(alias)
    found = list(WorkerProcess.objects.using(alias).order_by("name"))
    for worker in found:
        worker.alive = now - as_utc(worker.seen_at) <= ALIVE_WITHIN
    return sorted(found, key=lambda worker: not worker.alive)


def created_column(model: type[models.Model]) -> "models.DateTimeField[Any, Any] | None":
    """Return the first column that keeps when a row was created (``auto_now_add``); None where there is none."""
    dates = (one for one in model._meta.concrete_fields if isinstance(one, models.DateTimeField))
    return next((one for one in dates if one.auto_now_add), None)


def seconds_due(row: models.Model) -> float | None:
    """Return for how many seconds a row just claimed had been due; None where nothing says since when."""
    columns, created = claim_columns(type(row)), created_column(type(row))
    claimed_at, since, born = (
        row.__dict__.get(field.attname) if field is not None else None
        for field in (columns.claimed_at, columns.not_before, created)
    )
    if since is None or as_utc(since) == NEVER_WAITED:
        since = born
    if claimed_at is None or since is None or is_quarantine_mark(since):
        return None
    return max(0.0, (as_utc(claimed_at) - as_utc(since)).total_seconds())


def _waiting(opened: Any, progress: Progress, now: datetime) -> dict[str, Any]:
    """Return which of the open rows are due, since when, and when the next will be."""
    model, beyond = opened.model, 0
    columns, created = claim_columns(model), created_column(model)
    if Status.OPEN in progress.estimated:
        # The first in the order of the claim index; many due ones stand for all that follow.
        opened = opened.order_by(*columns.order)[:MOST]
        beyond = max(0, progress.open - MOST)
    status = columns.status.name
    asked: dict[str, Any] = {"due": Count(status, filter=is_due(columns, now))}
    if created is not None:
        asked["created"] = Min(created.name, filter=never_waited(columns))
    if columns.not_before is not None:
        name = columns.not_before.name
        asked |= {
            "waited": Min(name, filter=Q(**{f"{name}__lte": now, f"{name}__gt": NEVER_WAITED})),
            "next": Min(name, filter=Q(**{f"{name}__gt": now, f"{name}__lt": OPEN_ENDED})),
            "open_ended": Count(status, filter=Q(**{name: OPEN_ENDED})),
        }
    found = opened.aggregate(**asked)
    since = [as_utc(found[name]) for name in ("created", "waited") if found.get(name)]
    return {
        "due": found["due"] + beyond,
        "due_since": min(since, default=None),
        "next_due": as_utc(found["next"]) if found.get("next") else None,
        "open_ended": found.get("open_ended", 0) if has_ranges(model) else 0,
    }


def _running(rows: Any, columns: ClaimColumns) -> dict[str, Any]:
    """Return which running rows have expired, and who holds rows, the largest holder first.

    The batches of each worker process are taken together.
    """
    expiry, late = columns.expires_at.name, is_expired(columns)
    running = rows.filter(is_running(columns)).order_by().values_list(columns.claimed_by.name)
    batches = running.annotate(
        rows=Count("*"),
        first=Min(expiry),
        expired=Count(columns.status.name, filter=late),
        since=Min(expiry, filter=late),
    )
    by_name: dict[str, Holder] = {}
    expired, expired_since = 0, []
    for holder, count, first, ended, since in batches:
        name = (holder or "nobody").partition(WORKER_MARK)[0]
        known = by_name.get(name, Holder(name, 0, None))
        ends = [end for end in (known.next_expiry, first and as_utc(first)) if end]
        by_name[name] = Holder(name, known.rows + count, min(ends, default=None))
        expired += ended
        expired_since += [as_utc(since)] if since else []
    return {
        "expired": expired,
        "expired_since": min(expired_since, default=None),
        "holders": sorted(by_name.values(), key=lambda one: (-one.rows, one.name)),
    }
