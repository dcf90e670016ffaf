"""The hours of a day in which rows are claimed, in UTC."""

from dataclasses import dataclass
from datetime import datetime, time, timedelta


@dataclass(frozen=True, slots=True)
class Window:
    """From one time of the day to another, over midnight where the second comes before the first."""

    opens: time
    closes: time

    def closed_for(self, now: datetime) -> timedelta | None:
        """Return how long it takes until the window opens; None while it is open. *now* is in UTC."""
        if self._is_open(now.time()):
            return None
        opening = now.replace(
            hour=self.opens.hour, minute=self.opens.minute, second=self.opens.second, microsecond=0
        )
        return (opening if opening > now else opening + timedelta(days=1)) - now

    def _is_open(self, at: time) -> bool:
        if self.opens < self.closes:
            return self.opens <= at < self.closes
        return at >= self.opens or at < self.closes

    def __str__(self) -> str:
        return f"{_short(self.opens)}–{_short(self.closes)} UTC"


def _short(at: time) -> str:
    return f"{at:%H:%M:%S}" if at.second else f"{at:%H:%M}"
