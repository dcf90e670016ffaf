"""What one process has done: counts that its threads share, by model until somebody takes them.

Durations are kept in a few numbers: counts by size on a scale that grows by half an octave a step. A quantile read from
them is wrong by a fifth at most, and the counts of several processes add up.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

from django.db.models import Model

#: What falls into the first bucket, in seconds.
SHORTEST = 0.001
STEPS_PER_OCTAVE = 2
#: Two days; what takes longer is counted as that.
LAST = 55


@dataclass(slots=True)
class Counts:
    """What became of the rows of one model."""

    done: int = 0
    #: Rows that ended in ``failed``.
    failed: int = 0
    #: Tries that failed, the last ones of failed rows among them.
    errors: int = 0
    #: How many batches took how long, by bucket.
    durations: Counter[int] = field(default_factory=Counter)

    def add(self, other: "Counts") -> None:
        """Count what *other* has counted."""
        self.done += other.done
        self.failed += other.failed
        self.errors += other.errors
        self.durations.update(other.durations)


@dataclass(slots=True)
class Counters:
    """Thread-safe; a few numbers for each model, however many rows there are."""

    #: Of all models, since the process began.
    done: int = 0
    failed: int = 0
    last_error: str = ""
    _by_model: dict[type[Model], Counts] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def count_done(self, model: type[Model], rows: int) -> None:
        """Note that so many rows were completed."""
        with self._lock:
            self.done += rows
            self._of(model).done += rows

    def count_error(self, model: type[Model], error: str, *, final: bool) -> None:
        """Note what a try ended with; only the last try of a row makes it a failed one."""
        with self._lock:
            self.failed += final
            self.last_error = error[:500]
            counts = self._of(model)
            counts.errors += 1
            counts.failed += final

    def count_batch(self, model: type[Model], seconds: float) -> None:
        """Note that the last row of a claim has been written, so many seconds after the claim."""
        with self._lock:
            self._of(model).durations[bucket_of(seconds)] += 1

    def take(self) -> dict[type[Model], Counts]:
        """Return what has been counted by model since the last call."""
        with self._lock:
            taken, self._by_model = self._by_model, {}
            return taken

    def _of(self, model: type[Model]) -> Counts:
        return self._by_model.setdefault(model, Counts())


def bucket_of(seconds: float) -> int:
    """Return the number of the bucket that so many seconds fall into."""
    if seconds <= SHORTEST:
        return 0
    return min(LAST, math.ceil(STEPS_PER_OCTAVE * math.log2(seconds / SHORTEST)))


def longest_in(bucket: int) -> float:
    """Return where a bucket ends, in seconds."""
    return float(SHORTEST * 2 ** (bucket / STEPS_PER_OCTAVE))


def quantile(counts: Mapping[int, int], share: float) -> float | None:
    """Return what *share* of all were quicker than, in seconds; None where nothing was counted."""
    wanted = share * sum(counts.values())
    if not wanted:
        return None
    for bucket in sorted(counts):
        if wanted <= counts[bucket]:
            # As if what is in a bucket lay evenly in it, on the scale that it has.
            return longest_in(bucket - 1) * 2 ** (wanted / counts[bucket] / STEPS_PER_OCTAVE)
        wanted -= counts[bucket]
    return longest_in(max(counts))


def packed(counts: Mapping[int, int]) -> str:
    """Return the counts as a short text: ``12:5 13:40``."""
    return " ".join(f"{bucket}:{counts[bucket]}" for bucket in sorted(counts))


def unpacked(text: str) -> Counter[int]:
    """Return what ``packed`` was given."""
    pairs = (part.split(":") for part in text.split())
    return Counter({int(bucket): int(count) for bucket, count in pairs})
