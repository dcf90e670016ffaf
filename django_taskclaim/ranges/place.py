"""One model of ranges on one database: its columns, and the keys of its source."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from django.apps import apps
from django.db import models

from django_taskclaim.db.sql import SQL, value
from django_taskclaim.fields import AnyField
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.ranges.keys import SourceKey


class Bounds(NamedTuple):
    """What a range is, as stored: keys are texts, ``lower`` and ``checkpoint`` excluded, ``upper`` included."""

    lower: str | None
    upper: str
    checkpoint: str | None
    position: float
    rows_planned: int
    rows_done: int

    @property
    def reached(self) -> str | None:
        """The key behind which the work goes on."""
        return self.lower if self.checkpoint is None else self.checkpoint

    @property
    def is_done(self) -> bool:
        return self.checkpoint == self.upper

    @property
    def rows_left(self) -> int:
        """How many rows are left by what was planned: an estimate."""
        return max(0, self.rows_planned - self.rows_done)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the ranges of one model are kept, and what they are ranges of."""

    model: type[models.Model]
    claim_target: ClaimTarget
    key: SourceKey

    @classmethod
    def of(cls, model: type[models.Model], alias: str) -> "Place":
        """Return the place of *model*; TypeError where it names no source."""
        return cls(model, ClaimTarget.of(model, alias), SourceKey(source_of(model), alias))

    @property
    def grows(self) -> bool:
        """Say whether rows come behind the newest key while others are worked on."""
        return bool(getattr(self.model, "growing", False))

    def field(self, name: str) -> AnyField:
        """Return one of the columns that a range has."""
        return self.model._meta.get_field(name)  # type: ignore[return-value]

    def assign(self, name: str, given: Any) -> SQL:
        """Return the SET of a column, to a value or to an expression."""
        to = given if isinstance(given, SQL) else value(given)
        return self.claim_target.table.assign(self.field(name), to)

    @property
    def rows(self) -> "models.QuerySet[Any]":
        """Return every range, whatever managers hide."""
        return models.QuerySet(self.model, using=self.claim_target.alias).order_by()

    def bounds(self, pk: Any) -> Bounds | None:
        """Return what is stored of a range, without a lock; None where it is gone."""
        found = self.rows.filter(pk=pk).values_list(*Bounds._fields).first()
        return None if found is None else Bounds(*found)

    def locked_bounds(self, pk: Any) -> Bounds:
        """Return what is stored of a range that this transaction has locked, as of now and not of its beginning."""
        fields = [self.field(name) for name in Bounds._fields]
        ((*found,),) = self.claim_target.dialect.lock_at_once(self.claim_target.table, [pk], fields)
        return Bounds(*found)


def source_of(model: type[models.Model]) -> type[models.Model]:
    """Return the model whose keys the ranges of *model* are of; TypeError in one sentence where it names none."""
    named: Any = getattr(model, "source", None)
    try:
        source = apps.get_model(named) if isinstance(named, str) else named
    except (LookupError, ValueError) as error:
        raise TypeError(
            f"{model._meta.label}.source is {named!r}, and there is no such model."
        ) from error
    if not (isinstance(source, type) and issubclass(source, models.Model)) or source._meta.abstract:
        raise TypeError(
            f"{model._meta.label}.source must be the model whose keys its ranges are of, not {named!r}."
        )
    return source
