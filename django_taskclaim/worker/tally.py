"""What a process got done, by model, until somebody asks: counts that its threads share."""

from collections import Counter
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from django_taskclaim.worker.histogram import bucket_of


@dataclass(slots=True)
class Counts:
    """What became of the rows of one model."""

    done: int = 0
    #: Rows that ended in ``failed``.
    failed: int = 0
    #: Tries that failed, the last ones of failed rows among them.
    errors: int = 0
    #: Batches that came to their end, and how long they took from the claim on, in seconds.
    batches: int = 0
    seconds: float = 0.0
    durations: Counter[int] = field(default_factory=Counter)

    def add(self, other: "Counts") -> None:
        """Count what *other* has counted."""
        self.done += other.done
        self.failed += other.failed
        self.errors += other.errors
        self.batches += other.batches
        self.seconds += other.seconds
        self.durations.update(other.durations)


@dataclass(slots=True)
class Tally:
    """Thread-safe; a few numbers for each model, however many rows there are."""

    _counts: dict[Any, Counts] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def count_done(self, model: object, rows: int) -> None:
        """Note that so many rows were completed."""
        with self._lock:
            self._of(model).done += rows

    def count_error(self, model: object, *, final: bool) -> None:
        """Note a failed try, which the last one of a row is when it is *final*."""
        with self._lock:
            counts = self._of(model)
            counts.errors += 1
            counts.failed += final

    def count_batch(self, model: object, seconds: float) -> None:
        """Note that the last row of a claim has been written, so many seconds after the claim."""
        with self._lock:
            counts = self._of(model)
            counts.batches += 1
            counts.seconds += seconds
            counts.durations[bucket_of(seconds)] += 1

    def take(self) -> dict[Any, Counts]:
        """Return what has been counted since the last call."""
        with self._lock:
            taken, self._counts = self._counts, {}
            return taken

    def _of(self, model: object) -> Counts:
        return self._counts.setdefault(model, Counts())
