"""Calling idle workers when there are new rows: once a transaction and table, after the commit."""

from dataclasses import dataclass
from itertools import islice

from django.db import connections, models, transaction

from django_taskclaim.dialects.waking import call, can_call
from django_taskclaim.querysets.called import called_for

#: How many hooks of a transaction are looked through for the same call; a second one would do no harm.
LOOKED_THROUGH = 100


@dataclass(frozen=True, slots=True)
class _Call:
    table: str
    using: str

    def __call__(self) -> None:
        call(connections[self.using], self.table)


def call_workers(owner: type[models.Model], using: str) -> None:
    """Have idle workers look for rows of *owner*'s table once what was written is committed; nothing unless asked for.

    Not in the transaction itself: PostgreSQL lets transactions that call commit one after the other.
    """
    if owner not in called_for:
        return
    connection = connections[using]
    if not can_call(connection):
        return
    call_once = _Call(owner._meta.db_table, using)
    if not connection.in_atomic_block and not connection.get_autocommit():
        # Nobody tells Django of such a commit.
        call_once()
        return
    here = set(connection.savepoint_ids)
    for savepoints, hook, *_ in islice(reversed(connection.run_on_commit), LOOKED_THROUGH):
        if hook == call_once and set(savepoints) <= here:
            return
    transaction.on_commit(call_once, using=using, robust=True)
