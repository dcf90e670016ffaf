"""From the user's queryset to the rows of the claim table: which rows, on which connection, in which order."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from django.core.exceptions import FieldError
from django.db import DatabaseError, connections, models, router
from django.db.models.sql.where import WhereNode

from django_taskclaim.columns import ClaimColumns, KeyColumns, claim_columns, key_columns
from django_taskclaim.dialects import DatabaseNow, Dialect, dialect_for
from django_taskclaim.dialects.statements import KeyTable, Table
from django_taskclaim.fields import AnyField
from django_taskclaim.policy import policy_for

Rows = models.QuerySet[Any]

#: Where a connection keeps the desks of models: they refer to it, so a map of ours would keep both for ever.
DESKS = "_taskclaim_desks"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the rows of one model are locked: the key, the table and the database's dialect."""

    model: type[models.Model]
    alias: str
    columns: KeyColumns
    dialect: Dialect
    table: KeyTable

    @classmethod
    def of_rows(cls, model: type[models.Model], alias: str) -> "Place":
        """Return the place of *model*, which needs no claim columns, on the database *alias*."""
        columns = key_columns(model)
        dialect = dialect_for(connections[alias])
        return Place(model, alias, columns, dialect, dialect.key_table(columns))

    @property
    def rows(self) -> Rows:
        """Every row of the table, whatever managers hide."""
        return models.QuerySet(self.columns.owner, using=self.alias)


@dataclass(frozen=True, slots=True)
class Desk(Place):
    """Where the claims of one model are written: the place has the claim columns."""

    columns: ClaimColumns
    table: Table

    @classmethod
    def of(cls, model: type[models.Model], alias: str) -> "Desk":
        """Return the desk of *model* on the database *alias*."""
        connection = connections[alias]
        known: dict[Any, Desk] = vars(connection).setdefault(DESKS, {})
        desk = known.get(model)
        if desk is None or desk.alias != alias or not desk.table.is_current:
            columns, dialect = claim_columns(model), dialect_for(connection)
            desk = known[model] = cls(model, alias, columns, dialect, dialect.table(columns))
        return desk

    def is_writable(self) -> bool:
        """Say whether the database takes writes of the table now; asks it to write no row."""
        try:
            self.dialect.writable_at(self.table)
        except DatabaseError:
            return False
        return True

    def queue(self, holder: str) -> None:
        """Let the calls of one holder wait for each other, until the transaction of each has ended."""
        # By the owner of the table: a proxy or a child reaches the same rows.
        self.dialect.queue(f"{self.columns.owner._meta.label_lower}:{holder}")


def due_condition(model: type[models.Model]) -> models.Q:
    """Match rows whose waiting time is over by the database's clock: all, where the model has none."""
    waiting = claim_columns(model).not_before
    return models.Q() if waiting is None else models.Q(**{f"{waiting.name}__lte": DatabaseNow()})


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


def on_claim_table(queryset: Rows, desk: Place) -> Rows:
    """Return the rows of *queryset* as a queryset over the desk's table alone, unordered.

    Filters over joins or inheritance become ``pk IN (subquery)``; a plain filter is carried over as it is.
    """
    query = queryset.query
    if not query.where and desk.columns.owned_by(queryset.model):
        return desk.rows.order_by()
    if _looks_at_one_table(queryset, desk):
        rows = desk.rows.order_by()
        rows.query.get_initial_alias()
        rows.query.where = query.where.clone()
        return rows
    keys = queryset.order_by().select_related(None).values(desk.columns.key_path(queryset.model))
    return desk.rows.order_by().filter(pk__in=keys)


def _looks_at_one_table(queryset: Rows, desk: Place) -> bool:
    query = queryset.query
    used = [alias for alias, count in query.alias_refcount.items() if count]
    return (
        desk.columns.owned_by(queryset.model)
        and not query.distinct
        and not query.extra_tables
        and used in ([], [desk.columns.owner._meta.db_table])
    )


def in_policy_order(queryset: Rows) -> Rows:
    """Return *queryset* as it is ordered, else in the order that its model's policy names, if it names one."""
    order = policy_for(queryset.model).own_order
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


def in_claim_order(rows: Rows, queryset: Rows, desk: Place) -> Rows:
    """Order *rows* as *queryset* asks, or as the model's claims are ordered; ``Meta.ordering`` is ignored."""
    asked = queryset.query.order_by
    if not asked:
        return rows.order_by(*desk.columns.order)
    named = {name for item in asked for name in _ordered_by(item)}
    annotated = sorted(named.intersection(queryset.query.annotations))
    if annotated:
        raise TypeError(f"A claim is ordered by columns; {', '.join(annotated)} is an annotation.")
    ordered = rows.order_by(*(_from_owner(item, queryset.model, desk) for item in asked))
    return ordered if queryset.query.standard_ordering else ordered.reverse()


def sort_claimed(raw: Sequence[Any], fields: Sequence[AnyField], desk: Desk) -> list[Any]:
    """Put rows that a claim returned, with *fields*, into the model's claim order; RETURNING has none.

    Text is compared by the database alone, which costs one statement.
    """
    rows, table = list(raw), desk.table
    ranking = desk.columns.ranking
    if not table.sorts_as_python and len(rows) > 1:
        ordered = desk.dialect.in_order(table, [table.key_of(row) for row in rows])
        ranks = {key: rank for rank, key in enumerate(ordered)}
        rows.sort(key=lambda row: ranks.get(table.key_of(row), len(ranks)))
        ranking = ranking[: -len(desk.columns.key)]
    places = {field: place for place, field in enumerate(fields)}
    # The least important column first: sorting leaves rows that are alike in the order that they have.
    for field, descending in reversed(ranking):
        rows.sort(key=itemgetter(places[field]), reverse=descending)
    return rows


def _ordered_by(item: Any) -> list[str]:
    """Return the names that one item of an ordering looks at."""
    if isinstance(item, str):
        return [item.lstrip("-+")]
    parts = item.flatten() if hasattr(item, "flatten") else [item]
    return [_named(part) for part in parts if isinstance(part, models.F)]


def _named(reference: Any) -> str:
    """Return the name that an ``F()`` refers to, which its type stubs do not know."""
    return str(reference.name)


def _from_owner(item: Any, model: type[models.Model], desk: Place) -> Any:
    """Spell an ordering of a multi-table child as seen from the parent that holds the claim columns."""
    if desk.columns.owned_by(model) or item == "?":
        return item
    if isinstance(item, str):
        sign, name = ("-", item[1:]) if item.startswith("-") else ("", item)
        return sign + _name_from_owner(name, model, desk)
    if isinstance(item, models.F):
        return models.F(_name_from_owner(_named(item), model, desk))
    moved = item.copy()
    parts = (part and _from_owner(part, model, desk) for part in item.get_source_expressions())
    moved.set_source_expressions(list(parts))
    return moved


def _name_from_owner(name: str, model: type[models.Model], desk: Place) -> str:
    first = name.split("__")[0]
    if first == "pk" or first in {field.name for field in desk.columns.owner._meta.get_fields()}:
        return name
    return f"{_path_down(model, desk.columns.owner)}__{name}"


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
