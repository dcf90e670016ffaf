"""The ranges of one model on one database, and the keys of their source."""

from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.db import models
from django.db.models import Q

from django_taskclaim.db.sql import WAIT
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.ranges.keys import Keys, key_at


@dataclass(frozen=True, slots=True)
class RangeTarget:
    """Where the ranges of a model are stored, and what they are ranges of. Keys are texts, as ranges store them."""

    model: type[models.Model]
    claims: ClaimTarget
    keys: Keys

    @classmethod
    def of(cls, model: type[models.Model], alias: str) -> "RangeTarget":
        """Return the target of *model* on the database *alias*; TypeError where it names no source."""
        return cls(model, ClaimTarget.of(model, alias), Keys(source_of(model), alias))

    @property
    def ranges(self) -> "models.QuerySet[Any]":
        """Every range, also those that a manager hides."""
        return models.QuerySet(self.model, using=self.claims.alias).order_by()

    def between(self, after: str | None, until: str | None) -> Q:
        """Match the source's keys beyond *after* up to and with *until*; None is no bound."""
        return self.keys.between(self.keys.decode(after), self.keys.decode(until))

    def source_rows(self, after: str | None, until: str | None) -> "models.QuerySet[Any]":
        """Return the rows of the source between two keys, in the order of keys."""
        return self.keys.rows().filter(self.between(after, until))

    def key_at(self, rows: "models.QuerySet[Any]", place: int) -> str | None:
        """Return the key of the row at *place* (from 0) of ordered *rows*; None where there are not so many."""
        key = key_at(rows, place)
        return None if key is None else self.keys.encode(key)

    def locked(self, pk: Any) -> Any:
        """Lock a range for the current transaction and return it as it is now; None where it is gone.

        Waits for a chunk of its holder to end. While a range is locked its end stays where it is.
        """
        fields = self.model._meta.concrete_fields
        table = self.claims.table
        found = self.claims.dialect.select(table, fields, table.keyed([pk]), WAIT)
        names = [field.attname for field in fields]
        return self.model.from_db(self.claims.alias, names, found[0]) if found else None


def reached(range_: Any) -> str | None:
    """Return the key behind which the work on a range goes on."""
    text: str | None = range_.lower if range_.checkpoint is None else range_.checkpoint
    return text


def source_of(model: type[models.Model]) -> type[models.Model]:
    """Return the model whose keys the ranges of *model* are of; TypeError in one sentence where it names none."""
    named: Any = getattr(model, "source", None)
    label = model._meta.label
    try:
        source = apps.get_model(named) if isinstance(named, str) else named
    except (LookupError, ValueError) as error:
        raise TypeError(f"{label}.source is {named!r}, and there is no such model.") from error
    if not (isinstance(source, type) and issubclass(source, models.Model)) or source._meta.abstract:
        raise TypeError(
            f"{label}.source must be the model whose keys its ranges are of, not {named!r}."
        )
    return source
