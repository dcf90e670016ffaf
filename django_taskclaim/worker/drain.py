"""What a worker is there for: the rows that it takes, the ranges that it plans, and when a drain has done it all."""

from datetime import datetime
from typing import Any

from django.db import connections
from django.db.models import Model, Q

from django_taskclaim.columns import claim_columns
from django_taskclaim.completion import Clear
from django_taskclaim.db import dialect_for
from django_taskclaim.handlers import Handler
from django_taskclaim.querysets.isolating import refusals, without_refused
from django_taskclaim.querysets.scope import in_state, is_due
from django_taskclaim.ranges.planning import end_of_source, open_more
from django_taskclaim.states import Status
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.records import logger
from django_taskclaim.worker.service import Service


class Drain:
    """The work of one process. What asks the database raises its errors."""

    def __init__(
        self, options: WorkerOptions, handlers: list[Handler], inflight: InFlight, service: Service
    ) -> None:
        self.options = options
        self.handlers = handlers
        self.inflight = inflight
        self.service = service
        #: Whether a drain ended before the work did.
        self.leaves_work = False
        #: By the database's clock. Of rows that open again when they are done, those before it are done once.
        self._began: datetime | None = None
        self._ends_of_sources: dict[type[Model], object] = {}

    def rows(self, handler: Handler) -> Any:
        """Return what claims start from; of rows that open again when they are done, a drain takes each once."""
        rows = handler.rows(self.options.using)
        columns = claim_columns(handler.model)
        if not self.options.drain or not isinstance(handler.completion, Clear):
            return rows
        self._began = self._began or dialect_for(connections[self.options.using]).current_time()
        if columns.not_before is None:
            # Nothing tells them apart.
            return rows
        # Those due then, new ones, and those that failed since.
        has_failed = Q() if columns.attempts is None else Q(**{f"{columns.attempts.name}__gt": 0})
        return rows.filter(is_due(columns, self._began) | has_failed)

    # Ranges

    def open_more(self, handler: Handler) -> bool:
        """Where no range is open, see to one, and say whether that could be done."""
        if not handler.has_ranges:
            return False
        # A worker that takes some ranges only would never see those done that it plans for others.
        takes_all = not handler.rows(self.options.using).query.where
        end = self._end_of_source(handler)
        return open_more(handler.model, self.options.using, plans=takes_all, until=end)

    def _end_of_source(self, handler: Handler) -> object:
        """Return the key beyond which a drain plans no ranges: a source may grow faster than it is drained."""
        model, using = handler.model, self.options.using
        if self.options.drain and self._ends_of_sources.get(model) is None:
            self._ends_of_sources[model] = end_of_source(model, using)
        return self._ends_of_sources.get(model)

    # The end of a drain

    def is_done(self) -> bool:
        """Say whether a drain is over: nothing that matches is open or processing by anyone, or all is stopped."""
        # Ranges that are still to be planned first: what somebody plans in between is open then.
        unfinished = [
            handler
            for handler in self.handlers
            if self.open_more(handler) or self._unfinished(handler).exists()
        ]
        if not unfinished:
            return True
        self.service.read_switch()
        stops = [self._stop_of(handler) for handler in unfinished]
        if not all(stops):
            return False
        self.leaves_work = True
        logger.warning("%s, so the drain ends with work left", "; ".join(stops))
        return True

    def _unfinished(self, handler: Handler) -> Any:
        is_unfinished = in_state(claim_columns(handler.model), Status.OPEN, Status.PROCESSING)
        return self.rows(handler).filter(is_unfinished)

    def _stop_of(self, handler: Handler) -> str:
        """Say what keeps a model's rows from being claimed; empty where nothing does, or may not for long."""
        if not self.inflight.is_empty():
            # What still runs may be what the circuit breaker waits for.
            return ""
        label = handler.model._meta.label
        if stop := self.service.stop_of(handler.model):
            return f"{label} is {stop}"
        is_refused = bool(refusals(handler.model, self.options.using))
        if is_refused and not without_refused(self._unfinished(handler)).exists():
            return f"the database refuses to have the last rows of {label} written"
        return ""
