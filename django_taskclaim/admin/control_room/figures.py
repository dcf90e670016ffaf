"""All that one page of one model shows, asked of the database."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import models, router
from django.utils import timezone
from django.utils.translation import get_language

from django_taskclaim.admin.control_room import failures
from django_taskclaim.admin.control_room.asking import Answer, Asking
from django_taskclaim.columns import has_ranges
from django_taskclaim.control.installed import is_on
from django_taskclaim.doctor import Finding
from django_taskclaim.doctor.blockers import reasons
from django_taskclaim.models import WorkerProcess
from django_taskclaim.monitoring.overview import Overview, Worker, database_time, overview, workers
from django_taskclaim.ranges.strip import Strip, strip
from django_taskclaim.tables import scope_of

HOUR, DAY = timedelta(hours=1), timedelta(days=1)

#: Over which a process's rate is averaged, and up to a minute more.
LATELY = timedelta(minutes=4)

#: Of more ranges than this no strip is drawn.
MOST_RANGES = 20_000

#: A process is taken to have lived so long at least: about as often it writes down what it has done.
LEAST = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Figures:
    """What was learned; a None was never known, by this process, because the database takes too long."""

    model: type[models.Model]
    alias: str
    now: datetime
    seen: Overview | None
    workers: list[Worker] | None
    findings: list[Finding]
    failed: "failures.Sample | None"
    #: How far the ranges of keys have got, where the rows are ranges.
    ranges: Strip | None = None
    #: None where the control app is not installed, too.
    hour: list[Any] | None = None
    day: list[Any] | None = None
    marks: list[Any] = field(default_factory=list)
    acts: list[Any] | None = None
    orders: dict[str, str] = field(default_factory=dict)
    #: Rows a second of each process over the last minutes, or since it began; None where nobody wrote that down.
    rates: dict[str, float] | None = None
    #: When the oldest of these was learned, where some are old.
    late_since: datetime | None = None
    has_control: bool = False

    @property
    def work_goes_on(self) -> bool:
        """Whether a worker process is alive and may claim; else what was done before foretells nothing."""
        is_paused = self.seen is not None and self.seen.pause is not None
        return not is_paused and any(worker.alive for worker in self.workers or ())


def database_of(model: type[models.Model]) -> str:
    """Return the database whose workers and rows the page of *model* tells of."""
    return router.db_for_write(model)


def look_at(
    model: type[models.Model], alias: str, rows: "models.QuerySet[models.Model]", who: object
) -> Figures:
    """Ask everything, the most important first. Of *rows*, which *who* may see, error texts are shown."""
    asking = Asking(alias, model._meta.label_lower)
    seen = asking.ask("overview", lambda: overview(model, alias, exact=False)).value
    serving = asking.ask("workers", lambda: _serving(model, alias)).value
    findings: list[Finding] = []
    if seen is not None:
        # In words, so that who reads another language is not told those of an earlier reader.
        name = f"reasons in {get_language()}"
        findings = asking.ask(name, lambda: list(reasons(seen))).value or []
    ranges = None
    if has_ranges(model):
        ranges = asking.ask("ranges", lambda: strip(model, alias, most=MOST_RANGES)).value
    recorded = _recorded(asking, model, alias, serving or []) if is_on(alias) else {}
    failed = ask_failures(asking, rows, who).value
    return Figures(
        model=model,
        alias=alias,
        now=seen.now if seen is not None else timezone.now(),
        seen=seen,
        workers=serving,
        findings=findings,
        ranges=ranges,
        failed=failed,
        late_since=asking.late_since,
        has_control=is_on(alias),
        **recorded,
    )


def ask_failures(
    asking: Asking, rows: "models.QuerySet[models.Model]", who: object
) -> "Answer[failures.Sample]":
    """Ask for the failed ones of *rows*; the last known answer is one to the same query of the same user."""
    return asking.ask(f"failures for {who} of {_told(rows)}", lambda: failures.sample(rows))


def _told(rows: "models.QuerySet[models.Model]") -> str:
    try:
        return str(rows.query)
    except EmptyResultSet:
        return "none"


def _serving(model: type[models.Model], alias: str) -> list[Worker]:
    return [worker for worker in workers(alias) if worker.serves(model)]


def _recorded(
    asking: Asking, model: type[models.Model], alias: str, serving: list[Worker]
) -> dict[str, Any]:
    """Ask what the control app has written down."""
    from django_taskclaim.control import reading

    marked = f"marks in {get_language()}"

    def answer(name: str, question: Any) -> Any:
        told: Answer[Any] = asking.ask(name, question)
        return told.value

    told: dict[str, Any] = {
        "orders": answer("orders", lambda: _open_orders(alias)) or {},
        "rates": answer("rates", lambda: _rates(model, alias, serving)),
        "hour": answer("hour", lambda: reading.throughput(model, using=alias, span=HOUR)),
        "day": answer("day", lambda: reading.throughput(model, using=alias, span=DAY)),
    }
    day = told["day"]
    marks = answer(marked, lambda: reading.marks(model, using=alias, span=DAY, slots=day))
    acts = answer("acts", lambda: reading.acts(model, using=alias, limit=12))
    return {**told, "marks": marks or [], "acts": acts}


def _rates(model: type[models.Model], alias: str, serving: list[Worker]) -> dict[str, float]:
    """Return rows a second of every process in *serving* that is alive, for as much of the time as it has lived."""
    from django_taskclaim.control.models import ThroughputMinute
    from django_taskclaim.control.reading import MINUTE, slot_start

    now = database_time(alias)
    since = slot_start(now - LATELY, MINUTE)
    lately = ThroughputMinute.objects.using(alias).filter(model=scope_of(model), at__gte=since)
    done = dict(lately.order_by().values_list("process").annotate(models.Sum("done")))
    return {
        worker.name: done.get(worker.name, 0) / _lived(worker, since, now)
        for worker in serving
        if worker.alive
    }


def _lived(worker: Worker, since: datetime, now: datetime) -> float:
    """Return seconds; of a process that has only just begun a rate would mean nothing, so it is some at least."""
    return max(LEAST, now - max(since, worker.started_at)).total_seconds()


def _open_orders(alias: str) -> dict[str, str]:
    """Return what each worker was told to do and has not done yet; not what an earlier one of its name was told."""
    from django_taskclaim.control.models import WorkerOrder

    named = WorkerProcess.objects.using(alias).filter(name=models.OuterRef("worker"))
    heard = models.Q(at__gte=models.Subquery(named.values("started_at")))
    unheeded = WorkerOrder.objects.using(alias).filter(heard, done_at=None).order_by("pk")
    return dict(unheeded.values_list("worker", "order"))
