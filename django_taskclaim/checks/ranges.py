"""Models of ranges: a source that is there, on the same database."""

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage
from django.db import connections, models, router

from django_taskclaim.checks.messages import message
from django_taskclaim.columns import claim_columns, has_ranges, is_claimable
from django_taskclaim.db import is_supported
from django_taskclaim.models import RangeMixin
from django_taskclaim.ranges.keys import RangeTarget, source_of
from django_taskclaim.ranges.planning import refuse_unknown_commits


def check_ranges(**kwargs: Any) -> list[CheckMessage]:
    """E071 to E075 for every model with RangeMixin."""
    found = [model for model in apps.get_models() if issubclass(model, RangeMixin)]
    return [problem for model in found for problem in problems_of(model)]


def problems_of(model: type[models.Model]) -> Iterator[CheckMessage]:
    """Yield what is wrong with one model of ranges."""
    label = model._meta.label
    if model._meta.parents or not has_ranges(model):
        yield message(
            "E073",
            f"{label} inherits from another table, so its ranges cannot be planned in bulk nor checked by one token.",
            f"class {model.__name__}(RangeMixin, TaskMixin):",
            model,
        )
    try:
        source = source_of(model)
    except TypeError as error:
        yield message("E071", str(error), 'source = Photo, or source = "photos.Photo"', model)
        return
    own, others = router.db_for_write(model), router.db_for_write(source)
    if own != others:
        yield message(
            "E072",
            f"{label} is written to {own!r} and {source._meta.label} to {others!r}: a chunk and its checkpoint"
            " cannot be one transaction.",
            f"Let the router's db_for_write() send {model.__name__} to {others!r}.",
            model,
        )
    # A database of another kind has E016.
    if is_claimable(model) and is_supported(connections[own]):
        yield from problems_of_planning(model, own)


def problems_of_planning(model: type[models.Model], alias: str) -> Iterator[CheckMessage]:
    """Yield what is wrong with how the ranges of a model come to be."""
    try:
        refuse_unknown_commits(RangeTarget.of(model, alias))
    except (TypeError, ValueError) as error:
        hint = "commits_within = timedelta(minutes=10)"
        if claim_columns(model).not_before is None:
            hint = f"class {model.__name__}(RangeMixin, TaskMixin):"
        yield message("E074", str(error), hint, model)
    ahead: Any = getattr(model, "plan_ahead", None)
    if ahead is not None and (isinstance(ahead, bool) or not isinstance(ahead, int) or ahead < 1):
        yield message(
            "E075",
            f"{model._meta.label}.plan_ahead must be a whole number of rows from 1, or None, not {ahead!r}.",
            "plan_ahead = 100_000",
            model,
        )
