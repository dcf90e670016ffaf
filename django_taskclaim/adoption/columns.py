"""A column that is new to rows which are there already: what they get may differ from what new rows get."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import NOT_PROVIDED, Value

from django_taskclaim.fields import AnyField, StatusField


@dataclass(frozen=True)
class NewColumn:
    """The field as it stays, and as it is born: with the value of the rows that are there as its default."""

    field: AnyField
    born: AnyField

    @property
    def changes(self) -> bool:
        """Whether the default must be changed once the column is there."""
        return self.born is not self.field

    @property
    def existing(self) -> Any:
        """What rows get that are there already, NULL with None."""
        return constant_default(self.born)


def new_columns(fields: Sequence[AnyField], existing: str) -> list[NewColumn]:
    """Return the columns, with the state *existing* for rows that are there."""
    return [NewColumn(field, _born(field, existing)) for field in fields]


def _born(field: AnyField, existing: str) -> AnyField:
    if not isinstance(field, StatusField) or constant_default(field) == existing:
        return field
    return with_default(field, existing)


def with_default(field: AnyField, value: Any) -> AnyField:
    """Return the field with another default in the database, with none for NOT_PROVIDED."""
    other = copy.copy(field)
    other.__dict__.pop("_db_default_expression", None)
    other.default = value
    other.db_default = value
    return other


def constant_default(field: AnyField) -> Any:
    """Return the value of the field's default in the database, None without one or where it is an expression."""
    if not has_db_default(field):
        return None
    default = getattr(field, "db_default", None)
    if isinstance(default, Value):
        default = default.value
    return None if hasattr(default, "resolve_expression") else default


def has_db_default(field: AnyField) -> bool:
    """Say whether the database gives the column a value that a statement leaves out."""
    return getattr(field, "db_default", NOT_PROVIDED) is not NOT_PROVIDED


def must_be_computed(field: AnyField) -> bool:
    """Say whether the value of rows that are there is no constant, so that each of them must be written."""
    if not has_db_default(field):
        return not field.null
    return constant_default(field) is None
