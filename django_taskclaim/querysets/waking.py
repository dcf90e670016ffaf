"""Calling idle workers when there are new rows: after the commit, and so seldom that inserts hardly cost more."""

from itertools import islice
from time import monotonic

from django.db import connections, models, transaction

from django_taskclaim.db.notify import QUIET, call, can_call

#: The models that hold our columns and have a handler that wants to be called; filled as handlers are registered.
called_for: set[type[models.Model]] = set()

#: How many hooks of a transaction are looked through for the same call; a second one would do no harm.
LOOKED_THROUGH = 100
#: The part of a process's time that calls for one table may take: where calls take long, they are more seldom.
SHARE = 0.005
#: The longest silence, in seconds: as long as the usual pause between two polls.
LONGEST = 1.0


class _Caller:
    """What this process calls for one table: one call, then silence for a while.

    The call says for how long. Who hears it looks at once, and again at the end of the silence, so no row that comes in
    meanwhile is passed over and no timer runs here.
    """

    def __init__(self, table: str, using: str) -> None:
        self.table, self.using = table, using
        self.silent_until = 0.0
        #: How long a call takes, in seconds.
        self.cost = 0.0

    def is_silent(self) -> bool:
        return monotonic() < self.silent_until

    def after_commit(self) -> None:
        if self.is_silent():
            return
        began = monotonic()
        silence = min(max(QUIET, self.cost / SHARE), LONGEST)
        # Before the call: rows from now on are those that its hearers look for at the end.
        self.silent_until = began + silence
        call(connections[self.using], self.table, silence)
        self.cost += (monotonic() - began - self.cost) / 4


_callers: dict[tuple[type[models.Model], str], _Caller] = {}


def call_workers(owner: type[models.Model], using: str) -> None:
    """Have idle workers look for rows of *owner*'s table once what was written is committed; nothing unless asked for.

    Not in the transaction itself: PostgreSQL lets transactions that call commit one after the other.
    """
    if owner not in called_for:
        return
    connection = connections[using]
    if not can_call(connection):
        return
    caller = _callers.get((owner, using))
    if caller is None:
        caller = _callers.setdefault((owner, using), _Caller(owner._meta.db_table, using))
    if not connection.in_atomic_block and (caller.is_silent() or not connection.get_autocommit()):
        # Without autocommit nobody tells Django of the commit.
        return
    here = set(connection.savepoint_ids)
    for savepoints, hook, *_ in islice(reversed(connection.run_on_commit), LOOKED_THROUGH):
        if hook == caller.after_commit and set(savepoints) <= here:
            return
    transaction.on_commit(caller.after_commit, using=using, robust=True)
