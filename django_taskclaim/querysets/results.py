"""What ``update_fields`` may name, and how results on other tables than the claim are written with its completion."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from django.db import models

from django_taskclaim.claim import carried_claim
from django_taskclaim.columns import (
    LINK,
    KeyColumns,
    claim_columns,
    is_claimable,
    is_companion,
    source_link,
)
from django_taskclaim.db.sql import SKIP, Change, Key, KeyTable, OwnValues
from django_taskclaim.exceptions import SourceGone
from django_taskclaim.fields import AnyField
from django_taskclaim.guard import refuse_names
from django_taskclaim.querysets.scope import ClaimTarget

#: What names a column of the source's, where the companion has one of the same name.
PREFIX = f"{LINK}__"


class Results(NamedTuple):
    """The columns that a completion writes from the instances of one model."""

    #: On the table of the claim.
    own: tuple[AnyField, ...] = ()
    #: On the tables of parents and children.
    inherited: tuple[AnyField, ...] = ()
    #: Of the source, where the model is a companion.
    of_source: tuple[AnyField, ...] = ()


#: What nearly every completion names.
NOTHING = Results()


def checked_results(model: type[models.Model], names: Collection[str]) -> Results:
    """Sort out what *update_fields* names; an error in one sentence for what cannot be written.

    For a companion a name means a column of its own if it has one, else of its source; ``source__name`` means the
    source's.
    """
    if isinstance(names, str):
        raise TypeError(f"update_fields is a list of names, not the text {names!r}.")
    if names is None:
        # To Django's save() that is every column.
        raise TypeError("update_fields is a list of names, not None.")
    return _sorted_out(model, tuple(names)) if names else NOTHING


@cache
def _sorted_out(model: type[models.Model], names: tuple[str, ...]) -> Results:
    refuse_names(model, names, "update_fields")
    own = [name for name in names if name in writable(model)]
    rest = [name for name in names if name not in own]
    source = source_link(model).source if rest and is_companion(model) else None
    of_source = [] if source is None else [name.removeprefix(PREFIX) for name in rest]
    unknown = sorted(rest if source is None else set(of_source) - writable(source))
    if unknown:
        also = "" if source is None else f", and {source._meta.label} has none either"
        raise ValueError(
            f"{model._meta.label} has no column to write named {', '.join(unknown)}{also}."
        )
    if source is not None and is_claimable(source):
        refuse_names(source, of_source, "update_fields")
    fields, owner = _fields(model, own), claim_columns(model).owner
    return Results(
        tuple(field for field in fields if field.model is owner),
        tuple(field for field in fields if field.model is not owner),
        () if source is None else _fields(source, of_source),
    )


def _fields(model: type[models.Model], names: Iterable[str]) -> tuple[AnyField, ...]:
    found: dict[Any, None] = dict.fromkeys(model._meta.get_field(name) for name in names)
    return tuple(found)


def writable(model: type[models.Model]) -> set[str]:
    """Return the names, and attnames, of the columns that can be written."""
    return {
        name
        for field in model._meta.concrete_fields
        if not field.primary_key and not getattr(field, "generated", False)
        for name in (field.name, field.attname)
    }


def own_values(
    table: KeyTable, fields: Sequence[AnyField], instances: Sequence[models.Model]
) -> list[OwnValues]:
    """Return the values that the instances have in each of *fields*, prepared as ``save()`` does."""
    return [
        OwnValues(field, table.bound_all(field, [field.pre_save(one, False) for one in instances]))
        for field in fields
    ]


def write_elsewhere(
    target: ClaimTarget, rows: Sequence[models.Model], results: Results, *, may_be_gone: bool
) -> None:
    """Write results that are on other tables than the claim, inside the same transaction.

    SourceGone where a source is not there any more, unless it *may be gone*.
    """
    _write(target, results.inherited, rows)
    if not results.of_source:
        return
    link = source_link(target.model)
    if (beside := link.alias_beside(target.alias)) != target.alias:
        raise ValueError(
            f"update_fields names columns of {link.source._meta.label} on the database {beside!r}, which no transaction"
            f" of {target.model._meta.label} on {target.alias!r} can write; store results on the companion."
        )
    gone = _without_source(rows, beside)
    there = [row for row in rows if row not in gone]
    lost = _write(target, results.of_source, [getattr(row, LINK) for row in there])
    gone += [row for row in there if getattr(row, LINK) in lost]
    if gone and not may_be_gone:
        raise SourceGone(gone)


def _write(
    target: ClaimTarget, fields: Sequence[AnyField], instances: Sequence[models.Model]
) -> list[object]:
    """Write *fields* from the instances, many in a statement, and return those whose rows are not there."""
    gone: list[Any] = []
    for table, of_table, by_key in _by_table(target, fields, instances):
        for keys in target.dialect.chunks(sorted(by_key), table, len(of_table)):
            values = own_values(table, of_table, [by_key[key] for key in keys])
            if target.dialect.write(table, keys, Change([], values)) < len(keys):
                there = set(target.dialect.select_keys(table, keys))
                gone += [by_key[key] for key in keys if key not in there]
    return gone


def with_locked_source(rows: Sequence[Any], names: Collection[str]) -> list[Any]:
    """Lock, in the current transaction, the sources that a completion of *rows* writes; nobody waits for a lock.

    Returns the rows whose sources somebody else has locked.
    """
    of_source = checked_results(type(rows[0]), names).of_source if rows else ()
    if not of_source:
        return []
    target = ClaimTarget.of(type(rows[0]), carried_claim(rows[0]).alias)
    gone = _without_source(rows, target.alias)
    there = [row for row in rows if row not in gone]
    busy: list[Any] = []
    for table, _, by_key in _by_table(target, of_source, [getattr(row, LINK) for row in there]):
        for keys in target.dialect.chunks(sorted(by_key), table):
            missed = set(keys).difference(target.dialect.select_keys(table, keys, lock=SKIP))
            busy += [by_key[key] for key in target.dialect.select_keys(table, list(missed))]
    return [row for row in there if getattr(row, LINK) in busy]


def _without_source(rows: Sequence[Any], alias: str) -> list[Any]:
    """Load the sources that are not loaded, and return the rows without one."""
    # Where the completion is written: a replica may not have heard of the sources yet.
    link = source_link(type(rows[0]))
    return link.load([row for row in rows if not link.field.is_cached(row)], alias)


def _by_table(
    target: ClaimTarget, fields: Iterable[AnyField], instances: Sequence[Any]
) -> Iterator[tuple[KeyTable, list[AnyField], dict[Key, Any]]]:
    """Yield each table that has some of *fields*, for some may be inherited, and the instances by their keys there."""
    tables: dict[Any, list[AnyField]] = {}
    for field in fields:
        tables.setdefault(field.model, []).append(field)
    for model, of_table in tables.items():
        table = KeyTable(KeyColumns(model), target.dialect.connection)
        names = [field.attname for field in table.columns.key]
        keys = [table.key_of([getattr(one, name) for name in names]) for one in instances]
        yield table, of_table, dict(zip(keys, instances, strict=True))
