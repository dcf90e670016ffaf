"""The throttles of every process, for people to read: rows of the table ``Throttle``, by the database's clock."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from django.db.models import Model, QuerySet

from django_taskclaim.claim import clock
from django_taskclaim.db import DatabaseLater, DatabaseNow
from django_taskclaim.models import Throttle
from django_taskclaim.tables import SILENCE_KEPT, scope_of

logger = logging.getLogger("django_taskclaim.throttling")

#: The sources of throttles that hold for the whole fleet, whichever process found them.
EVERYONE, HOURS = "everyone", "hours"


class ThrottleKey(NamedTuple):
    """Which model is stopped, and by what."""

    model: type[Model]
    source: str


@dataclass(frozen=True, slots=True)
class ThrottleState:
    """Why claims of one model wait, and until when by ``clock()``; the cause may end it before."""

    reason: str
    until: float
    #: Whether rows that were claimed but not started are to go back.
    gives_back: bool = False


class ThrottleRecords:
    """The rows of one process, and its log of them; for one thread."""

    def __init__(self, process: str, using: str) -> None:
        self.process = process
        self.using = using
        self._written: dict[ThrottleKey, ThrottleState] = {}

    def keep(self, states: Mapping[ThrottleKey, ThrottleState]) -> None:
        """Write what has begun, changed or ended since the last call, and log what has begun or ended."""
        for key in [key for key in self._written if key not in states]:
            self._rows(key).delete()
            _log("unthrottled", "%s is throttled no more: %s", key, self._written.pop(key))
        for key, state in states.items():
            known = self._written.get(key)
            if known != state:
                self._write(key, state)
                self._written[key] = state
            if known is None:
                _log("throttled", "%s is throttled: %s", key, state)

    def sign_off(self) -> None:
        """Delete every row of the process, which ends."""
        self._written.clear()
        Throttle.objects.using(self.using).filter(process=self.process).delete()

    def _write(self, key: ThrottleKey, state: ThrottleState) -> None:
        until = DatabaseLater(timedelta(seconds=max(0.0, state.until - clock())))
        rows, reason = self._rows(key), state.reason[:500]
        if not rows.update(reason=reason, until=until):
            rows.create(
                process=self.process,
                label=scope_of(key.model),
                source=key.source[:200],
                since_at=DatabaseNow(),
                reason=reason,
                until=until,
            )

    def _rows(self, key: ThrottleKey) -> QuerySet[Throttle]:
        return Throttle.objects.using(self.using).filter(
            process=self.process, label=scope_of(key.model), source=key.source[:200]
        )


def _log(event: str, text: str, key: ThrottleKey, state: ThrottleState) -> None:
    label = key.model._meta.label
    facts = {"event": event, "model": label, "source": key.source, "reason": state.reason}
    logger.warning(text, label, state.reason, extra=facts)


def prune(using: str) -> None:
    """Forget throttles that ended a day ago and whose process never signed off."""
    past = DatabaseLater(-SILENCE_KEPT)
    Throttle.objects.using(using).filter(until__lt=past).delete()
