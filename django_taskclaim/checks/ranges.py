"""Models of ranges: a source that is there, on the same database."""

from collections.abc import Iterator

from django.apps import apps
from django.core.checks import CheckMessage
from django.db import connections, models, router

from django_taskclaim import conf
from django_taskclaim.checks.messages import message
from django_taskclaim.columns import claim_columns, has_ranges, is_claimable
from django_taskclaim.db import is_supported
from django_taskclaim.models import RangeMixin
from django_taskclaim.ranges.keys import RangeTarget, source_of
from django_taskclaim.ranges.planning import refuse_unknown_commits


def check_ranges() -> list[CheckMessage]:
    """E071 to E075 for every model with RangeMixin."""
    found = [model for model in apps.get_models() if issubclass(model, RangeMixin)]
    return [problem for model in found for problem in problems_of(model)]


def problems_of(model: type[models.Model]) -> Iterator[CheckMessage]:
    """Yield what is wrong with one model of ranges."""
    label, declared = model._meta.label, f"class {model.__name__}(RangeMixin, TaskMixin):"
    if model._meta.parents or not has_ranges(model):
        text = f"{label} inherits from another table, so its ranges cannot be planned in bulk nor checked by one token."
        yield message("E073", text, declared, model)
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
    if not is_claimable(model) or not is_supported(connections[own]):
        return
    try:
        refuse_unknown_commits(RangeTarget.of(model, own))
    except (TypeError, ValueError) as error:
        can_wait = claim_columns(model).not_before is not None
        hint = "commits_within = timedelta(minutes=10)" if can_wait else declared
        yield message("E074", str(error), hint, model)
    try:
        conf.or_none(conf.whole_number()).check(getattr(model, "plan_ahead", None), "plan_ahead")
    except ValueError as error:
        yield message("E075", f"{label}: {error}", "plan_ahead = 100_000", model)
