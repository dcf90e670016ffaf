"""Deleting rows that are done: at once, into an archive, or when they have been complete for long."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from django.db import models
from django.db.models import Max, Q
from django.db.models.deletion import Collector

from django_taskclaim.claim import carried_claims
from django_taskclaim.columns import KeyColumns, claim_columns, has_ranges
from django_taskclaim.db import DatabaseLater
from django_taskclaim.db.sql import SQL, Key, KeyTable
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.querysets.conditions import is_claimed_by
from django_taskclaim.querysets.operating import (
    BulkVerb,
    LockedRow,
    write_locked,
)
from django_taskclaim.querysets.scope import ClaimTarget, Rows
from django_taskclaim.signals import rows_acted_on, send_after_commit
from django_taskclaim.states import Status

Model = type[models.Model]

#: What the signal calls the act of ``prune``.
PRUNED = "pruned"


def delete_locked(
    target: ClaimTarget, keys: Sequence[Key], condition: Q, *, cascade: bool = True
) -> int:
    """Delete rows that this transaction has locked and that still match, and return how many.

    Django deletes them, with all that its cascades take, unless nothing but these rows would go or no *cascade* is
    asked for. What is on the tables of parents or of children always goes by its cascades.
    """
    rows: Rows = models.QuerySet(target.model, using=target.alias)
    is_alone = Collector(using=target.alias).can_fast_delete(rows)
    if is_alone or not (cascade or is_on_many_tables(target.model)):
        return write_locked(target, keys, condition, None)
    path = target.columns.key_path(target.model)
    _, by_model = rows.filter(condition, **{f"{path}__in": keys}).delete()
    return by_model.get(target.model._meta.label, 0)


def is_on_many_tables(model: Model) -> bool:
    """Say whether rows of *model* have a part on the table of a parent or of a child."""
    return any(links_of(claim_columns(model).owner))


def links_of(model: Model) -> Iterator[tuple[Model, Any]]:
    """Yield the direct parents and children of *model*, each with the column that links child to parent."""
    for parent, link in model._meta.parents.items():
        if link is not None and link.model is model:
            yield parent, link
    for relation in model._meta.get_fields(include_hidden=True):
        if isinstance(relation, models.OneToOneRel) and relation.parent_link:
            yield relation.related_model, relation.field


# At once


def remove(
    target: ClaimTarget, rows: Sequence[models.Model], status: Status, *, cascade: bool
) -> None:
    """Delete rows of one claim that this transaction has locked in *status*.

    The instances keep their keys. One without a key would be stored as a new row by its next ``save()``, and be done
    again for ever.
    """
    claims = carried_claims(rows)
    condition = is_claimed_by(target.columns, claims[0].token, status)
    deleted = delete_locked(target, [claim.pk for claim in claims], condition, cascade=cascade)
    if deleted != len(rows):
        raise TaskClaimError(
            f"Deleted {deleted} of {len(rows)} rows that were locked for it; rolled back."
        )


# Into an archive


def move_to(
    archive: Model, target: ClaimTarget, rows: Sequence[models.Model], *, cascade: bool
) -> None:
    """Copy rows that this transaction has completed to *archive*, and delete them."""
    _copy(target, archive, [claim.pk for claim in carried_claims(rows)])
    remove(target, rows, Status.COMPLETE, cascade=cascade)


def _copy(target: ClaimTarget, archive: Model, keys: Sequence[object]) -> None:
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
    text, params = query.get_compiler(connection=target.dialect.connection).as_sql()
    by_name: dict[str, Any] = {field.attname: field for field in archive._meta.concrete_fields}
    into = [*(by_name[name] for name in shared), *(field for field, _ in own)]
    table = KeyTable(KeyColumns(archive), target.dialect.connection)
    copied = target.dialect.insert_selected(table, into, SQL(text, tuple(params)))
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


def _can_take(target: object, field: object) -> bool:
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


# When they have been complete for long


def prunable(target: ClaimTarget, older_than: timedelta) -> Q:
    """Match complete rows that are old enough; without a ``completed_at`` nobody knows how old a row is.

    Of ranges the last one stays: what is planned next begins where it ends, or all over again.
    """
    columns = target.columns
    if columns.completed_at is None:
        raise TypeError(
            f"{target.model.__name__} has no completed_at, so nobody knows how long its rows have been complete;"
            " add CompletedAtMixin."
        )
    ended = {f"{columns.completed_at.name}__lt": DatabaseLater(-older_than)}
    found = Q(**{columns.status.name: Status.COMPLETE}) & Q(**ended)
    if not has_ranges(target.model):
        return found
    # A number, for MySQL deletes nothing by a look at the same table; what is planned later stands behind it.
    last = target.rows.aggregate(last=Max("position"))["last"]
    return found if last is None else found & Q(position__lt=last)


class Prune(BulkVerb):
    """Deletes rows that have been complete for long."""

    def __init__(self, older_than: timedelta) -> None:
        self.older_than = older_than

    def condition(self, target: ClaimTarget) -> Q:
        return prunable(target, self.older_than)

    def write(self, target: ClaimTarget, rows: list[LockedRow]) -> int:
        keys, condition = [row.key for row in rows], self.condition(target)
        # One by one where a statement by many keys might wait for rows that others have locked.
        parts = [[key] for key in keys] if target.dialect.walks_small_tables else [keys]
        gone = sum(delete_locked(target, part, condition) for part in parts)
        if gone:
            send_after_commit(rows_acted_on, target.model, target.alias, keys=keys, act=PRUNED)
        return gone
