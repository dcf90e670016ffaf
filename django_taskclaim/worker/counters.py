"""What one process has done: counts that its threads share, by model until somebody takes them.

Durations are kept in a few numbers: counts by size on a scale that grows by half an octave a step. A quantile read from
them is wrong by a fifth at most, and the counts of several processes add up.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock

from django.db.models import Model

#: What falls into the first bucket, in seconds.
SHORTEST = 0.001
STEPS_PER_OCTAVE = 2
#: Two days; what takes longer is counted as that.
LAST = 55


#: What is counted of each model, as columns of ``ThroughputMinute``: rows completed; rows that ended in ``failed``;
#: tries that failed, the last ones of failed rows among them; rows claimed; claims found lost; expired rows put back.
NUMBERS = ("done", "failed", "errors", "claimed", "lost", "expired")
#: How long things took: batches, from the claim to the last row written; handlers, by row; and how long rows had been
#: due when they were claimed, by the first row of each claim.
TIMES = ("durations", "ran", "waited")


@dataclass(slots=True)
class Counts:
    """What became of the rows of one model: the NUMBERS, and of each of the TIMES how many by bucket."""

    numbers: Counter[str] = field(default_factory=Counter)
    times: dict[str, Counter[int]] = field(
        default_factory=lambda: {name: Counter() for name in TIMES}
    )


@dataclass(slots=True)
class Counters:
    """Thread-safe; a few numbers for each model, however many rows there are."""

    #: Of all models, since the process began.
    done: int = 0
    failed: int = 0
    last_error: str = ""
    _by_model: defaultdict[type[Model], Counts] = field(default_factory=lambda: defaultdict(Counts))
    _lock: Lock = field(default_factory=Lock)

    def count(self, model: type[Model], **numbers: int) -> None:
        """Add to some of the NUMBERS."""
        with self._lock:
            self.done += numbers.get("done", 0)
            self.failed += numbers.get("failed", 0)
            self._by_model[model].numbers.update(numbers)

    def count_times(self, model: type[Model], name: str, seconds: Iterable[float]) -> None:
        """Note how long some things took."""
        buckets = [bucket_of(one) for one in seconds]
        with self._lock:
            self._by_model[model].times[name].update(buckets)

    def count_error(self, model: type[Model], error: str, *, final: bool) -> None:
        """Note what a try ended with; only the last try of a row makes it a failed one."""
        self.last_error = error[:500]
        self.count(model, errors=1, failed=int(final))

    def take(self) -> dict[type[Model], Counts]:
        """Return what has been counted by model since the last call."""
        with self._lock:
            taken, self._by_model = self._by_model, defaultdict(Counts)
            return taken


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
