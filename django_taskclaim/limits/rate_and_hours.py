"""What ``rate`` and ``hours`` mean: how many rows are saved up meanwhile, and when a window opens."""

from datetime import datetime, time, timedelta
from typing import NamedTuple

from django.utils import timezone

_PERIODS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

#: What an idle fleet may save up, as a part of a minute's rows: a minute exceeds the rate by so much at most.
SLACK = 0.05
#: The least that it may save up, so that no row is missed that becomes available between two polls.
LEAST_SLACK = 1.5

#: A window that does not open within so many days never opens.
DAYS_LOOKED_AHEAD = 8


class Rate(NamedTuple):
    """At most so many rows in a period, over all who claim."""

    text: str
    #: Rows a second.
    per_second: float

    @classmethod
    def parse(cls, text: str) -> "Rate":
        """Return what a text means that ``conf.RATE`` accepts."""
        number, period = text.split("/")
        return cls(text, float(number) / _PERIODS[period])

    @property
    def most(self) -> float:
        """The rows that are saved up at most while nobody claims any."""
        return max(LEAST_SLACK, self.per_second * 60 * SLACK)

    def later(self, level: float, seconds: float) -> float:
        """Return what *level* rows have become after so many seconds."""
        return min(self.most, level + max(0.0, seconds) * self.per_second)

    def __str__(self) -> str:
        return self.text


class Hours(NamedTuple):
    """From one time of the day to another in ``TIME_ZONE``, over midnight where the second comes before the first.

    Open is what a clock on the wall shows. When clocks go back, an hour that comes twice is open twice; when they go
    forward, an hour that is left out is not made up for, and a window that begins in it opens when it is over.
    """

    text: str
    opens: time
    closes: time

    @classmethod
    def parse(cls, text: str) -> "Hours":
        """Return what a text means that ``conf.HOURS`` accepts."""
        opens, closes = text.replace("24:00", "00:00").split("-")
        return cls(text, time.fromisoformat(opens), time.fromisoformat(closes))

    def opens_at(self, now: datetime) -> datetime | None:
        """Return when the window opens, in the zone of *now*; None while it is open. *now* is aware."""
        if self._is_open(now):
            return None
        # Minute by minute, because no sum of hours is right on the days when clocks change.
        moment, end = now.replace(second=0, microsecond=0), now + timedelta(days=DAYS_LOOKED_AHEAD)
        while moment < end:
            moment += timedelta(minutes=1)
            if self._is_open(moment):
                break
        return moment

    def _is_open(self, moment: datetime) -> bool:
        wall = moment.astimezone(timezone.get_default_timezone()).time()
        if self.opens < self.closes:
            return self.opens <= wall < self.closes
        return wall >= self.opens or wall < self.closes

    def __str__(self) -> str:
        return f"{self.text} {timezone.get_default_timezone_name()}"
