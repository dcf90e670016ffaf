"""A page of figures for Prometheus, and for all that reads OpenMetrics: rows, throughput and workers of each model.

Route it where the monitoring reaches it: ``path("metrics", metrics)``. It needs the extra ``metrics``.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from django.contrib.auth import get_permission_codename
from django.core.exceptions import PermissionDenied
from django.db import Error, connections, router
from django.db.models import Model, Sum
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
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.monitoring.overview import Overview, overview
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.states import Status
from django_taskclaim.switch import claimable_models
from django_taskclaim.tables import scope_of
from django_taskclaim.worker.counters import longest_in, unpacked

logger = logging.getLogger(__name__)

LABELS = ("model", "database")
Labels: TypeAlias = tuple[str, str]

#: What is read of each model by itself, and what the figure says.
GAUGES = {
    "due": "Open rows that can be claimed now.",
    "oldest_due_seconds": "How long the oldest due row has been due; 0 if no row is due.",
    "expired": "Running rows whose lease has ended.",
    "paused": "1 while a pause stops claims.",
    "throttled": "1 while an automatic stop is in force.",
    "workers": "Living worker processes that serve the model.",
}

#: The columns of what worker processes have reported, the figure made of each, and what it says.
COUNTERS = {
    "done": ("rows_completed", "Rows that workers completed."),
    "failed": ("rows_failed", "Rows that ended in failed under a worker."),
    "errors": ("tries_failed", "Tries that failed, the last ones of failed rows among them."),
}

#: The durations that a histogram shows, each four times as long as the one before, from 1 ms to 70 minutes.
SHOWN = range(0, 45, 4)


# On SQLite a transaction around all questions would make every writer wait.
@in_no_transaction
@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer with the figures of claimable models, each read on the database that the router writes to.

    Allowed are callers that send the setting METRICS_TOKEN as a bearer token, and users with ``view_control``, who get
    the models that they may view.
    """
    registry = CollectorRegistry()
    registry.register(Figures(_models_for(request)))
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(registry), content_type=content_type)


def _models_for(request: HttpRequest) -> list[type[Model]]:
    """Return the models whose figures the caller may see."""
    token, given = conf.setting("METRICS_TOKEN"), request.headers.get("Authorization", "")
    if token and constant_time_compare(given, f"Bearer {token}"):
        return claimable_models()
    user = getattr(request, "user", None)
    if user is None or not user.has_perm("taskclaim_control.view_control"):
        raise PermissionDenied
    named = {
        model: f"{model._meta.app_label}.{get_permission_codename('view', model._meta)}"
        for model in claimable_models()
    }
    return [model for model, permission in named.items() if user.has_perm(permission)]


@dataclass(frozen=True, slots=True)
class Reported:
    """What all worker processes have reported of one model."""

    counts: Mapping[str, int]
    durations: Counter[int]


class Figures(Collector):
    """Reads the figures of models at the moment they are asked for."""

    def __init__(self, models: Iterable[type[Model]]) -> None:
        self.models = models

    def collect(self) -> Iterator[Metric]:
        """Yield each figure with its values for all models; one that cannot be read in time has ``taskclaim_up`` 0."""
        up = GaugeMetricFamily("taskclaim_up", "1 if the model was read in time.", labels=LABELS)
        seen: dict[Labels, Overview] = {}
        reported: dict[Labels, Reported] = {}
        for model in self.models:
            alias = router.db_for_write(model)
            labels = model._meta.label, alias
            try:
                with server_for(connections[alias]).bounded(conf.duration("PAGE_TIMEOUT")):
                    # First, so that no counter is ahead of the rows.
                    if is_on(alias):
                        reported[labels] = _reported(model, alias)
                    seen[labels] = overview(model, alias, exact=False)
            except (Error, TaskClaimError):
                logger.exception("%s on %s was not read for the metrics", *labels)
            up.add_metric(labels, labels in seen)
        yield up
        yield from _gauges(seen)
        yield from _throughput(reported)


def _reported(model: type[Model], alias: str) -> Reported:
    written = ThroughputMinute.objects.using(alias).filter(model=scope_of(model))
    durations: Counter[int] = Counter()
    for text in written.exclude(durations="").values_list("durations", flat=True):
        durations.update(unpacked(text))
    sums = {column: Sum(column, default=0) for column in COUNTERS}
    return Reported(written.aggregate(**sums), durations)


def _gauges(seen: Mapping[Labels, Overview]) -> Iterator[Metric]:
    rows = GaugeMetricFamily(
        "taskclaim_rows",
        "Rows by status; of a large table an estimate.",
        labels=(*LABELS, "status"),
    )
    gauges = {
        name: GaugeMetricFamily(f"taskclaim_{name}", text, labels=LABELS)
        for name, text in GAUGES.items()
    }
    for labels, one in seen.items():
        for status in Status:
            rows.add_metric((*labels, status.value), getattr(one.progress, status.value))
        waited = (one.now - one.due_since).total_seconds() if one.due_since else 0.0
        values = {
            "due": one.due,
            "oldest_due_seconds": waited,
            "expired": one.expired,
            "paused": one.pause is not None,
            "throttled": bool(one.throttles),
            "workers": len(one.living),
        }
        for name, value in values.items():
            gauges[name].add_metric(labels, value)
    yield rows
    yield from gauges.values()


def _throughput(reported: Mapping[Labels, Reported]) -> Iterator[Metric]:
    counters = {
        column: CounterMetricFamily(f"taskclaim_{name}", text, labels=LABELS)
        for column, (name, text) in COUNTERS.items()
    }
    batches = HistogramMetricFamily(
        "taskclaim_batch_seconds",
        "How long batches took, from the claim to the last row written; the sum is exact to a fifth.",
        labels=LABELS,
    )
    for labels, one in reported.items():
        for column, family in counters.items():
            family.add_metric(labels, one.counts[column])
        batches.add_metric(labels, *_histogram(one.durations))
    yield from counters.values()
    yield batches


def _histogram(durations: Counter[int]) -> tuple[list[tuple[str, float]], float]:
    """Return how many batches took up to which time, and about how many seconds all took together."""
    bounds = [
        (str(longest_in(last)), float(sum(n for bucket, n in durations.items() if bucket <= last)))
        for last in SHOWN
    ]
    whole = sum(longest_in(bucket) * count for bucket, count in durations.items())
    return [*bounds, ("+Inf", float(durations.total()))], whole
