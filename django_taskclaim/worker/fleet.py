"""What a worker process is told of the limits of the whole fleet, as throttles of its own: claims wait, a drain ends.

Which rows may be claimed, each claim finds out for itself; this is for not asking in vain, and for people to read.
"""

import random
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django_taskclaim.claim import clock
from django_taskclaim.fields import as_utc
from django_taskclaim.models import Switch
from django_taskclaim.querysets.limits.grant import Grant
from django_taskclaim.querysets.limits.stored import is_stored, named_limits
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.throttling.records import EVERYONE, HOURS, ThrottleState

if TYPE_CHECKING:
    from django_taskclaim.worker.service import Service

#: Seconds between two looks at the hours.
LOOK_EVERY = 2.5


class FleetWatch:
    """One for each process; for its service thread, ``look`` also for whoever wants to know at once."""

    def __init__(self, service: "Service") -> None:
        self._service = service
        self._due = 0.0
        #: The stops in force by what they say, so that each is the same as long as it says that.
        self._known: dict[tuple[Any, str], tuple[str, datetime]] = {}

    def heard(self, model: Any, stop: Switch | None, now: datetime | None) -> None:
        """Note the stop that holds for everyone, or that there is none."""
        until = None if stop is None or stop.until is None else as_utc(stop.until)
        self._impose(model, EVERYONE, stop.reason if stop else "", until, now)

    def turn(self) -> bool:
        """Look at the hours of models that have some, when it is time to."""
        if clock() < self._due:
            return False
        self._due = clock() + random.uniform(0.9, 1.0) * LOOK_EVERY
        return self.look()

    def look(self) -> bool:
        """Stop claims outside the hours of each model; True if the database was asked."""
        asked = False
        for model in {handler.model for handler in self._service.handlers}:
            asked |= self._look(model)
        return asked

    def _look(self, model: Any) -> bool:
        using = self._service.options.using
        has_hours = any(limits.hours for limits in named_limits(model).values())
        if not has_hours and not is_stored(model, using):
            self._impose(model, HOURS, "", None, None)
            return False
        seen = Grant(ClaimTarget.of(model, using))
        closed = seen.closed()
        reason = f"outside the hours {closed.limits.hours}" if closed else ""
        self._impose(model, HOURS, reason, closed.until if closed else None, seen.now)
        return True

    def _impose(
        self, model: Any, source: str, reason: str, until: datetime | None, now: datetime | None
    ) -> None:
        throttles, said = self._service.throttles, None
        if until is not None and now is not None and until > now:
            said = (reason, until)
            if self._known.get((model, source)) != said:
                end = clock() + (until - now).total_seconds()
                throttles.impose(model, source, ThrottleState(reason, end, gives_back=True))
                self._known[model, source] = said
        elif self._known.pop((model, source), None):
            throttles.impose(model, source, None)
