"""What the demo shows at one moment, as plain data: a display needs nothing else."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum


class Condition(Enum):
    """How a worker's process is doing."""

    STARTING = "starting"
    WORKING = "working"
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    KILLED = "killed"
    DEAD = "died"


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """One worker: its process and its rows."""

    name: str
    pid: int
    condition: Condition
    done: int = 0
    failed: int = 0
    put_back: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True)
class News:
    """Something worth a line, with the seconds since the start."""

    at: float
    text: str


@dataclass(slots=True)
class Pace:
    """Rows a second, now and over the last minute."""

    seconds: float = 1.0
    window: int = 5
    history: deque[float] = field(default_factory=lambda: deque(maxlen=60))
    _mark: tuple[float, int] = (0.0, 0)

    def note(self, elapsed: float, finished: int) -> None:
        """Take in how many rows were finished after `elapsed` seconds; it starts with the first."""
        since, before = self._mark
        if not finished:
            self._mark = (elapsed, 0)
        elif elapsed - since >= self.seconds:
            self.history.append((finished - before) / (elapsed - since))
            self._mark = (elapsed, finished)

    @property
    def rate(self) -> float:
        """The mean of the last few seconds."""
        recent = list(self.history)[-self.window :]
        return sum(recent) / len(recent) if recent else 0.0


@dataclass(frozen=True, slots=True)
class Scene:
    """All rows by state, the pace, the workers, what has happened lately."""

    elapsed: float
    complete: int
    failed: int
    held: int
    waiting: int
    open: int
    pace: Pace
    workers: Sequence[WorkerLine] = ()
    news: Sequence[News] = ()
    paused: str | None = None

    @property
    def total(self) -> int:
        """Every row there is."""
        return self.finished + self.held + self.waiting + self.open

    @property
    def finished(self) -> int:
        """Rows that need nobody any more."""
        return self.complete + self.failed

    @property
    def share(self) -> float:
        """The finished share of all rows, 0 to 1."""
        return self.finished / self.total if self.total else 1.0

    @property
    def seconds_left(self) -> float | None:
        """At the present pace; None while nothing moves."""
        rate = self.pace.rate
        return (self.total - self.finished) / rate if rate else None
