"""Ranges of keys: planned over the primary key of a source, worked through in chunks, split where workers idle.

``keys`` compares and stores keys, ``target`` finds the ranges of a model, ``planning`` cuts them, ``late_commits``
waits until they have all their rows, ``walking`` does chunks and checkpoints, ``splitting`` splits, ``strip`` shows how
far they are.
"""

from django_taskclaim.ranges.manager import RangeManager, RangeQuerySet
from django_taskclaim.ranges.planning import end_of_source, is_unplanned, open_more
from django_taskclaim.ranges.strip import Strip, strip
from django_taskclaim.ranges.walking import end_walks, halve, refuse_unfinished

__all__ = [
    "RangeManager",
    "RangeQuerySet",
    "Strip",
    "end_of_source",
    "end_walks",
    "halve",
    "is_unplanned",
    "open_more",
    "refuse_unfinished",
    "strip",
]
