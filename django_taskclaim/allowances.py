"""What limits of a whole fleet are written as: a rate such as ``100/m``, hours such as ``22:00-06:00``."""

import re
from datetime import datetime, time, timedelta
from typing import NamedTuple

from django.utils import timezone

_PERIODS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_RATE = r"(?P<rows>[0-9]+(?:\.[0-9]+)?)/(?P<period>[smhd])"
_HOURS = r"([01][0-9]|2[0-3]):([0-5][0-9])-(?:([01][0-9]|2[0-3]):([0-5][0-9])|(24:00))"

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
    def parse(cls, text: object) -> "Rate":
        """Return what ``100/m`` means (s, m, h or d); ValueError in one sentence for what is no rate."""
        match = re.fullmatch(_RATE, text) if isinstance(text, str) else None
        if match is None or not float(match["rows"]):
            raise ValueError(
                f"rate is a number of rows in a second, a minute, an hour or a day, such as 100/m; not {text!r:.100}."
            )
        return cls(match[0], float(match["rows"]) / _PERIODS[match["period"]])

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
    def parse(cls, text: object) -> "Hours":
        """Return what ``22:00-06:00`` means; ValueError in one sentence for what is no window."""
        match = re.fullmatch(_HOURS, text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"hours is a window such as 22:00-06:00, not {text!r:.100}.")
        opens = time(int(match[1]), int(match[2]))
        closes = time() if match[5] else time(int(match[3]), int(match[4]))
        if opens == closes:
            raise ValueError(
                f"hours {text} ends where it begins; leave it out to claim at any hour."
            )
        return cls(match[0], opens, closes)

    def opens_at(self, now: datetime) -> datetime | None:
        """Return when the window opens, in the zone of *now*; None while it is open. *now* is aware."""
        if self._is_open(now):
            return None
        # A minute at a time, for on the days when clocks change no sum of hours is right.
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
