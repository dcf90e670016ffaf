"""``take``: rows of a table without claim columns, locked for the length of a block and then deleted or updated."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from django.core.exceptions import FieldDoesNotExist, FieldError
from django.db import models, transaction
from django.db.models.manager import BaseManager

from django_taskclaim import conf
from django_taskclaim.contention import contention_code
from django_taskclaim.db.sql import NOWAIT
from django_taskclaim.exceptions import CommitUndecided, TaskClaimError
from django_taskclaim.querysets.lost_commits import AWAY, PATIENCE, give_up, patiently
from django_taskclaim.querysets.scope import (
    Rows,
    Target,
    in_claim_order,
    on_claim_table,
    refuse_unclaimable,
)
from django_taskclaim.querysets.transactions import belongs_to_the_caller, no_transaction, whole

M = TypeVar("M", bound=models.Model)

#: How many leases a transaction may be idle, as with atomic handlers.
IDLE_LEASES = 2


def take(
    queryset: models.QuerySet[M] | models.Manager[M],
    limit: int,
    *,
    update: Mapping[str, Any] | None = None,
    cascade: bool = False,
    idle: float | timedelta | None = None,
) -> AbstractContextManager[list[M]]:
    """Lock the first *limit* rows that nobody else has, hand them to a block, and delete them when it ends well.

    ``with take(Outbox.objects.order_by("id"), 10) as rows: …`` The rows stay locked as long as the block runs, in one
    transaction with all that it writes to their database. When it raises, or its process dies, they are as they were,
    and the next taker gets them. An empty list where nothing is left. The order is that of ``order_by()``, else by
    key; ``Meta.ordering`` is ignored.

    With *update*, what ``QuerySet.update()`` takes, the rows are updated instead; ``update={}`` leaves them as the
    block left them. Rows that the block has deleted itself are done. They are deleted by one statement by key, without
    Django's cascades and signals; ``cascade=True`` calls the queryset's own ``delete()``.

    The server ends a session whose block sends no query for *idle* (seconds or a timedelta; None is two leases), so
    that a frozen process blocks others no longer; SQLite has no server, and nobody else can write during the block.

    RuntimeError inside the caller's transaction, TypeError or ValueError for what cannot be taken, NotSupportedError
    where the database cannot pass over locked rows. CommitUndecided where the answer to the COMMIT was lost and nobody
    can tell what came of it; any other error means that nothing was committed, unless an ``on_commit`` hook raised it.
    """
    rows = _checked_rows(queryset)
    if update is not None:
        _check_update(rows, update, cascade)
    elif _lies_in_several_tables(rows.model) and not cascade:
        raise TypeError(
            f"A row of {rows.model.__name__} lies in several tables; pass cascade=True, and Django deletes it from all"
            " of them, or update=…."
        )
    span = IDLE_LEASES * conf.duration("LEASE") if idle is None else idle
    return _taken(
        Order(
            rows,
            _checked_limit(limit),
            None if update is None else dict(update),
            cascade,
            conf.positive_duration(span, "idle"),
        )
    )


@dataclass(frozen=True, slots=True)
class Order:
    """One call of ``take``, checked."""

    queryset: Rows
    limit: int
    update: dict[str, Any] | None
    cascade: bool
    idle: timedelta

    def rows(self, keys: list[Any], place: Target) -> Rows:
        """Return the rows with these keys, whatever the caller's conditions."""
        rows = type(self.queryset)(self.queryset.model, using=place.alias)
        return rows.filter(**{f"{place.columns.key_path(rows.model)}__in": keys})


def _checked_rows(queryset: Any) -> Rows:
    if isinstance(queryset, BaseManager):
        queryset = queryset.all()
    if not isinstance(queryset, models.QuerySet):
        raise TypeError(f"take() wants a queryset, such as Outbox.objects.all(), not {queryset!r}.")
    refuse_unclaimable(queryset)
    # A copy, sent where rows are written, whose rows are locked by nothing but this.
    rows = queryset.all()
    rows.query.select_for_update = False
    rows._for_write = True  # type: ignore[attr-defined]
    return rows.using(rows.db)


def _checked_limit(limit: int) -> int:
    """Return the limit; ValueError where it is none."""
    whole_number = isinstance(limit, int) and not isinstance(limit, bool)
    if not whole_number or not 1 <= limit <= conf.MAX_BATCH_SIZE:
        raise ValueError(f"take() takes from 1 to {conf.MAX_BATCH_SIZE} rows, not {limit!r}.")
    return limit


def _check_update(rows: Rows, update: Any, cascade: bool) -> None:
    """Refuse before the block what could not be written after it."""
    if not isinstance(update, Mapping):
        raise TypeError(f'update must be a mapping such as {{"sent": True}}, not {update!r}.')
    if cascade:
        raise ValueError("cascade=True is about deleting, and update=… deletes nothing.")
    keys = {"pk", *(field.name for field in rows.model._meta.pk_fields)}
    if wrong := sorted(keys.intersection(update)):
        raise ValueError(f"update names {', '.join(wrong)}, by which the rows are found.")
    if not update:
        return
    try:
        # Sends nothing.
        rows.order_by().none().update(**update)
    except (AttributeError, FieldDoesNotExist, FieldError) as error:
        # Django 5.2 stumbles over a relation from another table.
        raise ValueError(f"update cannot be written to {rows.model.__name__}: {error}") from error


def _lies_in_several_tables(model: type[models.Model]) -> bool:
    return bool((model._meta.concrete_model or model)._meta.parents)


@contextmanager
def _taken(order: Order) -> Iterator[list[Any]]:
    place = Target.of_rows(order.queryset.model, order.queryset.db)
    connection = place.dialect.connection
    if belongs_to_the_caller(connection):
        raise RuntimeError(
            "take() commits when its block ends, but a transaction is open here (atomic(), ATOMIC_REQUESTS, or"
            " autocommit switched off), so its rows would stay locked until that ends. Call it outside, for example in"
            " a view with @transaction.non_atomic_requests."
        )
    outermost, committing = no_transaction(connection), False
    committed: list[bool] = []
    rows: list[Any] = []
    try:
        with place.dialect.guarded_transaction(order.idle):
            if outermost:
                # The first hook of all: one that raises afterwards says nothing about the COMMIT.
                transaction.on_commit(lambda: committed.append(True), using=place.alias)
            with whole(place.alias, _complaint(order), asking=True):
                rows = _lock(order, place)
                keys = [place.columns.key_of(row) for row in rows]
                yield rows
            _finish(order, place, keys)
            committing = outermost
    except AWAY as error:
        if not committing or committed or contention_code(error) is not None:
            raise
        if not place.dialect.may_be_done(error):
            raise
        _tell_after_lost_commit(order, place, rows, keys, error)


def _complaint(order: Order) -> str:
    return (
        "The transaction of take() was over before its block was, so nothing was kept: the block swallowed a database"
        f" error, ended the transaction itself, or sent no query for {order.idle.total_seconds():g} s"
    )


def _lock(order: Order, place: Target) -> list[Any]:
    """Lock rows and return them as the queryset shows them, in its order."""
    queryset = order.queryset
    if queryset.query.is_empty():
        return []
    candidates = in_claim_order(on_claim_table(queryset, place), queryset, place)
    locked = place.dialect.lock_first(
        candidates,
        place.table,
        order.limit,
        place.columns.key,
        deleting=order.update is None,
    )
    keys = place.table.keys_of(locked)
    if not keys:
        return []
    if len(set(keys)) < len(keys):
        raise TaskClaimError(
            _not_unique(place, f"{len(keys)} rows were locked by {len(set(keys))} keys")
        )
    by_key: dict[Any, Any] = {}
    for part in place.dialect.chunks(keys, place.table):
        # Under its conditions again: through a join the lock may have met a row that has just been finished by others.
        for row in queryset.filter(**{f"{place.columns.key_path(queryset.model)}__in": part}):
            # A join of the user's may show a row more than once.
            by_key.setdefault(place.columns.key_of(row), row)
    if queryset.query.order_by:
        return list(by_key.values())
    return [by_key[key] for key in keys if key in by_key]


def _finish(order: Order, place: Target, keys: list[Any]) -> None:
    """Do with the rows what was ordered; those that the block has deleted itself are done."""
    parts = place.dialect.chunks(keys, place.table)
    if order.cascade and place.dialect.walks_small_tables:
        parts = iter([[key] for key in keys])
    for part in parts:
        if order.update:
            order.rows(list(part), place).update(**order.update)
        elif order.cascade:
            order.rows(list(part), place).delete()
        elif order.update is None:
            _delete(place, list(part))


def _delete(place: Target, keys: list[Any]) -> None:
    deleted = place.dialect.write(place.table, keys, None)
    if deleted > len(keys):
        raise TaskClaimError(
            _not_unique(place, f"{len(keys)} rows were taken, {deleted} have their keys")
        )


def _not_unique(place: Target, seen: str) -> str:
    names = ", ".join(field.name for field in place.columns.key)
    return f"The key of {place.model._meta.label} ({names}) is not unique: {seen}. Nothing was deleted."


def _tell_after_lost_commit(
    order: Order, place: Target, rows: list[Any], keys: list[Any], error: Exception
) -> None:
    """Pass *error* on where nothing was committed, and raise CommitUndecided where nobody can tell."""
    give_up(place.dialect.connection)
    if order.update is None and _still_there(place, keys):
        raise error
    raise CommitUndecided(rows, (), rows) from error


def _still_there(place: Target, keys: list[Any]) -> bool:
    """Say whether a row is still there that the COMMIT would have deleted; False also where nobody can look."""
    look = partial(place.dialect.select_keys, place.table, keys[:1], lock=NOWAIT)
    try:
        return bool(keys) and bool(patiently(place, look, PATIENCE))
    except AWAY:
        return False
