"""What one process has done: counts that its threads share, by model until somebody takes them.

Rows are counted by what became of them: ``done``; ``failed``, rows that ended so; ``errors``, tries that failed, the
last ones of failed rows among them; ``claimed``; ``lost``, claims found lost; ``expired``, rows put back.

How long things took is counted by size, on a scale that grows by half an octave a step, ``ran 12`` for the twelfth: a
sum read from that is wrong by a fifth at most. ``ran`` are of handlers, by row, and ``waited`` of the first row of each
claim, since it was due.

The counts of several processes add up.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock

from django.db.models import Model

#: What falls into the first bucket, in seconds.
SHORTEST = 0.001
STEPS_PER_OCTAVE = 2
#: Two days; what takes longer is counted as that.
LAST = 55
#: Where each bucket ends, in seconds.
ENDS = [SHORTEST * 2 ** (bucket / STEPS_PER_OCTAVE) for bucket in range(LAST + 1)]

#: How many of what, by the names above.
Counts = Counter[str]


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
        """Add to what has become of rows."""
        with self._lock:
            self.done += numbers.get("done", 0)
            self.failed += numbers.get("failed", 0)
            self._by_model[model].update(numbers)

    def count_times(self, model: type[Model], name: str, seconds: Iterable[float]) -> None:
        """Note how long some things took."""
        found = Counter(bisect_left(ENDS, one, hi=LAST) for one in seconds)
        buckets = {f"{name} {bucket}": number for bucket, number in found.items()}
        with self._lock:
            self._by_model[model].update(buckets)

    def count_error(self, model: type[Model], error: str, *, final: bool) -> None:
        """Note what a try ended with; only the last try of a row makes it a failed one."""
        self.last_error = error[:500]
        self.count(model, errors=1, failed=int(final))

    def take(self) -> dict[type[Model], Counts]:
        """Return what has been counted by model since the last call."""
        with self._lock:
            taken, self._by_model = self._by_model, defaultdict(Counts)
            return taken


def times(counts: Counts, name: str) -> dict[int, int]:
    """Return how many of the times under this name fell into each bucket."""
    found = ((key.partition(" "), count) for key, count in counts.items())
    return {int(bucket): count for (what, _, bucket), count in found if bucket and what == name}
