"""The throttles of every process, for people to read: rows of the table ``Throttle``, by the database's clock."""

from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

from django.db.models import Model, QuerySet

from django_taskclaim import conf
from django_taskclaim.claim import clock
from django_taskclaim.db import DatabaseLater, DatabaseNow
from django_taskclaim.models import Throttle
from django_taskclaim.switch_reading import scope_of
from django_taskclaim.throttling.holds import Hold

#: The sources of throttles that hold for the whole fleet, whoever found them.
EVERYONE, HOURS = "everyone", "hours"


class Stop(NamedTuple):
    """What is stopped by what."""

    model: type[Model]
    source: str


class Register:
    """The rows of one process, kept like what holds there; for one thread."""

    def __init__(self, process: str, using: str) -> None:
        self.process = process
        self.using = using
        self._written: dict[Stop, tuple[int, Hold]] = {}

    def keep(self, holds: Mapping[Stop, Hold]) -> bool:
        """Write what has begun, changed or ended since the last time; True if that asked the database."""
        over = [stop for stop in self._written if stop not in holds]
        changed = [stop for stop, hold in holds.items() if self._known(stop) != hold]
        for stop in over:
            self._rows().filter(pk=self._written[stop][0]).delete()
            del self._written[stop]
        for stop in changed:
            self._written[stop] = (self._write(stop, holds[stop]), holds[stop])
        return bool(over or changed)

    def sign_off(self) -> None:
        """Take every row of the process away: it ends, and its throttles with it."""
        self._written.clear()
        self._rows().filter(process=self.process).delete()

    def _known(self, stop: Stop) -> Hold | None:
        return self._written[stop][1] if stop in self._written else None

    def _write(self, stop: Stop, hold: Hold) -> int:
        """Store what holds and return the row's key; a row that was pruned meanwhile is made anew."""
        left = DatabaseLater(timedelta(seconds=max(0.0, hold.until - clock())))
        facts = {"reason": hold.reason[:500], "until": left}
        if stop in self._written:
            key = self._written[stop][0]
            if self._rows().filter(pk=key).update(**facts):
                return key
        return (
            self._rows()
            .create(
                process=self.process,
                label=scope_of(stop.model),
                source=stop.source[:200],
                since_at=DatabaseNow(),
                **facts,
            )
            .pk
        )

    def _rows(self) -> "QuerySet[Throttle]":
        return Throttle.objects.using(self.using)


def in_force(model: type[Model], using: str) -> list[Throttle]:
    """Return the throttles of *model* that hold on the database, the one that holds longest first."""
    rows = Throttle.objects.using(using).filter(label=scope_of(model), until__gt=DatabaseNow())
    return list(rows.order_by("-until", "process"))


def prune(using: str) -> None:
    """Forget throttles that ended WORKER_RETENTION ago and whose process never signed off."""
    past = DatabaseLater(-conf.duration("WORKER_RETENTION"))
    Throttle.objects.using(using).filter(until__lt=past).delete()
