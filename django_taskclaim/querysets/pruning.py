"""Deleting rows that have been complete for long: locked, judged again, and deleted as Django deletes, cascades too."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db.models import Max, Q
from django.db.models.deletion import Collector

from django_taskclaim.columns import has_ranges
from django_taskclaim.db import DatabaseLater
from django_taskclaim.db.sql import SQL, sql
from django_taskclaim.querysets.operating import BulkVerb, LockedRow, Progressed, in_chunks
from django_taskclaim.querysets.scope import ClaimTarget, Rows
from django_taskclaim.signals import rows_acted_on, send_after_commit
from django_taskclaim.states import Status

#: What the signal calls it.
PRUNED = "pruned"


def prune(
    queryset: Rows, older_than: timedelta, limit: int | None, progress: Progressed | None
) -> tuple[int, dict[str, int]]:
    """Delete rows completed longer ago than *older_than*; see ``ClaimQuerySet.prune``."""
    pruning = Prune(older_than)
    rows = in_chunks(queryset, pruning, limit, progress)
    return rows, dict(pruning.gone)


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
    """Deletes rows that have been complete for long, and counts what has gone with them."""

    def __init__(self, older_than: timedelta) -> None:
        self.older_than = older_than
        #: How many rows of each model the committed chunks took.
        self.gone: Counter[str] = Counter()
        #: The same of the chunk that is not committed yet, and may be tried again.
        self._chunk: Counter[str] = Counter()

    def condition(self, target: ClaimTarget) -> Q:
        return prunable(target, self.older_than)

    def write(self, target: ClaimTarget, rows: list[LockedRow]) -> int:
        keys = [row.key for row in rows]
        self._chunk = Counter()
        for part in target.dialect.chunks(keys, target.table):
            self._chunk.update(self._deleted(target, part))
        gone = self._chunk[target.columns.owner._meta.label]
        if gone:
            send_after_commit(rows_acted_on, target.model, target.alias, keys=keys, act=PRUNED)
        return gone

    def committed(self) -> None:
        self.gone += self._chunk
        self._chunk = Counter()

    def _deleted(self, target: ClaimTarget, keys: Sequence[Any]) -> Counter[str]:
        owner = target.columns.owner
        if Collector(using=target.alias).can_fast_delete(target.rows):
            deleted = target.dialect.write(target.table, keys, None, self._still(target))
            return Counter({owner._meta.label: deleted})
        # One by one where a statement by many keys might wait for rows that others have locked.
        parts = [[key] for key in keys] if target.dialect.walks_small_tables else [keys]
        gone: Counter[str] = Counter()
        for part in parts:
            rows = target.rows.filter(self.condition(target), pk__in=part)
            gone.update(rows.delete()[1])
        return gone

    def _still(self, target: ClaimTarget) -> SQL:
        """Repeat the condition in the DELETE: a row that was opened again meanwhile stays."""
        completed_at = target.columns.completed_at
        assert completed_at is not None, "asked for by the condition"
        ended = target.table.qualified(completed_at)
        return sql(
            "{} AND {} < {}",
            target.table.in_state(Status.COMPLETE),
            ended,
            target.dialect.later(-self.older_than),
        )
