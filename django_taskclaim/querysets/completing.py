"""Finishing rows well, each in the way that the policy of its model names; the worker comes here like any caller."""

from collections.abc import Collection, Sequence
from functools import cache, partial
from typing import Any

from django.db import models

from django_taskclaim.claim import COMPLETED as ENDED_WELL
from django_taskclaim.columns import LINK, KeyColumns, is_claimable, is_companion, source_link
from django_taskclaim.completion import Archive, Clear, Delete
from django_taskclaim.db.sql import SQL, Change, KeyTable
from django_taskclaim.exceptions import SourceGone, TaskClaimError
from django_taskclaim.fields import AnyField
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets import scope
from django_taskclaim.querysets.fence import refuse_names
from django_taskclaim.querysets.operating import can_fast_delete, delete_locked
from django_taskclaim.querysets.scope import ClaimTarget, Columns
from django_taskclaim.querysets.writes import Given, HeldRows, Write
from django_taskclaim.signals import rows_completed
from django_taskclaim.states import Status

#: The prefix of a source's column, where the companion has a column of the same name.
PREFIX = f"{LINK}__"


#: What instances show of rows that are gone.
AS_LEFT: Columns = {"status": Status.COMPLETE, "expires_at": None}


def complete(
    model: type[models.Model],
    rows: object,
    update_fields: Collection[str],
    *,
    savepoint: bool = True,
) -> int:
    """Finish rows well, each as the policy of its model says, and return how many; see ``ClaimQuerySet.complete``.

    SourceGone where a source of a companion is to be written and not there any more. Without a *savepoint* an error
    ends the transaction that is open.
    """
    checked_results(model, update_fields)
    given = Given(rows)
    # Each may raise, so all are made before the first one writes.
    verbs = [_completion(held.target, update_fields) for held in given.held]
    for held, verb in zip(given.held, verbs, strict=True):
        verb.savepoint = savepoint
        given.write(held, verb)
    return given.end()


def _completion(target: ClaimTarget, names: Collection[str]) -> Write:
    """Return what the policy of the model does with rows, and how their results are written."""
    policy, results = policy_for(target.model).completion, checked_results(target.model, names)
    own = [field for field in results if field.model is target.columns.owner]
    of_source = [field for field in results if not issubclass(target.model, field.model)]
    inherited = [field for field in results if field not in (*own, *of_source)]
    verb = Write(sets=scope.COMPLETED, how=ENDED_WELL, signal=rows_completed)
    match policy:
        case Clear():
            # It is written also without a pause: then the rows done last stand behind all others that are due.
            pause = {"not_before": policy.pause}
            verb.sets = {**scope.AS_NEW, **pause, "completed_at": scope.NOW, **scope.OPEN_AGAIN}
        case Archive():
            verb.shown, verb.then = AS_LEFT, [partial(_copy, policy.to), _remove]
        case Delete():
            verb.shown, own, inherited = AS_LEFT, [], []
            verb.deletes = can_fast_delete(target)
            verb.then = [] if verb.deletes else [_remove]
    verb.own = {field: partial(_values_of, field) for field in own}
    if of_source:
        verb.then.insert(0, partial(_write_sources, of_source))
    if inherited:
        verb.then.insert(0, partial(_write, inherited))
    return verb


def _values_of(field: AnyField, held: HeldRows) -> list[SQL]:
    return held.target.table.saved(field, held.rows)


# Results


def checked_results(model: type[models.Model], names: Collection[str]) -> tuple[AnyField, ...]:
    """Return the columns that *update_fields* names; an error in one sentence for what cannot be written.

    For a companion a name means a column of its own if it has one, else of its source; ``source__name`` means the
    source's.
    """
    # What can be read once only would name no column the second time.
    is_list = isinstance(names, Collection) and not isinstance(names, str)
    if not is_list or not all(isinstance(name, str) for name in names):
        raise TypeError(f"update_fields is a list of names, not {names!r:.200}.")
    return _results(model, tuple(names))


@cache
def _results(model: type[models.Model], names: tuple[str, ...]) -> tuple[AnyField, ...]:
    refuse_names(model, names, "update_fields")
    source = source_link(model).source if names and is_companion(model) else None
    found: dict[Any, None] = {}
    unknown = []
    for name in names:
        of_source = name.removeprefix(PREFIX)
        if name in writable(model):
            found[model._meta.get_field(name)] = None
        elif source is not None and of_source in writable(source):
            if is_claimable(source):
                refuse_names(source, [of_source], "update_fields")
            found[source._meta.get_field(of_source)] = None
        else:
            unknown.append(of_source)
    if unknown:
        also = "" if source is None else f", and {source._meta.label} has none either"
        raise ValueError(
            f"{model._meta.label} has no column to write named {', '.join(sorted(unknown))}{also}."
        )
    return tuple(found)


def files_among(model: type[models.Model], names: Collection[str]) -> list[AnyField]:
    """Return the columns of files among those that *update_fields* names."""
    results = checked_results(model, names) if names else ()
    return [field for field in results if isinstance(field, models.FileField)]


def store_files(row: models.Model, fields: Sequence[AnyField]) -> Exception | None:
    """Store the files of a row, or of its source, before it is completed; return the error of one that is refused."""
    try:
        for field in fields:
            field.pre_save(row if isinstance(row, field.model) else getattr(row, LINK), False)
    except Exception as error:
        return error
    return None


def writable(model: type[models.Model]) -> set[str]:
    """Return the names, and attnames, of the columns that can be written."""
    return {
        name
        for field in model._meta.concrete_fields
        if not field.primary_key and not getattr(field, "generated", False)
        for name in (field.name, field.attname)
    }


def _write_sources(fields: Sequence[AnyField], held: HeldRows) -> None:
    """Write results of the sources; SourceGone where one is not there any more."""
    target, rows = held.target, held.rows
    link = source_link(target.model)
    if (beside := link.alias_beside(target.alias)) != target.alias:
        raise ValueError(
            f"update_fields names columns of {link.source._meta.label} on the database {beside!r}, which no transaction"
            f" of {target.model._meta.label} on {target.alias!r} can write; store results on the companion."
        )
    # Sources are read from the database that is written: a replica may not have them yet.
    gone = link.load([row for row in rows if not link.field.is_cached(row)], beside)
    there = [row for row in rows if row not in gone]
    lost = _write(fields, held, [getattr(row, LINK) for row in there])
    gone += [row for row in there if getattr(row, LINK) in lost]
    if gone:
        raise SourceGone(gone)


def _write(
    fields: Sequence[AnyField], held: HeldRows, sources: Sequence[models.Model] | None = None
) -> list[models.Model]:
    """Write *fields* from the rows, or their *sources*, many in a statement, and return those that are not there."""
    target, instances = held.target, held.rows if sources is None else sources
    gone: list[models.Model] = []
    # Some columns may be inherited.
    for model in dict.fromkeys(field.model for field in fields):
        of_table = [field for field in fields if field.model is model]
        table = KeyTable(KeyColumns(model), target.dialect.connection)
        names = [field.attname for field in table.columns.key]
        by_key = {table.key_of([getattr(one, name) for name in names]): one for one in instances}
        for keys in target.dialect.chunks(sorted(by_key), table, len(of_table)):
            some = [by_key[key] for key in keys]
            own = {field: table.saved(field, some) for field in of_table}
            if target.dialect.write(table, keys, Change([], own)) < len(keys):
                there = set(target.dialect.select_keys(table, keys))
                gone += [by_key[key] for key in keys if key not in there]
    return gone


# Deleting, and moving to an archive


def _remove(held: HeldRows) -> None:
    """Delete rows that this transaction has completed.

    The instances keep their keys. One without a key would be stored as a new row by its next ``save()``, and be done
    again for ever.
    """
    complete = scope.in_state(held.target.columns, Status.COMPLETE)
    delete_locked(held.target, held.keys, complete)


def _copy(archive: type[models.Model], held: HeldRows) -> None:
    """Copy rows that this transaction has completed to *archive*, by one INSERT … SELECT."""
    target, keys = held.target, held.keys
    here, fresh = {field.attname for field in target.model._meta.concrete_fields}, archive()
    values: dict[AnyField, Any] = {}
    for field in archive._meta.local_concrete_fields:
        if getattr(field, "generated", False):
            continue
        if field.attname in here:
            values[field] = models.F(field.attname)
            continue
        given = field.pre_save(fresh, add=True)
        # The others are filled in by the database itself.
        if given is not None and not hasattr(given, "resolve_expression"):
            values[field] = models.Value(given, output_field=field)
    rows: models.QuerySet[Any] = models.QuerySet(target.model, using=target.alias).order_by()
    rows = rows.filter(**{f"{target.columns.key_path(target.model)}__in": keys})
    table = KeyTable(KeyColumns(archive), target.dialect.connection)
    copied = target.dialect.insert_selected(table, rows, values)
    if copied != len(keys):
        raise TaskClaimError(f"Archived {copied} of {len(keys)} rows; rolled back.")
