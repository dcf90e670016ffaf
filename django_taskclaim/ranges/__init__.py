"""Ranges of keys: planned over the primary key of a source, worked through in chunks, split where workers idle.

``keys`` compares and stores keys and finds the ranges of a model, ``planning`` cuts them and makes them due,
``walking`` does chunks and checkpoints, ``splitting`` splits, ``strip`` shows how far they are.
"""

from django_taskclaim.ranges.manager import RangeManager, RangeQuerySet

__all__ = ["RangeManager", "RangeQuerySet"]
