"""``RequireComplete``: a step of a migration that stops it while rows are unfinished.

Users' migrations name this class, so its import path and its arguments never change.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from django.apps import apps as installed
from django.core.management.base import CommandError
from django.db import connections, models, router
from django.db.migrations.operations.base import Operation, OperationCategory
from django.db.models import Exists, OuterRef, Q

from django_taskclaim.db.sql import real_name
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.fields import RangePositionField, StatusField
from django_taskclaim.formatting import counted, listed
from django_taskclaim.links import LINK
from django_taskclaim.ranges.keys import Keys
from django_taskclaim.ranges.target import source_of
from django_taskclaim.states import Status

#: Rows of one state that are counted; where there are more, nobody waits for the exact number.
MOST_COUNTED = 10_000

Filter = Q | Mapping[str, Any]


class NotComplete(TaskClaimError, CommandError):
    """A migration was stopped before it could drop anything; ``migrate`` prints the sentence and exits with 1."""


class RequireComplete(Operation):
    """Stop the migration, with one sentence, while rows of a claimable model are unfinished.

    *model* is a label, ``"photos.Photo"``: a model with claim columns, a companion, or ranges. Every row that matches
    *filter* (``{"country": "NZ"}``, or a ``Q``) must be complete, and with *allow_failed* complete or failed.

    With *every_source* each row of a companion's source, or each that matches the filter given there, must also have a
    companion. Ranges must reach to the last key of the source, which is read off the model; once that has gone from
    the code, *source* names it, ``"photos.Photo"``.

    A table that is empty, or missing, is complete: so is a fresh database. Nothing is changed; reversing does nothing.
    Raises NotComplete.
    """

    category = OperationCategory.PYTHON
    reduces_to_sql = False
    reversible = True

    def __init__(
        self,
        model: str,
        filter: Filter | None = None,
        allow_failed: bool = False,
        every_source: Filter | bool = False,
        source: str | None = None,
        elidable: bool = False,
    ) -> None:
        self.model = model
        self.filter = filter
        self.allow_failed = allow_failed
        self.every_source = every_source
        self.source = source
        self.elidable = elidable  # type: ignore[misc]  # as Django's RunPython does

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Leave the models as they are."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        alias = schema_editor.connection.alias
        model = self._model_of(from_state.apps, self.model)
        # Tables that others look after are looked at, too, so this is not `allow_migrate_model` of our base.
        if not router.allow_migrate_model(alias, model) or not _is_there(model, alias):
            return
        wanting = [
            *self._unfinished(model, alias),
            *self._without_companion(model, alias),
            *self._unplanned(model, alias, from_state.apps),
        ]
        if wanting:
            raise NotComplete(
                f"{self.model} is not complete on {alias!r}, so nothing was dropped: {listed(wanting)}"
                f" (manage.py claimstatus {self.model} tells more)."
            )

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        """Nothing was done, so nothing is undone."""

    def describe(self) -> str:
        return f"Require that {self.model} is complete"

    @property
    def migration_name_fragment(self) -> str:
        return f"require_complete_{self.model.rpartition('.')[2].lower()}"

    # What is wanting

    def _model_of(self, apps: Any, label: str) -> Any:
        try:
            return apps.get_model(label)
        except (LookupError, ValueError) as error:
            raise NotComplete(
                f"RequireComplete({self.model!r}): this migration knows no model {label!r}; write it app.Model, and"
                " add the newest migration of its app to the dependencies."
            ) from error

    def _unfinished(self, model: Any, alias: str) -> Iterator[str]:
        status = self._status_of(model)
        rows = _all(model, alias).filter(_as_q(self.filter))
        for state in Status:
            if state == Status.COMPLETE or (state == Status.FAILED and self.allow_failed):
                continue
            found = rows.filter(**{status: state.value})[: MOST_COUNTED + 1].count()
            if found:
                number = f"more than {MOST_COUNTED:,}" if found > MOST_COUNTED else f"{found:,}"
                yield f"{number} {'is' if found == 1 else 'are'} {state.value}"

    def _status_of(self, model: Any) -> str:
        found = [one.name for one in model._meta.concrete_fields if isinstance(one, StatusField)]
        if not found:
            raise NotComplete(
                f"RequireComplete({self.model!r}): the model has no claim columns at this point of the migrations;"
                " place it behind the migration that adds them and before the one that removes them."
            )
        return str(found[0])

    def _without_companion(self, model: Any, alias: str) -> Iterator[str]:
        if self.every_source is False:
            return
        link = next((one for one in model._meta.get_fields() if one.name == LINK), None)
        if not isinstance(link, models.ForeignObject):
            raise NotComplete(
                f"RequireComplete({self.model!r}): every_source is for companions, and {self.model} has no link to a"
                " source."
            )
        source: Any = link.related_model
        if not _is_there(source, alias):
            if _all(model, alias).exists():
                raise NotComplete(
                    f"RequireComplete({self.model!r}): every_source cannot be asked, for the sources are not on"
                    f" {alias!r} beside their companions."
                )
            return
        wanted = _as_q(None if self.every_source is True else self.every_source)
        same = {own.attname: OuterRef(theirs.attname) for own, theirs in link.related_fields}
        rows = _all(source, alias).filter(wanted, ~Exists(_all(model, alias).filter(**same)))
        missing = rows[: MOST_COUNTED + 1].count()
        if missing:
            more = "more than " if missing > MOST_COUNTED else ""
            rows_of = f"{counted(min(missing, MOST_COUNTED), 'row')} of {source._meta.label}"
            yield f"{more}{rows_of} {'has' if missing == 1 else 'have'} no row there"

    def _unplanned(self, model: Any, alias: str, apps: Any) -> Iterator[str]:
        if not any(isinstance(one, RangePositionField) for one in model._meta.concrete_fields):
            return
        last = _all(model, alias).order_by("-position").values_list("upper", flat=True).first()
        source = self._source_of_ranges(apps)
        if source is None:
            if last is not None:
                raise NotComplete(
                    f"RequireComplete({self.model!r}): {self.model} has gone from the code, so nothing tells what its"
                    ' ranges are of; say source="app.Model".'
                )
            return
        keys = Keys(source, alias)
        if _is_there(source, alias) and keys.rows(keys.decode(last)).exists():
            behind = "behind the last range" if last is not None else "and no range is planned"
            yield f"{source._meta.label} has rows {behind}"

    def _source_of_ranges(self, apps: Any) -> Any:
        """Return the source as this migration knows it; None where nothing names it."""
        label = self.source
        if label is None:
            try:
                label = source_of(installed.get_model(self.model))._meta.label
            except (LookupError, TypeError):
                return None
        return self._model_of(apps, label)


def _all(model: Any, alias: str) -> "models.QuerySet[Any]":
    """Return every row, whatever managers hide and however the model is ordered."""
    return models.QuerySet(model, using=alias).order_by()


def _as_q(given: Filter | None) -> Q:
    if given is None:
        return Q()
    return given if isinstance(given, Q) else Q(**given)


def _is_there(model: Any, alias: str) -> bool:
    """Say whether the table exists; one whose name carries a schema is taken to, for no list of tables shows it."""
    name = real_name(model._meta.db_table)
    if '"."' in name or "`.`" in name:
        return True
    connection = connections[alias]
    with connection.cursor() as cursor:
        return name in connection.introspection.table_names(cursor, include_views=True)
