"""What a worker process is told of the limits of the whole fleet, as throttles of its own: claims wait, a drain ends.

Which rows may be claimed, each claim finds out for itself; this is for not asking in vain, and for people to read.
"""

import random
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django_taskclaim.claim import clock
from django_taskclaim.fields import as_utc
from django_taskclaim.limits.grant import Grant
from django_taskclaim.limits.model_limits import known
from django_taskclaim.models import Switch
from django_taskclaim.policy import policies_over
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
        wait = (until - now).total_seconds() if until is not None and now is not None else None
        self._impose(model, EVERYONE, stop.reason if stop else "", until, wait)

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
        has_hours = any(policy.hours for policy in policies_over(model))
        if not has_hours and (using, model) not in known:
            self._impose(model, HOURS, "", None, None)
            return False
        closed = Grant(ClaimTarget.of(model, using)).closed()
        if closed is None:
            self._impose(model, HOURS, "", None, None)
        else:
            reason = f"outside the hours {closed.limits.hours}"
            self._impose(model, HOURS, reason, closed.until, closed.wait)
        return True

    def _impose(
        self, model: Any, source: str, reason: str, until: datetime | None, wait: float | None
    ) -> None:
        """Stop claims until then, *wait* seconds from now; go on where that is past, or None."""
        throttles = self._service.throttles
        if until is not None and wait is not None and wait > 0:
            if self._known.get((model, source)) != (reason, until):
                state = ThrottleState(reason, clock() + wait, gives_back=True)
                throttles.impose(model, source, state)
                self._known[model, source] = (reason, until)
        elif self._known.pop((model, source), None):
            throttles.impose(model, source, None)
