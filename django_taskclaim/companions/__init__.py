"""Companions: claims for the rows of a table that may not be altered, kept in a table beside it.

``populating`` makes their rows. ``sources`` loads the sources, hands them to handlers, and finds rows whose source is
gone. How a companion finds its source is in ``django_taskclaim.columns``, because completions ask that, too.
"""

from django_taskclaim.columns import companion_of
from django_taskclaim.companions.manager import CompanionManager, CompanionQuerySet
from django_taskclaim.companions.sources import load_sources

__all__ = ["CompanionManager", "CompanionQuerySet", "companion_of", "load_sources"]
