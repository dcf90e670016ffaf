"""What keeps a claimable model from being complete: the parts of the sentence with which ``RequireComplete`` stops."""

from collections.abc import Iterator, Mapping
from typing import Any

from django.core.management.base import CommandError
from django.db import connections, models
from django.db.models import Exists, OuterRef, Q

from django_taskclaim.db.sql import real_name
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.fields import RangePositionField, StatusField
from django_taskclaim.links import LINK
from django_taskclaim.ranges.keys import Keys
from django_taskclaim.states import Status

#: Rows of one state that are counted; where there are more, nobody waits for the exact number.
MOST_COUNTED = 10_000

Filter = Q | Mapping[str, Any]


class NotComplete(TaskClaimError, CommandError):
    """A migration was stopped before it could drop anything; ``migrate`` prints the sentence and exits with 1."""


def unfinished_rows(
    model: type[models.Model], alias: str, only: Filter | None, states: set[Status]
) -> Iterator[str]:
    """Yield how many rows are in each of *states*."""
    status = next(
        (one for one in model._meta.concrete_fields if isinstance(one, StatusField)), None
    )
    if status is None:
        raise NotComplete(
            f"RequireComplete: {model._meta.label} has no claim columns at this point of the migrations; place it"
            " behind the migration that adds them and before the one that removes them."
        )
    rows = _all(model, alias).filter(_as_q(only))
    for state in (one for one in Status if one in states):
        if found := _count(rows.filter(**{status.name: state.value})):
            yield f"{_number(found)} {'is' if found == 1 else 'are'} {state.value}"


def sources_without_companion(
    model: type[models.Model], alias: str, only: Filter | None
) -> Iterator[str]:
    """Yield how many rows of the source of the companion *model* have no companion."""
    link = next((one for one in model._meta.get_fields() if one.name == LINK), None)
    if not isinstance(link, models.ForeignObject):
        raise NotComplete(
            f"RequireComplete: every_source is for companions, and {model._meta.label} has no link to a source."
        )
    source: Any = link.related_model
    if not is_there(source, alias):
        if _all(model, alias).exists():
            raise NotComplete(
                f"RequireComplete: every_source of {model._meta.label} cannot be asked, for the sources are not on"
                f" {alias!r} beside their companions."
            )
        return
    same = {own.attname: OuterRef(theirs.attname) for own, theirs in link.related_fields}
    has_none = ~Exists(_all(model, alias).filter(**same))
    if found := _count(_all(source, alias).filter(_as_q(only), has_none)):
        rows, have = ("row", "has") if found == 1 else ("rows", "have")
        yield f"{_number(found)} {rows} of {source._meta.label} {have} no row there"


def is_range(model: type[models.Model]) -> bool:
    """Say whether the rows of *model*, as a migration knows it, are ranges of keys."""
    return any(isinstance(one, RangePositionField) for one in model._meta.concrete_fields)


def unplanned_keys(model: type[models.Model], alias: str, source: Any) -> Iterator[str]:
    """Yield that *source* has rows which no range of *model* holds; a source of None is one that nothing names."""
    last = _all(model, alias).order_by("-position").values_list("upper", flat=True).first()
    if source is None:
        if last is not None:
            raise NotComplete(
                f"RequireComplete: {model._meta.label} has gone from the code, so nothing tells what its ranges are of;"
                ' say source="app.Model".'
            )
        return
    keys = Keys(source, alias)
    if is_there(source, alias) and keys.rows(keys.decode(last)).exists():
        behind = "behind the last range" if last is not None else "and no range is planned"
        yield f"{source._meta.label} has rows {behind}"


def is_there(model: Any, alias: str) -> bool:
    """Say whether the table exists; one whose name carries a schema is taken to, for no list of tables shows it."""
    name = real_name(model._meta.db_table)
    if '"."' in name or "`.`" in name:
        return True
    connection = connections[alias]
    with connection.cursor() as cursor:
        return name in connection.introspection.table_names(cursor, include_views=True)


def _all(model: type[models.Model], alias: str) -> "models.QuerySet[models.Model]":
    """Return every row, also those that a manager hides, in no order."""
    return models.QuerySet(model, using=alias).order_by()


def _as_q(given: Filter | None) -> Q:
    return given if isinstance(given, Q) else Q(**(given or {}))


def _count(rows: "models.QuerySet[models.Model]") -> int:
    return rows[: MOST_COUNTED + 1].count()


def _number(found: int) -> str:
    return f"more than {MOST_COUNTED:,}" if found > MOST_COUNTED else f"{found:,}"
