"""What is going on with one model on one database: for ``claimstatus``, ``claimdoctor`` and the control room.

Everything here is read without locks, by the database's own clock, and may be a moment old when it is shown.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import connections, models
from django.db.models import Count, Min, Q
from django.db.models.functions import Substr

from django_taskclaim.columns import ClaimColumns, claim_columns, has_ranges
from django_taskclaim.db import dialect_for
from django_taskclaim.fields import NEVER_WAITED, OPEN_ENDED, as_utc
from django_taskclaim.formatting import with_source
from django_taskclaim.limits.model_limits import ModelLimits, limits_by
from django_taskclaim.links import is_companion, key_text, source_link
from django_taskclaim.models import Switch, Throttle, WorkerProcess
from django_taskclaim.monitoring.counts import MOST, RowCounts, count_rows
from django_taskclaim.querysets import ClaimQuerySet, Progress
from django_taskclaim.querysets.conditions import is_due, is_expired, is_running
from django_taskclaim.states import WORKER_MARK, Status
from django_taskclaim.tables import (
    own_scopes,
    scope_of,
    scopes_over,
    stop_scopes,
    throttle_scope,
)
from django_taskclaim.throttling.records import EVERYONE

#: Workers report every 5 s, idle ones every 10; one that missed two reports or more counts as gone.
ALIVE_WITHIN = timedelta(seconds=20)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds running rows; the batches of one worker process are taken together."""

    name: str
    rows: int
    #: When the first of the leases ends, None where a row has no expiry.
    next_expiry: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """How far one model's rows have got at the moment ``now``, and what stops or limits claims; moments are in UTC."""

    model: type[models.Model]
    alias: str
    now: datetime
    progress: Progress
    #: The states whose numbers are estimates.
    estimated: frozenset[str] = frozenset()
    #: The pause that stops claims of this model now.
    pause: Switch | None = None
    #: The automatic stops in force, each of one process or of everyone, the one that holds longest first.
    throttles: list[Throttle] = field(default_factory=list)
    #: What all who claim keep to together.
    limits: list[ModelLimits] = field(default_factory=list)
    #: The model's own switch with its overrides; None where nothing was ever stored.
    switch: Switch | None = None
    #: The worker processes that serve this model, the living first.
    workers: list["Worker"] = field(default_factory=list)

    @property
    def living(self) -> list["Worker"]:
        """The worker processes that are alive."""
        return [worker for worker in self.workers if worker.alive]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview(Summary):
    """The state of one model's rows, with what is due and who holds rows.

    Where ``processing`` is among the estimated states, ``expired`` and the holders' rows are those of the first MOST
    running rows: there are so many at least. Where ``open`` is, ``due`` is an estimate as well.
    """

    due: int
    #: Of the due rows that had been put off, when the first became due; None where none had. Of others no column tells.
    due_since: datetime | None
    #: When the first of the waiting rows becomes due.
    next_due: datetime | None
    expired: int
    expired_since: datetime | None
    holders: list[Holder] = field(default_factory=list)
    #: Ranges of keys among which rows may still be committed.
    open_ended: int = 0

    @property
    def waiting(self) -> int:
        """Open rows that are not due yet."""
        return self.progress.open - self.due

    @property
    def next_free(self) -> datetime | None:
        """When the first running lease ends unless it is renewed."""
        return min((h.next_expiry for h in self.holders if h.next_expiry is not None), default=None)


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process by its own report."""

    name: str
    labels: tuple[str, ...]
    state: str
    started_at: datetime
    seen_at: datetime
    held: int
    done: int
    failed: int
    last_error: str
    alive: bool
    host: str = ""
    pid: int = 0
    version: str = ""

    def serves(self, model: type[models.Model]) -> bool:
        """Say whether the worker claims rows of *model*."""
        return model._meta.label_lower in {label.lower() for label in self.labels}


def overview(model: type[models.Model], alias: str, *, exact: bool = True) -> Overview:
    """Return what is going on with *model* on the database *alias*.

    Unless it must be *exact*, a large table is not read: its ``estimated`` states are, counted in part and estimated.
    """
    (seen,) = summaries([model], alias, exact=exact)
    rows: Any = ClaimQuerySet(model, using=alias)
    columns = claim_columns(model)
    bounded = Status.OPEN in seen.estimated
    dueness = _dueness(_next(rows, columns) if bounded else rows.open(), columns, seen.now)
    beyond = max(0, seen.progress.open - MOST) if bounded else 0
    crowded = Status.PROCESSING in seen.estimated
    running = _first_running(rows, columns, seen.now) if crowded else _running(rows, columns)
    return Overview(
        **{name.name: getattr(seen, name.name) for name in fields(Summary)},
        due=dueness.due + beyond,
        due_since=dueness.since,
        next_due=dueness.next,
        open_ended=dueness.open_ended,
        expired=running.expired,
        expired_since=running.since,
        holders=running.holders,
    )


def summaries(
    of: Sequence[type[models.Model]], alias: str, *, exact: bool = False
) -> Iterator[Summary]:
    """Yield how far each of the models has got; what stops and who serves them is asked once for all."""
    now = database_time(alias)
    scopes = {scope for model in of for scope in stop_scopes(model)}
    switches = {row.scope: row for row in Switch.objects.using(alias).filter(scope__in=scopes)}
    throttles = Throttle.objects.using(alias).filter(label__in=map(scope_of, of), until__gt=now)
    holding = list(throttles.order_by("-until", "process"))
    known = workers(alias, now)
    for model in of:
        counts = RowCounts(_progress(model, alias)) if exact else count_rows(model, alias)
        pauses = (switches.get(scope) for scope in scopes_over(model))
        yield Summary(
            model=model,
            alias=alias,
            now=now,
            progress=counts.progress,
            estimated=counts.estimated,
            pause=next((one for one in pauses if one and _holds(one, now)), None),
            throttles=_throttles(model, switches, holding, now),
            limits=limits_by(model, switches),
            switch=switches.get(scope_of(model)),
            workers=[worker for worker in known if worker.serves(model)],
        )


def _progress(model: type[models.Model], alias: str) -> Progress:
    return ClaimQuerySet[Any](model, using=alias).progress()


def _holds(switch: Switch, now: datetime) -> bool:
    """Say whether a stored stop is in force."""
    return switch.paused_at is not None and (switch.until is None or as_utc(switch.until) > now)


def _throttles(
    model: type[models.Model],
    switches: Mapping[str, Switch],
    holding: Sequence[Throttle],
    now: datetime,
) -> list[Throttle]:
    """Return the automatic stops in force, that of everyone among them whether a worker is alive or not."""
    label = scope_of(model)
    found = [one for one in holding if one.label == label]
    shared = [switches.get(throttle_scope(scope)) for scope in own_scopes(model)]
    stops = [one for one in shared if one and one.until is not None and _holds(one, now)]
    if not stops or any(one.source == EVERYONE for one in found):
        return found
    stop = max(stops, key=lambda one: as_utc(one.until))
    facts = {"label": label, "source": stop.by or EVERYONE, "reason": stop.reason}
    everyones = Throttle(process=EVERYONE, since_at=stop.paused_at, until=stop.until, **facts)
    return sorted([everyones, *found], key=lambda one: as_utc(one.until), reverse=True)


def throttles_by_source(seen: Summary) -> dict[str, list[Throttle]]:
    """Return what is in force by its cause, of each the one first that holds longest."""
    found: dict[str, list[Throttle]] = {}
    for throttle in seen.throttles:
        found.setdefault(throttle.source, []).append(throttle)
    return found


def first_failed(model: type[models.Model], alias: str, most: int) -> list[str]:
    """Return the keys of the first *most* failed companions, each with its source's key, in no particular order."""
    link = source_link(model)
    rows: Any = ClaimQuerySet(model, using=alias)
    found = rows.failed().order_by().values_list("pk", *(field.attname for field in link.own))
    return [with_source(str(pk), key_text(source)) for pk, *source in found[:most]]


class Failure(NamedTuple):
    """What the last try of a row ended with."""

    key: str
    error: str
    text: str


def last_errors(seen: Overview, most: int) -> list[Failure]:
    """Return what tries of rows ended with that failed or are to be tried again, the latest last.

    Among very many failed rows, and among open ones, those that the claim index has last stand for the latest.
    """
    columns = claim_columns(seen.model)
    if columns.error_class is None or columns.last_error is None:
        return []
    rows: Any = ClaimQuerySet(seen.model, using=seen.alias)
    behind = [name[1:] if name[0] == "-" else f"-{name}" for name in columns.order]
    when = behind if Status.FAILED in seen.estimated else [f"-{columns.claimed_at.name}"]
    link = source_link(seen.model).own if is_companion(seen.model) else ()
    source = [field.attname for field in link]
    facts = ("pk", columns.error_class.name, Substr(columns.last_error.name, 1, 200), *source)
    found = [
        *rows.failed().order_by(*when).values_list(*facts)[:most],
        *rows.open().order_by(*behind).values_list(*facts)[:most],
    ]
    return [
        Failure(with_source(str(pk), key_text(of)), error or "", text or "")
        for pk, error, text, *of in reversed(found)
        if error or text
    ]


def database_time(alias: str) -> datetime:
    """Return what the clock of the database says, in UTC."""
    return dialect_for(connections[alias]).current_time()


def workers(alias: str, now: datetime | None = None) -> list[Worker]:
    """Return every worker that has reported on the database lately, the living first."""
    now = now or database_time(alias)
    reports = WorkerProcess.objects.using(alias).order_by("name")
    found = [_worker(report, now) for report in reports]
    return sorted(found, key=lambda worker: not worker.alive)


def _worker(report: WorkerProcess, now: datetime) -> Worker:
    return Worker(
        name=report.name,
        labels=tuple(re.findall(r"[^,\s]+", report.labels)),
        state=report.state,
        started_at=as_utc(report.started_at),
        seen_at=as_utc(report.seen_at),
        held=report.rows_held,
        done=report.rows_done,
        failed=report.rows_failed,
        last_error=report.last_error,
        alive=now - as_utc(report.seen_at) <= ALIVE_WITHIN,
        host=report.host,
        pid=report.pid,
        version=report.version,
    )


def _next(rows: Any, columns: ClaimColumns) -> object:
    """Return the first open rows in the order of the claim index; many due ones stand for all that follow."""
    return rows.open().order_by(*columns.order)[:MOST]


class _Dueness(NamedTuple):
    due: int
    #: Since when the first of those that had to wait, and when the next will be.
    since: datetime | None = None
    next: datetime | None = None
    open_ended: int = 0


def _dueness(opened: Any, columns: ClaimColumns, now: datetime) -> _Dueness:
    if columns.not_before is None:
        return _Dueness(opened.count())
    name = columns.not_before.name
    facts = opened.aggregate(
        due=Count(name, filter=is_due(columns, now)),
        since=Min(name, filter=Q(**{f"{name}__lte": now, f"{name}__gt": NEVER_WAITED})),
        next=Min(name, filter=Q(**{f"{name}__gt": now, f"{name}__lt": OPEN_ENDED})),
        open_ended=Count(name, filter=Q(**{name: OPEN_ENDED})),
    )
    open_ended = facts["open_ended"] if has_ranges(opened.model) else 0
    return _Dueness(facts["due"], _utc(facts["since"]), _utc(facts["next"]), open_ended)


class _Running(NamedTuple):
    expired: int
    since: datetime | None
    holders: list[Holder]


def _running(rows: Any, columns: ClaimColumns) -> _Running:
    """Return what is known of all running rows."""
    who, expiry = columns.claimed_by.name, columns.expires_at.name
    late = is_expired(columns)
    batches = list(
        rows.filter(is_running(columns))
        .order_by()
        .values_list(who)
        .annotate(
            rows=Count("*"),
            first=Min(expiry),
            expired=Count(columns.status.name, filter=late),
            since=Min(expiry, filter=late),
        )
    )
    since = min((as_utc(batch[4]) for batch in batches if batch[4]), default=None)
    together = _together(batch[:3] for batch in batches)
    return _Running(sum(batch[3] for batch in batches), since, together)


def _first_running(rows: Any, columns: ClaimColumns, now: datetime) -> _Running:
    """Return the same of the first MOST along the claim index, where there are more."""
    running = rows.filter(is_running(columns)).order_by(*columns.order)
    found = running.values_list(columns.claimed_by.name, columns.expires_at.name)[:MOST]
    held = [(holder, _utc(end)) for holder, end in found]
    expired = [end for _, end in held if end is None or end <= now]
    ended = [end for end in expired if end is not None]
    together = _together((holder, 1, end) for holder, end in held)
    return _Running(len(expired), min(ended, default=None), together)


def _together(batches: Iterable[tuple[str | None, int, datetime | None]]) -> list[Holder]:
    """Take the batches of each worker process together, and return who holds most first."""
    by_name: dict[str, Holder] = {}
    for holder, count, first in batches:
        name = (holder or "nobody").partition(WORKER_MARK)[0]
        known = by_name.get(name, Holder(name, 0, None))
        ends = [end for end in (known.next_expiry, _utc(first)) if end is not None]
        by_name[name] = Holder(name, known.rows + count, min(ends, default=None))
    return sorted(by_name.values(), key=lambda holder: (-holder.rows, holder.name))


def _utc(value: datetime | None) -> datetime | None:
    return None if value is None else as_utc(value)
