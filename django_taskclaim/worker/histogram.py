"""How long many things took, in a few numbers: counts by size on a scale that grows by half an octave a step.

A quantile read from it is wrong by a fifth at most, and histograms of several processes add up.
"""

import math
from collections import Counter
from collections.abc import Mapping

#: What falls into the first bucket, in seconds.
SHORTEST = 0.001
STEPS_PER_OCTAVE = 2
#: Two days; what takes longer is counted as that.
LAST = 55


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
