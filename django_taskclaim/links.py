"""How a companion finds its source: the link from its row to one row of a table that may not be altered."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from django.db import models, router

from django_taskclaim.caching import memoized
from django_taskclaim.fields import AnyField

#: The field of a companion that leads to its source.
LINK = "source"

#: Where a source that was handed to a handler keeps the companion whose claim it runs under.
COMPANION = "_taskclaim_companion"

#: A source's key as the companion has it: a tuple also where it is one column.
SourceKeyValues = tuple[Any, ...]


class SourceLink(NamedTuple):
    """The link of one companion model. Key columns are in the same order on both sides."""

    companion: type[models.Model]
    source: type[models.Model]
    field: Any
    #: The companion's columns that hold the key.
    own: tuple[AnyField, ...]
    #: The source's columns that they are copies of.
    theirs: tuple[AnyField, ...]

    def key_of(self, row: models.Model) -> SourceKeyValues:
        """Return the key that the companion *row* has of its source."""
        return tuple(getattr(row, field.attname) for field in self.own)

    def alias_beside(self, alias: str) -> str:
        """Return the database of the sources of companions on the database *alias*.

        The one that ``SourceKey(using=…)`` names, else the one that the router writes the source model to.
        """
        if chosen := getattr(self.field, "using", None):
            return str(chosen)
        hint = self.companion()
        hint._state.db = alias
        return router.db_for_write(self.source, instance=hint)

    def with_keys(self, keys: Iterable[SourceKeyValues], alias: str) -> "models.QuerySet[Any]":
        """Return the sources with these keys on the database *alias*."""
        # Rows of the kind that `row.source` gives (django-polymorphic's are of several classes), but all of them: a
        # source that a manager hides is not gone.
        kind = type(self.source._base_manager.get_queryset())
        rows: models.QuerySet[Any] = kind(self.source, using=alias)
        if len(self.theirs) > 1:
            return rows.filter(pk__in=list(keys))
        return rows.filter(**{f"{self.theirs[0].attname}__in": [key for (key,) in keys]})

    def load(self, rows: Iterable[models.Model], alias: str) -> list[models.Model]:
        """Load the sources of *rows* from the database *alias* in one query, and return the rows without one."""
        by_key = {self.key_of(row): row for row in rows}
        for source in self.with_keys(by_key, alias):
            row = by_key.pop(tuple(getattr(source, field.attname) for field in self.theirs))
            # ``row.source`` asks no database then, nor does the way back.
            self.field.set_cached_value(row, source)
            if not self.field.remote_field.multiple:
                self.field.remote_field.set_cached_value(source, row)
        return list(by_key.values())


def is_companion(model: object) -> bool:
    """Say whether *model* is a ``SourceMixin`` model."""
    return bool(getattr(model, "taskclaim_companion", False))


@memoized
def source_link(model: type[models.Model]) -> SourceLink:
    """Return the link of the companion *model*; TypeError in one sentence where it has none that can work."""
    field: Any = next((one for one in model._meta.get_fields() if one.name == LINK), None)
    if not isinstance(field, models.ForeignObject):
        raise TypeError(
            f"{model._meta.label} has no field {LINK!r} that leads to another model; write {LINK} ="
            " models.OneToOneField(…), or SourceKey(…)."
        )
    own, theirs = zip(*field.related_fields, strict=True)
    return SourceLink(model, field.related_model, field, own, theirs)


def source_key_text(row: models.Model) -> str:
    """Return the key of the companion *row*'s source as people read it; empty for any other row.

    Asks no database: empty as well where the row was loaded without that key.
    """
    if not is_companion(type(row)):
        return ""
    return key_text(row.__dict__.get(field.attname) for field in source_link(type(row)).own)


def key_text(values: Iterable[object]) -> str:
    """Return the columns of a key as people read it, ``4711`` or ``acme, 3``; empty where one is missing."""
    parts = list(values)
    return "" if None in parts else ", ".join(str(part) for part in parts)


def companion_of(row: models.Model) -> Any:
    """Return the companion whose claim a handler's source *row* runs under; None for any other row."""
    return row.__dict__.get(COMPANION)


def as_claimed(row: Any) -> Any:
    """Return the row that carries the claim: the companion of a source that was handed out, else *row* itself."""
    return companion_of(row) or row
