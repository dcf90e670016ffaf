"""From claimed rows to the instances that a queryset asks for: of a claim just made, or of what somebody holds."""

from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import cache
from inspect import getattr_static
from typing import Any, cast

from django.db import models
from django.db.models.base import ModelState
from django.db.models.fields.related_descriptors import ForeignKeyDeferredAttribute
from django.db.models.signals import post_init, pre_init
from django.db.models.sql.where import WhereNode

from django_taskclaim.claim import ATTRIBUTE, LOADED, UNCHANGED, Claim, attach
from django_taskclaim.columns import claim_columns
from django_taskclaim.db.base import ClaimedRow
from django_taskclaim.fields import is_quarantine_mark
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets.scope import ClaimTarget, Rows, in_policy_order, is_running
from django_taskclaim.states import Token


def build(
    queryset: Rows, claimed: Sequence[ClaimedRow], claims: Sequence[Claim]
) -> list[models.Model]:
    """Return an instance of each row, with its claim. The claim has returned all columns, so nothing is read."""
    model = queryset.model
    names = [field.attname for field in model._meta.concrete_fields]
    values = [row.values for row in claimed]
    if _is_laid_out(cast("Hashable", model)) and not (
        pre_init.has_listeners(model) or post_init.has_listeners(model)
    ):
        rows = _laid_out(model, names, values, claims)
    else:
        rows = [model.from_db(queryset.db, names, given) for given in values]
        for row, claim in zip(rows, claims, strict=True):
            attach(row, claim)
    prefetch(queryset, rows)
    return rows


def prefetch(queryset: Rows, rows: list[models.Model]) -> None:
    """Load what the queryset prefetches."""
    if lookups := getattr(queryset, "_prefetch_related_lookups", ()):
        models.prefetch_related_objects(rows, *lookups)


@cache
def _is_laid_out(model: type[models.Model]) -> bool:
    """Say whether no code but Django's and ours takes part in making an instance, whose values may then be laid out.

    Their constructor sets the values one by one, for the sake of those who override it: a third of what a claim costs.
    """
    ours = ("builtins", "django.db.models.base", "django_taskclaim.querysets.fence")
    making = {"__new__", "__init__", "__setattr__", "from_db"}
    others = [base for base in model.__mro__ if base.__module__ not in ours]
    attributes = [getattr_static(model, field.attname) for field in model._meta.concrete_fields]
    return not any(making.intersection(vars(base)) for base in others) and not any(
        # A foreign key only forgets its loaded row.
        hasattr(one, "__set__") and type(one) is not ForeignKeyDeferredAttribute
        for one in attributes
    )


def _laid_out(
    model: type[models.Model],
    names: list[str],
    values: Iterable[Sequence[object]],
    claims: Iterable[Claim],
) -> list[models.Model]:
    rows = []
    new = object.__new__
    # This loop runs for each row of each claim, so it makes no calls and no checks that can be made outside.
    for given, claim in zip(values, claims, strict=True):
        row = new(model)
        own = row.__dict__
        state = own["_state"] = new(ModelState)
        state.adding = False
        state.db = claim.alias
        own.update(zip(names, given))  # noqa: B905 - as long as each other, and asked for each row
        own[LOADED] = (names, given, UNCHANGED)
        own[ATTRIBUTE] = claim
        rows.append(row)
    return rows


def bare(model: type[models.Model], claim: Claim) -> models.Model:
    """Return an instance of the row that *claim* is of, which knows its key and carries the claim; it asks nothing.

    No code of the user's takes part in it.
    """
    (row,) = _laid_out(model, [], [()], [claim])
    row.pk = claim.pk
    return row


def read_again(queryset: Rows, target: ClaimTarget, keys: list[models.Model]) -> list[models.Model]:
    """Read claimed rows with the joins, annotations and columns asked for, in the order asked for."""
    if not keys:
        return []
    path = f"{target.columns.key_path(queryset.model)}__in"
    rows = like(queryset, target).filter(**{path: keys}).order_by(*queryset.query.order_by)
    rows.query.standard_ordering = queryset.query.standard_ordering
    by_key: dict[Any, Any] = {}
    for row in rows:
        # A join may show a row more than once.
        by_key.setdefault(target.columns.key_of(row), row)
    missing = [key for key in keys if key not in by_key]
    if missing:
        # … or not at all, if the joined row is gone. The row is claimed all the same, and read without joins.
        unjoined = type(queryset)(queryset.model, using=target.alias)
        for row in unjoined.filter(**{path: missing}):
            by_key[target.columns.key_of(row)] = row
    found = list(by_key.values()) if queryset.query.order_by else [by_key[key] for key in keys]
    prefetch(queryset, found)
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


def claimed_by(
    queryset: Rows, holders: Collection[str], *, whole: bool = False
) -> list[models.Model]:
    """Return the rows of *queryset* that these holders have now, each carrying its claim.

    With *whole* they are as the queryset selects, defers and joins. Else nothing is read but the claim: a column of the
    user's that cannot be read may be why nobody has got the rows.
    """
    columns = claim_columns(queryset.model)
    vars(queryset)["_for_write"] = True
    rows = queryset.filter(is_running(columns), **{f"{columns.claimed_by.name}__in": holders})
    fields = columns.claimed_by.attname, columns.iteration.attname
    read = (columns.attempts, columns.not_before, *columns.key)
    ours = {*fields, *(field.attname for field in read if field is not None)}
    if whole:
        names, are_deferred = rows.query.deferred_loading
        named = names.difference(ours) if are_deferred else names.union(ours)
        rows.query.deferred_loading = named, are_deferred
    else:
        rows = rows.only(*ours)
    return [carrying(row, Token(*(getattr(row, f) for f in fields)), rows.db) for row in rows]


def holdings(queryset: Rows, who: str) -> list[models.Model]:
    """Return the rows that *who* holds; see ``ClaimQuerySet.holdings``."""
    if getattr(queryset, "_fields", None) is not None:
        raise TypeError("holdings() returns rows that carry claims; values() has none.")
    ordered = in_policy_order(queryset)
    if not ordered.query.order_by:
        ordered = ordered.order_by(*claim_columns(queryset.model).order)
    return claimed_by(ordered, [who], whole=True)
