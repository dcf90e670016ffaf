"""A page of figures for Prometheus, and for all that reads OpenMetrics: rows, throughput and workers of each model.

Route it where the monitoring reaches it: ``path("metrics", metrics)``. It needs the extra ``metrics``.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from django.core.exceptions import PermissionDenied
from django.db import router
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils.crypto import constant_time_compare
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from django_taskclaim import conf
from django_taskclaim.connecting import in_no_transaction
from django_taskclaim.control.models import ThroughputMinute, is_on
from django_taskclaim.handlers import handler_for
from django_taskclaim.monitoring.overview import Overview, overview
from django_taskclaim.monitoring.server import in_time
from django_taskclaim.states import UNKNOWN, Status
from django_taskclaim.switch import claimable_models
from django_taskclaim.tables import scope_of
from django_taskclaim.worker.counters import ENDS, Counts, times

LABELS = ("model", "database")

#: What is read of each model by itself, and what the figure says; a model for which it is None does not have it.
GAUGES: dict[str, tuple[str, Callable[[Overview], float | None]]] = {
    "due": ("Open rows that can be claimed now.", lambda seen: seen.due),
    "oldest_due_seconds": (
        "How long the oldest due row has been due; 0 if no row is due.",
        lambda seen: (seen.now - seen.due_since).total_seconds() if seen.due_since else 0.0,
    ),
    "expired": ("Running rows whose lease has ended.", lambda seen: seen.expired),
    "paused": ("1 while a pause stops claims.", lambda seen: seen.pause is not None),
    "throttled": ("1 while an automatic stop is in force.", lambda seen: bool(seen.throttles)),
    "workers": (
        "Living worker processes that serve the model, where it has a handler.",
        lambda seen: len(seen.living) if handler_for(seen.model) else None,
    ),
}

#: What worker processes have reported, as ``worker.counters`` names it, the figure made of each, and what it says.
COUNTERS = {
    "claimed": ("rows_claimed", "Rows that workers claimed."),
    "done": ("rows_completed", "Rows that workers completed."),
    "failed": ("rows_failed", "Rows that ended in failed under a worker."),
    "errors": ("tries_failed", "Tries that failed, the last ones of failed rows among them."),
    "lost": ("claims_lost", "Claims that workers found lost as they wrote what became of a row."),
    "expired": ("rows_expired", "Rows whose lease ended, and that workers put back or failed."),
}
HISTOGRAMS = {
    "ran": (
        "handler_seconds",
        "How long handlers took for a row that was completed or failed; of a batch, each row's share.",
    ),
    "waited": (
        "waited_seconds",
        "How long the first row of each claim had been due, where its columns say so.",
    ),
}

#: The durations that a histogram shows, each four times as long as the one before, from 1 ms to 70 minutes.
SHOWN = range(0, 45, 4)


# On SQLite a transaction around all questions would make every writer wait.
@in_no_transaction
@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer with the figures of claimable models, each read on the database that the router writes to.

    Allowed are callers that send the setting METRICS_TOKEN as a bearer token.
    """
    token, given = conf.setting("METRICS_TOKEN"), request.headers.get("Authorization", "")
    if not token or not constant_time_compare(given, f"Bearer {token}"):
        raise PermissionDenied
    registry = CollectorRegistry()
    registry.register(QueueCollector())
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(registry), content_type=content_type)


class QueueCollector(Collector):
    """Reads the figures of models at the moment they are asked for."""

    def collect(self) -> Iterator[Metric]:
        """Yield each figure with its values for all models; one that cannot be read in time has ``taskclaim_up`` 0."""
        up = GaugeMetricFamily("taskclaim_up", "1 if the model was read in time.", labels=LABELS)
        known: dict[tuple[str, str], tuple[Overview, Counts]] = {}
        for model in claimable_models():
            labels = model._meta.label, router.db_for_write(model)
            found = in_time(labels[1], partial(_read, model, labels[1]))
            up.add_metric(labels, found is not None)
            if found is not None:
                known[labels] = found
        yield up
        text, of_states = "Rows by status; of a large table an estimate.", (*LABELS, "status")
        rows = GaugeMetricFamily("taskclaim_rows", text, labels=of_states)
        for labels, (seen, _) in known.items():
            for status in (*Status.values, UNKNOWN):
                rows.add_metric((*labels, status), getattr(seen.progress, status))
        yield rows
        for name, (text, value) in GAUGES.items():
            gauge = GaugeMetricFamily(f"taskclaim_{name}", text, labels=LABELS)
            for labels, (seen, _) in known.items():
                if (measured := value(seen)) is not None:
                    gauge.add_metric(labels, measured)
            yield gauge
        counted = {labels: one for labels, (_, one) in known.items() if is_on(labels[1])}
        for column, (name, text) in COUNTERS.items():
            counter = CounterMetricFamily(f"taskclaim_{name}", text, labels=LABELS)
            for labels, counts in counted.items():
                counter.add_metric(labels, counts[column])
            yield counter
        for column, (name, text) in HISTOGRAMS.items():
            histogram = HistogramMetricFamily(f"taskclaim_{name}", text, labels=LABELS)
            for labels, counts in counted.items():
                histogram.add_metric(labels, *_histogram(times(counts, column)))
            yield histogram


def _read(model: type[Model], alias: str) -> tuple[Overview, Counts]:
    """Return what there is to see of a model, and what all worker processes have reported."""
    counts: Counts = Counter()
    # First, so that no counter is ahead of the rows.
    if is_on(alias):
        written = ThroughputMinute.objects.using(alias).filter(model=scope_of(model))
        for part in written.values_list("counts", flat=True):
            counts.update(part)
    return overview(model, alias, exact=False), counts


def _histogram(durations: Mapping[int, int]) -> tuple[list[tuple[str, float]], float]:
    """Return how many times were up to which length, and about how many seconds all were together."""
    bounds = [
        (str(ENDS[last]), float(sum(n for bucket, n in durations.items() if bucket <= last)))
        for last in SHOWN
    ]
    whole = sum(ENDS[bucket] * count for bucket, count in durations.items())
    return [*bounds, ("+Inf", float(sum(durations.values())))], whole
