"""Ranges for workers that find none due: settled, planned ahead, or split off from one that is running."""

from typing import Any

from django.db import models

from django_taskclaim.querysets.manager import ClaimQuerySet
from django_taskclaim.ranges.place import Place
from django_taskclaim.ranges.planning import end_of_plan, newest_key, plan
from django_taskclaim.ranges.settling import settle
from django_taskclaim.ranges.splitting import WORTH_SPLITTING, split_largest

#: Ranges that a worker plans at a time.
AHEAD = 16


def open_more(
    model: type[models.Model], alias: str, *, plans: bool = True, until: str | None = None
) -> bool:
    """See to it that workers find a range, and say whether there is one more now.

    Those that are settled become due; where none is due, the next are planned, where the model has that done, up to the
    key *until* if that is given; where none is open at all, due or not, the largest running one is split.
    """
    place = Place.of(model, alias)
    if settle(place):
        return True
    opened: ClaimQuerySet[Any] = ClaimQuerySet(model, using=alias).open()
    if opened.due().exists():
        return False
    ahead = ahead_of(model) if plans else None
    if ahead is not None:
        # While planned ones wait to be settled, what has come since is left to become a whole one.
        whole = opened.filter(**{place.claim_target.columns.iteration.name: 0}).exists()
        if plan(place, ahead, AHEAD, until=until, whole=whole):
            return True
    return not opened.exists() and split_largest(place, WORTH_SPLITTING)


def ahead_of(model: type[models.Model]) -> int | None:
    """Return how many rows the ranges have that workers plan by themselves; None where they plan none."""
    ahead: int | None = getattr(model, "plan_ahead", None)
    return ahead


def end_of_source(model: type[models.Model], alias: str) -> str | None:
    """Return the newest key of the source, as ``open_more`` takes it; None where it is empty."""
    return newest_key(Place.of(model, alias))


def is_unplanned(model: type[models.Model], alias: str, until: str | None) -> bool:
    """Say whether workers have ranges to plan yet, up to the key *until*; False without one."""
    if ahead_of(model) is None or until is None:
        return False
    place = Place.of(model, alias)
    key = place.key
    return key.rows().filter(key.between(end_of_plan(place).upper, until)).exists()
