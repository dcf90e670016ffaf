"""Deleting rows that have been complete for long: locked, judged again, and deleted as Django deletes, cascades too."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db.models import Max, Q
from django.db.models.deletion import Collector

from django_taskclaim.columns import has_ranges
from django_taskclaim.dialects import DatabaseLater
from django_taskclaim.dialects.statements import SQL, sql
from django_taskclaim.querysets.operating import Told, in_chunks
from django_taskclaim.querysets.scope import Desk, Rows
from django_taskclaim.signals import rows_acted_on, send_after_commit
from django_taskclaim.states import Status

#: What the signal calls it.
PRUNED = "pruned"


def prune(
    queryset: Rows, older_than: timedelta, limit: int | None, progress: Told | None
) -> tuple[int, dict[str, int]]:
    """Delete rows completed longer ago than *older_than*; see ``OperatorVerbs.prune``."""
    pruning = _Pruning(older_than, progress)
    rows = in_chunks(
        queryset, pruning.condition, pruning.write, limit=limit, progress=pruning.committed
    )
    return rows, dict(pruning.gone)


def prunable(desk: Desk, older_than: timedelta) -> Q:
    """Match complete rows that are old enough; without a ``completed_at`` nobody knows how old a row is.

    Of ranges the last one stays: what is planned next begins where it ends, or all over again.
    """
    columns = desk.columns
    if columns.completed_at is None:
        raise TypeError(
            f"{desk.model.__name__} has no completed_at, so nobody knows how long its rows have been complete;"
            " add CompletedAtMixin."
        )
    ended = {f"{columns.completed_at.name}__lt": DatabaseLater(-older_than)}
    found = Q(**{columns.status.name: Status.COMPLETE}) & Q(**ended)
    if not has_ranges(desk.model):
        return found
    # A number, for MySQL deletes nothing by a look at the same table; what is planned later stands behind it.
    last = desk.rows.aggregate(last=Max("position"))["last"]
    return found if last is None else found & Q(position__lt=last)


class _Pruning:
    """One call of the verb: what matches, how a chunk of it is deleted, and what has gone so far."""

    def __init__(self, older_than: timedelta, progress: Told | None) -> None:
        self.older_than, self.progress = older_than, progress
        #: How many rows of each model the committed chunks took.
        self.gone: Counter[str] = Counter()
        #: The same of the chunk that is not committed yet, and may be tried again.
        self._chunk: Counter[str] = Counter()

    def condition(self, desk: Desk) -> Q:
        """Match what may go."""
        return prunable(desk, self.older_than)

    def write(self, desk: Desk, locked: list[list[Any]]) -> int:
        """Delete the locked rows if they still match, and return how many of the claim table went."""
        keys = [desk.table.key_of(row) for row in locked]
        self._chunk = Counter()
        for part in desk.dialect.chunks(keys, desk.table):
            self._chunk.update(self._deleted(desk, part))
        gone = self._chunk[desk.columns.owner._meta.label]
        if gone:
            send_after_commit(rows_acted_on, desk.model, desk.alias, keys=keys, act=PRUNED)
        return gone

    def committed(self, total: int) -> None:
        """Take over what the last chunk took: it is for good now."""
        self.gone += self._chunk
        self._chunk = Counter()
        if self.progress is not None:
            self.progress(total)

    def _deleted(self, desk: Desk, keys: Sequence[Any]) -> Counter[str]:
        owner = desk.columns.owner
        if Collector(using=desk.alias).can_fast_delete(desk.rows):
            fenced = SQL.join(" AND ", [desk.table.keyed(keys), self._still(desk)])
            return Counter({owner._meta.label: desk.dialect.delete_where(desk.table.name, fenced)})
        # One by one where a statement by many keys might wait for rows that others have locked.
        parts = [[key] for key in keys] if desk.dialect.walks_small_tables else [keys]
        gone: Counter[str] = Counter()
        for part in parts:
            rows = desk.rows.filter(self.condition(desk), pk__in=part)
            gone.update(rows.delete()[1])
        return gone

    def _still(self, desk: Desk) -> SQL:
        """Repeat the condition in the DELETE: a row that was opened again meanwhile stays."""
        completed_at = desk.columns.completed_at
        assert completed_at is not None, "asked for by the condition"
        ended = desk.table.qualified(completed_at)
        return sql(
            "{} AND {} < {}",
            desk.table.in_state(Status.COMPLETE),
            ended,
            desk.dialect.later(-self.older_than),
        )
