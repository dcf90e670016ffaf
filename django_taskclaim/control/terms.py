"""Live settings as one worker process keeps to them."""

import math
import re
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps

from django_taskclaim.control.hours import Window
from django_taskclaim.control.models import LiveSettings
from django_taskclaim.dialects import DatabaseLater
from django_taskclaim.models import WorkerProcess
from django_taskclaim.overview import ALIVE_WITHIN
from django_taskclaim.switch_reading import scope_of
from django_taskclaim.throttling.holds import Hold
from django_taskclaim.tokens import clock
from django_taskclaim.worker.limits import Limit
from django_taskclaim.worker.service import Service

#: The source of the throttle that keeps the hours.
WINDOW = "window"


class Terms:
    """What holds for the models of one process; for the service thread alone."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.models = [handler.model for handler in service.handlers]
        self._settings: dict[str, LiveSettings] = {}
        self._limits: dict[Any, Limit] = {}
        #: How many living processes share the work on each model.
        self._living: Counter[str] = Counter()

    @property
    def scopes(self) -> list[str]:
        """What the settings of these models are stored under."""
        return list(dict.fromkeys(scope_of(model) for model in self.models))

    @property
    def shares(self) -> bool:
        """Whether a rate is to be shared with other processes."""
        return any(one.rate_limit is not None for one in self._settings.values())

    def change(self, settings: Iterable[LiveSettings]) -> None:
        """Keep to these settings from now on; what was claimed under easier ones and has not started goes back."""
        self._settings = {one.model: one for one in settings}
        for model in self.models:
            before, limit = self._limits.get(model, Limit()), self._limit(model)
            self._keep(model, limit)
            self._service.leases_changed()
            if limit.is_tighter_than(before):
                self._service.withdraw(model)

    def count_living(self, using: str) -> None:
        """Ask how many living processes share a rate, and take a fair share of it."""
        alive = WorkerProcess.objects.using(using).filter(seen_at__gt=DatabaseLater(-ALIVE_WITHIN))
        self._living = Counter(
            scope for labels in alive.values_list("labels", flat=True) for scope in _scopes(labels)
        )
        for model in self.models:
            self._keep(model, self._limit(model))

    def keep_hours(self, now: datetime) -> None:
        """Stop claims outside the hours of each model; rows that have not started go back."""
        for model in self.models:
            hold = self._hold(model, now)
            self._service.throttles.impose(model, WINDOW, hold)

    def _limit(self, model: Any) -> Limit:
        given = self._settings.get(scope_of(model))
        if given is None:
            return Limit()
        rate = given.rate_limit
        if rate is not None:
            rate /= max(1, self._living[scope_of(model)])
        lease = None if given.lease is None else timedelta(seconds=given.lease)
        return Limit(given.batch_size, given.concurrency, rate, lease)

    def _keep(self, model: Any, limit: Limit) -> None:
        if limit != self._limits.get(model):
            self._limits[model] = limit
            self._service.limits.keep(model, limit)

    def _hold(self, model: Any, now: datetime) -> Hold | None:
        given = self._settings.get(scope_of(model))
        if given is None or given.window_from is None or given.window_to is None:
            return None
        window = Window(given.window_from, given.window_to)
        closed = window.closed_for(now)
        if closed is None:
            return None
        # In whole seconds, so that it is the same hold each time and is written down once; it is taken back in time.
        until = math.ceil(clock() + closed.total_seconds())
        return Hold(f"outside the window {window}", until, gives_back=True)


def _scopes(labels: str) -> set[str]:
    """Return what the settings of the models are stored under that a process claims."""
    found = set()
    for label in re.findall(r"[^,\s]+", labels):
        try:
            found.add(scope_of(apps.get_model(label)))
        except (LookupError, ValueError):
            # Another project's.
            continue
    return found
