"""Deleting rows that are done, from every table that they are part of, and copying them to an archive before."""

from collections.abc import Iterator, Sequence
from typing import Any

from django.db import models
from django.db.models.deletion import Collector

from django_taskclaim.claim import carried_claim
from django_taskclaim.columns import KeyColumns
from django_taskclaim.db.sql import SQL
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.querysets.scope import ClaimTarget, Rows
from django_taskclaim.querysets.writes import keys_of
from django_taskclaim.states import Status

Model = type[models.Model]


def is_on_many_tables(owner: Model) -> bool:
    """Say whether rows of *owner* have a part on the table of a parent or of a child."""
    return any(links_of(owner))


def move_to(archive: Model, target: ClaimTarget, rows: Sequence[Any], *, cascade: bool) -> None:
    """Copy rows that this transaction has completed to *archive*, and delete them."""
    for part in target.dialect.chunks(rows, target.table):
        _copy(target, archive, keys_of(part))
        remove(target, part, Status.COMPLETE, cascade=cascade)


def remove(target: ClaimTarget, rows: Sequence[Any], status: Status, *, cascade: bool) -> None:
    """Delete rows of one claim that this transaction has locked in *status*, from all their tables."""
    if cascade:
        _cascade(target, rows)
    else:
        token = carried_claim(rows[0]).token
        _delete_everywhere(target, keys_of(rows), target.table.standing(token, status))


def _cascade(target: ClaimTarget, rows: Sequence[Any]) -> None:
    """Let Django delete rows that this transaction has locked; the instances keep their keys.

    One without a key would be stored as a new row by its next ``save()``, and be done again for ever.
    """
    keys = [row.pk for row in rows]
    collector = Collector(using=target.alias)
    collector.collect(list(rows))
    collector.delete()
    for row, key in zip(rows, keys, strict=True):
        row.pk = key


# Inherited tables


def _delete_everywhere(target: ClaimTarget, keys: Sequence[Any], condition: SQL) -> None:
    """Delete locked rows from the claim table, repeating *condition*, and from the tables of their family.

    Children go before their parents, whom their foreign keys hold.
    """
    owner = target.columns.owner
    for model, same in _family(target, keys):
        if model is not owner:
            target.dialect.write(target.dialect.keyed_table(KeyColumns(model)), same, None)
            continue
        gone = target.dialect.write(target.table, keys, None, condition)
        if gone != len(keys):
            raise TaskClaimError(
                f"Deleted {gone} of {len(keys)} rows that were locked for it; rolled back."
            )


def _family(target: ClaimTarget, keys: Sequence[Any]) -> list[tuple[Model, Sequence[Any]]]:
    """Return the models on whose tables these rows are, children first, each with its keys."""
    found: dict[Model, Sequence[Any]] = {target.columns.owner: keys}
    todo = [target.columns.owner]
    while todo:
        model = todo.pop()
        for other, link in links_of(model):
            if other not in found and (there := _keys_across(target, model, found[model], link)):
                found[other] = there
                todo.append(other)
    return sorted(found.items(), key=lambda part: -len(part[0]._meta.all_parents))


def links_of(model: Model) -> Iterator[tuple[Model, Any]]:
    """Yield the direct parents and children of *model*, each with the column that links child to parent."""
    for parent, link in model._meta.parents.items():
        if link is not None and link.model is model:
            yield parent, link
    for relation in model._meta.get_fields(include_hidden=True):
        if isinstance(relation, models.OneToOneRel) and relation.parent_link:
            yield relation.related_model, relation.field


def _keys_across(
    target: ClaimTarget, model: Model, keys: Sequence[Any], link: Any
) -> Sequence[Any]:
    """Return the keys at the other end of *link*; mostly the link is the child's key, and they are the same."""
    if link.primary_key:
        return keys
    upwards = link.model is model
    wanted, known = (link.attname, "pk") if upwards else ("pk", link.attname)
    rows: Rows = models.QuerySet(link.model, using=target.alias).order_by()
    return list(rows.filter(**{f"{known}__in": keys}).values_list(wanted, flat=True))


# The archive


def _copy(target: ClaimTarget, archive: Model, keys: Sequence[Any]) -> None:
    """Copy the rows with these keys, as they are now, by one INSERT … SELECT."""
    shared = shared_columns(target.model, archive)
    own = [
        (field, models.Value(field.pre_save(archive(), add=True), output_field=field))
        for field in archive._meta.local_concrete_fields
        if field.attname not in shared and not fills_itself(field)
    ]
    rows: Rows = models.QuerySet(target.model, using=target.alias).order_by()
    rows = rows.filter(**{f"{target.columns.key_path(target.model)}__in": keys})
    query = rows.values_list(*shared, *(given for _, given in own)).query
    connection = target.dialect.connection
    text, params = query.get_compiler(connection=connection).as_sql()
    by_name: dict[str, Any] = {field.attname: field for field in archive._meta.concrete_fields}
    named = [by_name[name] for name in shared]
    columns = [connection.ops.quote_name(field.column) for field in [*named, *(f for f, _ in own)]]
    table = connection.ops.quote_name(archive._meta.db_table)
    into = SQL(f"INSERT INTO {table} ({', '.join(columns)}) {text}", tuple(params))
    copied = target.dialect.run(into)
    if copied != len(keys):
        raise TaskClaimError(f"Archived {copied} of {len(keys)} rows; rolled back.")


def shared_columns(model: Model, archive: Model) -> list[str]:
    """Return what rows of *model* and of *archive* both have, by attname."""
    there = {field.attname: field for field in archive._meta.local_concrete_fields}
    return [
        field.attname
        for field in model._meta.concrete_fields
        if field.attname in there and _can_take(there[field.attname], field)
    ]


def _can_take(target: Any, field: Any) -> bool:
    """Say whether a column of the archive may be given a value, one of the kind that *field* has."""
    if getattr(target, "generated", False):
        return False
    # An ``id`` that nobody wrote down, beside a key of another kind.
    numbered = (models.AutoField, models.IntegerField, models.ForeignKey)
    return not isinstance(target, models.AutoField) or isinstance(field, numbered)


def fills_itself(field: Any) -> bool:
    """Say whether the database gives the column a value where an INSERT names none."""
    return (
        getattr(field, "generated", False)
        or field.has_db_default()
        or isinstance(field, models.AutoField)  # the big and small ones say so, too
        or (field.null and not field.has_default())
    )
