"""Rows that are claimed already, read as a queryset asks for them, and rows that somebody holds."""

from collections.abc import Collection
from typing import Any

from django.db import models
from django.db.models.sql.where import WhereNode

from django_taskclaim.claim import Claim, attach
from django_taskclaim.columns import claim_columns
from django_taskclaim.fields import is_quarantine_mark
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets.scope import ClaimTarget, Rows, in_policy_order, is_running
from django_taskclaim.states import Token


def read_again(queryset: Rows, target: ClaimTarget, keys: list[models.Model]) -> list[models.Model]:
    """Read claimed rows with the joins, annotations and columns asked for, in the order asked for."""
    path = f"{target.columns.key_path(queryset.model)}__in"
    rows = like(queryset, target).filter(**{path: keys}).order_by(*queryset.query.order_by)
    rows.query.standard_ordering = queryset.query.standard_ordering
    key_of = target.columns.key_of
    # A join may show a row more than once.
    by_key: dict[Any, Any] = {key_of(row): row for row in rows}
    missing = [key for key in keys if key not in by_key]
    # … or not at all, if the joined row is gone. The row is claimed all the same, and read without joins.
    unjoined = type(queryset)(queryset.model, using=target.alias).filter(**{path: missing})
    by_key |= {key_of(row): row for row in unjoined}
    found = list(by_key.values()) if queryset.query.order_by else [by_key[key] for key in keys]
    models.prefetch_related_objects(found, *vars(queryset)["_prefetch_related_lookups"])
    return found


def like(queryset: Rows, target: ClaimTarget) -> Rows:
    """Return the rows of the whole table, read as *queryset* reads them but for its prefetches."""
    rows = queryset.using(target.alias).order_by().prefetch_related(None)
    query = rows.query
    query.where = WhereNode()
    if not query.annotations:
        # The joins of the conditions would show a row once for each row that is joined.
        query.distinct, query.alias_refcount = False, dict.fromkeys(query.alias_refcount, 0)
    return rows


# Rows that somebody holds already, with their claims


def carrying(row: Any, token: Token, using: str) -> Any:
    """Return *row*, carrying the claim that *token* names, whether that stands or not."""
    columns = claim_columns(type(row))
    attempts = getattr(row, (columns.attempts or columns.iteration).attname)
    lease = policy_for(type(row)).lease
    claim = Claim(token, using, columns.key_of(row), lease=lease, attempts=attempts)
    if columns.not_before is not None:
        claim.quarantined = is_quarantine_mark(getattr(row, columns.not_before.attname))
    attach(row, claim)
    return row


def claimed_by(queryset: Rows, holders: Collection[str]) -> list[models.Model]:
    """Return the rows of *queryset* that these holders have now, each carrying its claim.

    They are as the queryset selects, defers and joins, and have what the claim is made of.
    """
    columns = claim_columns(queryset.model)
    vars(queryset)["_for_write"] = True
    rows = queryset.filter(is_running(columns), **{f"{columns.claimed_by.name}__in": holders})
    fields = columns.claimed_by.attname, columns.iteration.attname
    read = (columns.attempts, columns.not_before, *columns.key)
    ours = {*fields, *(field.attname for field in read if field is not None)}
    names, are_deferred = rows.query.deferred_loading
    named = names.difference(ours) if are_deferred else names.union(ours)
    rows.query.deferred_loading = named, are_deferred
    # An order over a join may show a row more than once.
    once = {row.pk: row for row in rows}.values()
    return [carrying(row, Token(*(getattr(row, f) for f in fields)), rows.db) for row in once]


def holdings(queryset: Rows, who: str) -> list[models.Model]:
    """Return the rows that *who* holds; see ``ClaimQuerySet.holdings``."""
    if getattr(queryset, "_fields", None) is not None:
        raise TypeError("holdings() returns rows that carry claims; values() has none.")
    ordered = in_policy_order(queryset)
    if not ordered.query.order_by:
        ordered = ordered.order_by(*claim_columns(queryset.model).order)
    return claimed_by(ordered, [who])
