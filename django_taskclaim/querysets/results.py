"""What ``update_fields`` may name, and how the columns of a companion's source are written with its completion."""

from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from django.db import models

from django_taskclaim.claim import carried_claim
from django_taskclaim.columns import KeyColumns, is_claimable
from django_taskclaim.db.sql import SKIP, Change, OwnValues
from django_taskclaim.exceptions import SourceGone
from django_taskclaim.fields import AnyField
from django_taskclaim.guard import refuse_names
from django_taskclaim.links import LINK, SourceLink, is_companion, source_link
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.writes import HeldRows

#: What names a column of the source's, where the companion has one of the same name.
PREFIX = f"{LINK}__"


class Results(NamedTuple):
    """Names of columns, checked: of the claimed row itself, and of its source where it is a companion."""

    own: Sequence[str]
    of_source: Sequence[str]
    #: Whether a source that is not there any more is passed over.
    may_be_gone: bool = False


#: What nearly every completion names.
NOTHING = Results((), ())


def checked_results(
    model: type[models.Model], names: Collection[str], *, may_be_gone: bool = False
) -> Results:
    """Sort out what *update_fields* names; an error in one sentence for what cannot be written.

    For a companion a name means a column of its own if it has one, else of its source; ``source__name`` means the
    source's.
    """
    if isinstance(names, str):
        raise TypeError(f"update_fields is a list of names, not the text {names!r}.")
    if names is None:
        # To Django's save() that is every column.
        raise TypeError("update_fields is a list of names, not None.")
    if not names:
        return NOTHING
    return _sorted_out(model, tuple(names))._replace(may_be_gone=may_be_gone)


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
    return Results(_names(model, own), [] if source is None else _names(source, of_source))


def writable(model: type[models.Model]) -> set[str]:
    """Return the names, and attnames, of the columns that can be written."""
    return {
        name
        for field in model._meta.concrete_fields
        if not field.primary_key and not getattr(field, "generated", False)
        for name in (field.name, field.attname)
    }


def _names(model: type[models.Model], names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(model._meta.get_field(name).name for name in names))


def write_sources(target: ClaimTarget, rows: Sequence[Any], results: Results) -> None:
    """Write these columns of the rows' sources, inside the same transaction.

    SourceGone where one is not there any more, unless it *may be gone*.
    """
    if not results.of_source:
        return
    link = source_link(target.model)
    _refuse_other_database(link, target)
    found = [(row, _source_of(row, results.may_be_gone)) for row in rows]
    sources = [(row, source) for row, source in found if source]
    for model, fields in _by_table(link.source, results.of_source).items():
        gone = _write_table(target, model, fields, [source for _, source in sources])
        if gone and not results.may_be_gone:
            raise SourceGone([row for row, source in sources if source in gone])


def own_values(target: ClaimTarget, rows: Sequence[Any], names: Sequence[str]) -> list[OwnValues]:
    """Return the values of those of *names* that are columns of the claim table, for each row."""
    fields: list[Any] = [target.model._meta.get_field(name) for name in names]
    return [
        OwnValues(
            field, target.table.bound_all(field, [field.pre_save(row, False) for row in rows])
        )
        for field in fields
        if field.model is target.columns.owner
    ]


def inherited(held: Iterable[HeldRows], names: Sequence[str]) -> bool:
    """Say whether some of *names* are on other tables than the claim."""
    return bool(names) and any(
        one.target.model._meta.get_field(name).model is not one.target.columns.owner
        for one in held
        for name in names
    )


def write_inherited(target: ClaimTarget, rows: Sequence[Any], names: Sequence[str]) -> None:
    """Write those of *names* that are on other tables than the claim, inside the same transaction."""
    by_model: dict[Any, list[Any]] = {}
    for name in names:
        field: Any = target.model._meta.get_field(name)
        if field.model is not target.columns.owner:
            by_model.setdefault(field.model, []).append(field)
    for row in rows if by_model else ():
        for model, fields in by_model.items():
            values = [(field, None, _plain(field, field.pre_save(row, False))) for field in fields]
            key = row._get_pk_val(model._meta)
            models.QuerySet(model, using=target.alias).filter(pk=key)._update(values)  # type: ignore[attr-defined]


def _plain(field: AnyField, given: Any) -> Any:
    if hasattr(given, "resolve_expression"):
        raise TypeError(
            f"update_fields writes values; {field.name} holds the expression {given!r}."
        )
    return given


def _refuse_other_database(link: SourceLink, target: ClaimTarget) -> None:
    beside = link.alias_beside(target.alias)
    if beside != target.alias:
        raise ValueError(
            f"update_fields names columns of {link.source._meta.label} on the database {beside!r}, which no transaction"
            f" of {link.companion._meta.label} on {target.alias!r} can write; store results on the companion."
        )


def with_locked_source(rows: Sequence[Any], names: Collection[str]) -> list[Any]:
    """Lock, in the current transaction, what a completion of companions would write of their sources.

    Returns the rows whose sources somebody else has locked; one that is gone is not among them.
    """
    of_source = checked_results(type(rows[0]), names).of_source if rows else []
    if not of_source:
        return []
    target, link = ClaimTarget.of(type(rows[0]), rows[0]._state.db), source_link(type(rows[0]))
    sources = {id(row): _source_of(row, may_be_gone=True) for row in rows}
    busy: list[Any] = []
    for model in _by_table(link.source, of_source):
        table = target.dialect.keyed_table(KeyColumns(model))
        keys = {id(row): _key(table.columns.key, s) for row in rows if (s := sources[id(row)])}
        for part in target.dialect.chunks(sorted(keys.values()), table):
            missed = set(part).difference(target.dialect.select_keys(table, part, lock=SKIP))
            held = set(target.dialect.select_keys(table, list(missed)))
            busy += [row for row in rows if keys.get(id(row)) in held]
    return busy


def _source_of(row: Any, may_be_gone: bool) -> Any:
    link = source_link(type(row))
    # Where the completion is written: a replica may not have heard of the source yet.
    alias = link.alias_beside(carried_claim(row).alias)
    if link.field.is_cached(row) or not link.load([row], alias):
        return getattr(row, LINK)
    if may_be_gone:
        return None
    raise SourceGone([row])


def _by_table(source: type[models.Model], names: Sequence[str]) -> dict[Any, list[AnyField]]:
    """Return the fields by the model whose table has them: a source may inherit some."""
    tables: dict[Any, list[AnyField]] = {}
    for name in names:
        field: Any = source._meta.get_field(name)
        tables.setdefault(field.model, []).append(field)
    return tables


def _write_table(
    target: ClaimTarget, model: Any, fields: list[AnyField], sources: list[Any]
) -> list[Any]:
    """Write *fields* from the instances, many rows in a statement, and return those whose rows are not there."""
    table = target.dialect.keyed_table(KeyColumns(model))
    by_key = {_key(table.columns.key, source): source for source in sources}
    ordered = [by_key[key] for key in sorted(by_key)]
    gone: list[Any] = []
    for part in target.dialect.chunks(ordered, table, len(fields)):
        keys = [_key(table.columns.key, source) for source in part]
        own = [
            OwnValues(field, table.bound_all(field, [field.pre_save(one, False) for one in part]))
            for field in fields
        ]
        if target.dialect.write(table, keys, Change([], own)) < len(keys):
            there = set(target.dialect.select_keys(table, keys))
            gone += [source for key, source in zip(keys, part, strict=True) if key not in there]
    return gone


def _key(fields: Sequence[AnyField], source: Any) -> Any:
    values = tuple(getattr(source, field.attname) for field in fields)
    return values if len(values) > 1 else values[0]
