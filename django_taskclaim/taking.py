"""``take``: rows of a table without claim columns, locked for the length of a block and then deleted."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TypeVar

from django.db import models, transaction
from django.db.models.manager import BaseManager

from django_taskclaim import conf
from django_taskclaim.db.sql import Key
from django_taskclaim.exceptions import CommitUnknown, TaskClaimError
from django_taskclaim.querysets import scope

M = TypeVar("M", bound=models.Model)

#: How many leases a transaction may be idle, as with atomic handlers.
IDLE_LEASES = 2


def take(
    queryset: models.QuerySet[M] | models.Manager[M],
    limit: int,
    *,
    delete: bool = True,
    idle: float | timedelta | None = None,
) -> AbstractContextManager[list[M]]:
    """Lock the first *limit* rows that nobody else has, hand them to a block, and delete them when it ends well.

    ``with take(Outbox.objects.order_by("id"), 10) as rows: …`` The rows stay locked as long as the block runs, in one
    transaction with all that it writes to their database. When it raises, or its process dies, they are as they were,
    and the next taker gets them. An empty list where nothing is left. The order is that of ``order_by()``, else by
    key; ``Meta.ordering`` is ignored.

    With ``delete=False`` the rows stay as the block leaves them: it updates them, or deletes those that are done. Else
    they are deleted by one statement by key, without Django's cascades and signals.

    The server ends a session whose block sends no query for *idle* (seconds or a timedelta; None is two leases), so
    that a frozen process blocks others no longer; SQLite has no server, and nobody else can write during the block.

    RuntimeError inside the caller's transaction, TypeError or ValueError for what cannot be taken, NotSupportedError
    where the database cannot pass over locked rows. CommitUnknown where the answer to the
    COMMIT was lost; any other error means that nothing was committed, unless an ``on_commit`` hook raised it.
    """
    if isinstance(queryset, BaseManager):
        queryset = queryset.all()
    if not isinstance(queryset, models.QuerySet):
        raise TypeError(f"take() wants a queryset, such as Outbox.objects.all(), not {queryset!r}.")
    scope.refuse_unclaimable(queryset)
    # A copy, sent where rows are written, whose rows are locked by nothing but this.
    rows = queryset.all()
    rows.query.select_for_update = False
    vars(rows)["_for_write"] = True
    rows = rows.using(rows.db)
    if delete and (rows.model._meta.concrete_model or rows.model)._meta.parents:
        raise TypeError(
            f"A row of {rows.model.__name__} lies in several tables; pass delete=False and delete them in the block."
        )
    conf.BATCH_SIZE.check(limit, "limit")
    span = IDLE_LEASES * conf.duration("LEASE") if idle is None else idle
    return _taken(rows, limit, delete, conf.DURATION.check(span, "idle"))


@contextmanager
def _taken(
    queryset: models.QuerySet[M], limit: int, delete: bool, idle: timedelta
) -> Iterator[list[M]]:
    target = scope.Target.of_rows(queryset.model, queryset.db)
    connection = target.dialect.connection
    scope.refuse_transaction(connection, "take() commits when its block ends")
    complaint = (
        "The transaction of take() was over before its block was, so nothing was kept: the block swallowed a database"
        f" error, ended the transaction itself, or sent no query for {idle.total_seconds():g} s"
    )
    outermost = scope.no_transaction(connection)
    committed: list[bool] = []
    rows: list[M] = []
    try:
        with scope.detecting_lost_commit(target, target.dialect.guarded_transaction(idle)):
            if outermost:
                # The first hook of all: one that raises afterwards says nothing about the COMMIT.
                transaction.on_commit(lambda: committed.append(True), using=target.alias)
            with scope.unbroken_transaction(target.alias, complaint):
                rows = _lock(queryset, limit, target, deleting=delete)
                keys = [target.columns.key_of(row) for row in rows]
                yield rows
            for part in target.dialect.chunks(keys if delete else (), target.table):
                gone = target.dialect.write(target.table, part, None)
                if gone > len(part):
                    raise TaskClaimError(
                        f"The key of {target.model._meta.label} is not unique: {len(part)} keys mean {gone} rows."
                        " Nothing was deleted."
                    )
    except scope.AmbiguousCommit as error:
        if committed:
            raise
        raise CommitUnknown(rows, (), rows) from error


def _lock(
    queryset: models.QuerySet[M], limit: int, target: scope.Target, *, deleting: bool
) -> list[M]:
    """Lock rows and return them as the queryset shows them, in its order."""
    if queryset.query.is_empty():
        return []
    candidates = target.in_claim_order(target.rows_of(queryset), queryset)
    keys = target.dialect.lock_first(candidates, target.table, limit, deleting=deleting)
    by_key: dict[Key, M] = {}
    for part in target.dialect.chunks(keys, target.table):
        # Under its conditions again: through a join the lock may have met a row that has just been finished by others.
        for row in queryset.filter(**{f"{target.columns.key_path(queryset.model)}__in": part}):
            # A join of the user's may show a row more than once.
            by_key.setdefault(target.columns.key_of(row), row)
    if queryset.query.order_by:
        return list(by_key.values())
    return [by_key[key] for key in dict.fromkeys(keys) if key in by_key]
