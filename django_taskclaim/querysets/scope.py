"""From the user's queryset to the rows of the claim table, and from claimed rows to instances as it asks for them."""

import weakref
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from inspect import getattr_static
from operator import attrgetter
from typing import Any, cast

from django.core.exceptions import FieldError
from django.db import DatabaseError, connections, models, router
from django.db.models.base import ModelState
from django.db.models.fields.related_descriptors import ForeignKeyDeferredAttribute
from django.db.models.query import ModelIterable
from django.db.models.signals import post_init, pre_init
from django.db.models.sql.where import WhereNode

from django_taskclaim.claim import Claim, attach
from django_taskclaim.columns import ClaimColumns, KeyColumns, claim_columns, key_columns
from django_taskclaim.db import (
    ClaimedRow,
    ClaimStatement,
    DatabaseNow,
    Dialect,
    dialect_for,
)
from django_taskclaim.db.sql import KeyTable, Table
from django_taskclaim.fields import QUARANTINED
from django_taskclaim.guard import LOADED
from django_taskclaim.policy import policy_for
from django_taskclaim.states import Status

Rows = models.QuerySet[Any]

#: Where a connection keeps the claim targets of models: they refer to it, so a map of ours would keep both for ever.
TARGETS = "_taskclaim_targets"


@dataclass(frozen=True, slots=True)
class Target:
    """Where the rows of one model are locked: the key, the table and the database's dialect."""

    model: type[models.Model]
    alias: str
    columns: KeyColumns
    dialect: Dialect
    table: KeyTable

    @classmethod
    def of_rows(cls, model: type[models.Model], alias: str) -> "Target":
        """Return the target of *model*, which needs no claim columns, on the database *alias*."""
        columns = key_columns(model)
        dialect = dialect_for(connections[alias])
        return Target(model, alias, columns, dialect, dialect.key_table(columns))

    @property
    def rows(self) -> Rows:
        """Every row of the table, whatever managers hide."""
        return models.QuerySet(self.columns.owner, using=self.alias)


@dataclass(frozen=True, slots=True)
class ClaimTarget(Target):
    """Where the claims of one model are written: the target has the claim columns."""

    columns: ClaimColumns
    table: Table
    #: Whether the model's own table has the claim columns.
    is_owner: bool
    #: The statements of its plain claims, by all that makes them differ.
    statements: dict[Hashable, ClaimStatement | None] = field(default_factory=dict)

    @classmethod
    def of(cls, model: type[models.Model], alias: str) -> "ClaimTarget":
        """Return the claim target of *model* on the database *alias*."""
        connection = connections[alias]
        known: dict[Any, ClaimTarget] = vars(connection).setdefault(TARGETS, {})
        target = known.get(model)
        # In tests models are given other tables.
        if (
            target is None
            or target.alias != alias
            or target.table.model_table != target.columns.owner._meta.db_table
        ):
            columns, dialect = claim_columns(model), dialect_for(connection)
            table, is_owner = dialect.table(columns), columns.owned_by(model)
            target = known[model] = cls(model, alias, columns, dialect, table, is_owner)
        return target

    def is_writable(self) -> bool:
        """Say whether the database takes writes of the table now; asks it to write no row."""
        try:
            self.dialect.writable_at(self.table)
        except DatabaseError:
            return False
        return True

    def lock_holder(self, holder: str) -> None:
        """Let the calls of one holder wait for each other, until the transaction of each has ended."""
        # By the owner of the table: a proxy or a child reaches the same rows.
        self.dialect.advisory_lock(f"{self.columns.owner._meta.label_lower}:{holder}")


def is_open(columns: ClaimColumns) -> models.Q:
    """Match rows that wait to be claimed, due or not."""
    return models.Q(**{columns.status.name: Status.OPEN})


def is_expired(columns: ClaimColumns, cutoff: datetime | None = None) -> models.Q:
    """Match rows whose lease has ended by the database's clock; a processing row without expiry counts as expired.

    With *cutoff*, those alone whose lease had ended by then.
    """
    expiry = columns.expires_at.name
    ended = models.Q(**{f"{expiry}__lte": DatabaseNow()})
    if cutoff is not None:
        ended &= models.Q(**{f"{expiry}__lte": cutoff})
    never = models.Q(**{f"{expiry}__isnull": True})
    return models.Q(**{columns.status.name: Status.PROCESSING}) & (never | ended)


def has_waited(columns: ClaimColumns) -> models.Q:
    """Match rows whose waiting time is over by the database's clock: all, where the model has none.

    The mark of a quarantined row lies in the far future, so ordinary claims leave such rows out by the index.
    """
    waiting = columns.not_before
    return models.Q() if waiting is None else models.Q(**{f"{waiting.name}__lte": DatabaseNow()})


def is_quarantined(columns: ClaimColumns) -> models.Q:
    """Match rows that are marked because their worker may have died of them; none, where the model has no mark."""
    waiting = columns.not_before
    if waiting is None:
        return models.Q(pk__in=[])
    return models.Q(**{f"{waiting.name}__gte": QUARANTINED})


def due_condition(model: type[models.Model]) -> models.Q:
    """Match rows that some claim takes now: their waiting time is over, or they are quarantined."""
    columns = claim_columns(model)
    if columns.not_before is None:
        return models.Q()
    return has_waited(columns) | is_quarantined(columns)


def waits(model: type[models.Model]) -> models.Q:
    """Match rows whose waiting time is not over; none, where the model has none."""
    columns = claim_columns(model)
    if columns.not_before is None:
        return models.Q(pk__in=[])
    name = columns.not_before.name
    return models.Q(**{f"{name}__gt": DatabaseNow(), f"{name}__lt": QUARANTINED})


def refuse_unclaimable(queryset: Rows) -> None:
    """Raise TypeError for a queryset that no row can be claimed or changed through."""
    query = queryset.query
    reason = ""
    if query.combinator:
        reason = f"a {query.combinator}()"
    elif query.is_sliced:
        reason = "a slice; give the number of rows to the verb instead"
    elif query.group_by is not None:
        reason = "an aggregate"
    elif query.distinct_fields:
        reason = "distinct() on fields"
    elif queryset._fields is not None or query.values_select or query.select:  # type: ignore[attr-defined]
        reason = "values()"
    elif query.where.contains_over_clause:
        reason = "a condition on a window function"
    elif query.is_empty():
        return
    if reason:
        raise TypeError(
            f"The rows of {queryset.model.__name__} cannot be reached through {reason}."
        )


def on_claim_table(queryset: Rows, target: Target) -> Rows:
    """Return the rows of *queryset* as a queryset over the target's table alone, unordered.

    Filters over joins or inheritance become ``pk IN (subquery)``; a plain filter is carried over as it is.
    """
    query = queryset.query
    if not query.where and target.columns.owned_by(queryset.model):
        return target.rows.order_by()
    if _looks_at_one_table(queryset, target):
        rows = target.rows.order_by()
        rows.query.get_initial_alias()
        rows.query.where = query.where.clone()
        return rows
    keys = queryset.order_by().select_related(None).values(target.columns.key_path(queryset.model))
    return target.rows.order_by().filter(pk__in=keys)


def _looks_at_one_table(queryset: Rows, target: Target) -> bool:
    query = queryset.query
    used = [alias for alias, count in query.alias_refcount.items() if count]
    return (
        target.columns.owned_by(queryset.model)
        and not query.distinct
        and not query.extra_tables
        and used in ([], [target.columns.owner._meta.db_table])
    )


def in_policy_order(queryset: Rows) -> Rows:
    """Return *queryset* as it is ordered, else in the order that its model's policy names, if it names one."""
    order = policy_for(queryset.model).order_by
    if not order or queryset.query.order_by:
        return queryset
    ordered = queryset.order_by(*order)
    # Without an order of its own there was nothing that ``reverse()`` could turn round.
    ordered.query.standard_ordering = True
    return ordered


def refuse_unknown_order(model: type[models.Model], order: Sequence[Any]) -> None:
    """Raise ValueError in one sentence for an *order* that rows of *model* cannot be sorted by."""
    try:
        query = models.QuerySet(model).order_by(*order).query
        query.get_compiler(using=router.db_for_write(model)).as_sql()
    except (FieldError, TypeError) as error:
        raise ValueError(f"order_by cannot sort {model.__name__}: {error}") from error


def in_claim_order(rows: Rows, queryset: Rows, target: Target) -> Rows:
    """Order *rows* as *queryset* asks, or as the model's claims are ordered; ``Meta.ordering`` is ignored."""
    asked = queryset.query.order_by
    if not asked:
        return rows.order_by(*target.columns.order)
    named = {name for item in asked for name in _ordered_by(item)}
    annotated = sorted(named.intersection(queryset.query.annotations))
    if annotated:
        raise TypeError(f"A claim is ordered by columns; {', '.join(annotated)} is an annotation.")
    ordered = rows.order_by(*(_from_owner(item, queryset.model, target) for item in asked))
    return ordered if queryset.query.standard_ordering else ordered.reverse()


def sort_claimed(rows: Sequence[ClaimedRow], target: ClaimTarget) -> list[ClaimedRow]:
    """Put rows that a claim returned into the model's claim order; RETURNING has none.

    Text is compared by the database alone, which costs one statement.
    """
    if len(rows) < 2:
        return list(rows)
    # The least important column first: sorting leaves rows that are alike in the order that they have.
    if target.table.sorts_as_python:
        ordered = sorted(rows, key=attrgetter("key"))
    else:
        keys = target.dialect.select_keys(target.table, [row.key for row in rows], ordered=True)
        place = {key: number for number, key in enumerate(keys)}
        ordered = sorted(rows, key=lambda row: place.get(row.key, len(place)))
    if target.columns.not_before is not None:
        ordered.sort(key=attrgetter("not_before"))
    if target.columns.priority is not None:
        ordered.sort(key=attrgetter("priority"), reverse=True)
    return ordered


def _ordered_by(item: Any) -> list[str]:
    """Return the names that one item of an ordering looks at."""
    if isinstance(item, str):
        return [item.lstrip("-+")]
    parts = item.flatten() if hasattr(item, "flatten") else [item]
    return [_named(part) for part in parts if isinstance(part, models.F)]


def _named(reference: Any) -> str:
    """Return the name that an ``F()`` refers to, which its type stubs do not know."""
    return str(reference.name)


def _from_owner(item: Any, model: type[models.Model], target: Target) -> Any:
    """Spell an ordering of a multi-table child as seen from the parent that holds the claim columns."""
    if target.columns.owned_by(model) or item == "?":
        return item
    if isinstance(item, str):
        sign, name = ("-", item[1:]) if item.startswith("-") else ("", item)
        return sign + _name_from_owner(name, model, target)
    if isinstance(item, models.F):
        return models.F(_name_from_owner(_named(item), model, target))
    moved = item.copy()
    parts = (part and _from_owner(part, model, target) for part in item.get_source_expressions())
    moved.set_source_expressions(list(parts))
    return moved


def _name_from_owner(name: str, model: type[models.Model], target: Target) -> str:
    first = name.split("__")[0]
    if first == "pk" or first in {field.name for field in target.columns.owner._meta.get_fields()}:
        return name
    return f"{_path_down(model, target.columns.owner)}__{name}"


def _path_down(model: type[models.Model], owner: type[models.Model]) -> str:
    steps: list[str] = []
    while model is not owner:
        model = model._meta.concrete_model or model
        parent, link = next(
            (parent, link)
            for parent, link in model._meta.parents.items()
            if link is not None and issubclass(parent, owner)
        )
        steps.append(_name_of(link))
        model = parent
    return "__".join(reversed(steps))


def _name_of(link: Any) -> str:
    """Return how a query over the parent reaches the child behind this link."""
    return str(link.remote_field.get_accessor_name())


def without_conditions(queryset: Rows) -> Rows:
    """Return the queryset with its joins, annotations and columns, but with every condition dropped."""
    rows = queryset.order_by()
    rows.query.where = WhereNode()
    return rows


# Instances of claimed rows


def is_plain(queryset: Rows, target: ClaimTarget) -> bool:
    """Say whether the claim statement's own columns make the instances, so that no second read is needed."""
    query = queryset.query
    return (
        target.is_owner
        and not target.columns.owner._meta.parents
        and queryset._iterable_class is ModelIterable
        and not query.select_related
        and not query.annotations
        and not query.extra
        and query.deferred_loading == (frozenset(), True)
        and not query.order_by
    )


def build(queryset: Rows, claimed: Sequence[ClaimedRow]) -> list[Any]:
    """Return an instance of each row, whose values are those of all columns of the model, at little cost."""
    model, alias = queryset.model, queryset.db
    names = [field.attname for field in model._meta.concrete_fields]
    values = [row.values for row in claimed]
    if _is_laid_out(cast("Hashable", model)) and not (
        pre_init.has_listeners(model) or post_init.has_listeners(model)
    ):
        rows = _laid_out(model, alias, names, values)
    else:
        rows = [model.from_db(alias, names, given) for given in values]
    _set_fetch_mode(queryset, rows)
    prefetch(queryset, rows)
    return rows


def prefetch(queryset: Rows, rows: list[Any]) -> None:
    """Load what the queryset prefetches."""
    if lookups := queryset._prefetch_related_lookups:  # type: ignore[attr-defined]
        models.prefetch_related_objects(rows, *lookups)


@cache
def _is_laid_out(model: Any) -> bool:
    """Say whether no code but Django's and ours takes part in making an instance, whose values may then be laid out.

    Their constructor sets the values one by one, for the sake of those who override it: a third of what a claim costs.
    """
    return not any(map(_is_foreign, model.__mro__)) and not any(
        _listens(getattr_static(model, field.attname)) for field in model._meta.concrete_fields
    )


def _is_foreign(base: type) -> bool:
    """Say whether a class of somebody else's takes part."""
    ours = ("builtins", "django.db.models.base", "django_taskclaim.models.fence")
    takes_part = {"__new__", "__init__", "__setattr__", "from_db"}.intersection(vars(base))
    return bool(takes_part) and base.__module__ not in ours


def _listens(attribute: Any) -> bool:
    """Say whether to set a value does more than to keep it; a link forgets the row that it has led to, if any."""
    return type(attribute) is not ForeignKeyDeferredAttribute and hasattr(attribute, "__set__")


def _laid_out(model: Any, alias: str, names: list[str], values: Iterable[Any]) -> list[Any]:
    rows = []
    new = object.__new__
    # Everything of a row in one place: each call that is made for all of them counts, and each check of what is known.
    for given in values:
        row = new(model)
        own = row.__dict__
        state = own["_state"] = new(ModelState)
        state.adding = False
        state.db = alias
        own.update(zip(names, given))  # noqa: B905 - as long as each other, and asked for each row
        own[LOADED] = (names, given)
        rows.append(row)
    return rows


def bare(model: type[models.Model], claim: Claim) -> models.Model:
    """Return an instance of the row that *claim* is of, which knows its key and carries the claim; it asks nothing.

    No code of the user's takes part in it.
    """
    (row,) = _laid_out(model, claim.alias, [], [()])
    row.pk = claim.pk
    attach(row, claim)
    return cast("models.Model", row)


def _set_fetch_mode(queryset: Rows, rows: Sequence[Any]) -> None:
    """Let the rows fetch what they lack as the queryset asks, which Django can be told since 6.1."""
    mode = getattr(queryset, "_fetch_mode", None)
    if mode in (None, getattr(models, "FETCH_ONE", None)):
        # What a row does that was told nothing.
        return
    peers = [weakref.ref(row) for row in rows] if mode.track_peers else ()
    for row in rows:
        row._state.fetch_mode = mode
        row._state.peers = peers


def read_again(queryset: Rows, target: ClaimTarget, keys: list[Any]) -> list[Any]:
    """Read claimed rows with the joins, annotations and columns asked for, in the order asked for."""
    if not keys:
        return []
    path = f"{target.columns.key_path(queryset.model)}__in"
    rows = like(queryset, target).filter(**{path: keys})
    ordered = (
        rows.order_by(*queryset.query.order_by) if queryset.query.order_by else rows.order_by()
    )
    if not queryset.query.standard_ordering:
        ordered = ordered.reverse()
    by_key: dict[Any, Any] = {}
    for row in ordered:
        # A join of the user's may show a row more than once.
        by_key.setdefault(target.columns.key_of(row), row)
    missing = [key for key in keys if key not in by_key]
    if missing:
        # … or not at all, if what it joins to has gone; the row is claimed all the same, and read without the joins.
        for row in (
            _fresh_like(queryset).select_related(None).using(target.alias).filter(**{path: missing})
        ):
            by_key[target.columns.key_of(row)] = row
    return list(by_key.values()) if queryset.query.order_by else [by_key[key] for key in keys]


def like(queryset: Rows, target: ClaimTarget) -> Rows:
    """Return the rows of the whole table, read as *queryset* reads them but for its prefetches."""
    query = queryset.query
    computed = query.annotations or query.extra
    rows = without_conditions(queryset) if computed else _fresh_like(queryset)
    return rows.using(target.alias).prefetch_related(None)


def _fresh_like(queryset: Rows) -> Rows:
    """Return an unfiltered queryset of the same class with the same columns and joins."""
    fresh = type(queryset)(queryset.model, using=queryset.db).order_by()
    fresh.query.select_related = queryset.query.select_related
    fresh.query.deferred_loading = queryset.query.deferred_loading
    if hasattr(queryset, "_fetch_mode"):
        fresh._fetch_mode = queryset._fetch_mode  # type: ignore[attr-defined]
    return fresh
