"""Ranges of keys: planned over the primary key of a source, worked through in chunks, split where workers idle.

``keys`` compares and stores keys and finds the ranges of a model, ``planning`` cuts them and makes them due,
``walking`` does chunks and checkpoints and splits, ``manager`` has what is done with all ranges of a source.
"""

from django_taskclaim.ranges.manager import RangeManager, RangeQuerySet

__all__ = ["RangeManager", "RangeQuerySet"]
