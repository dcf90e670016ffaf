"""The statements that claims, completions, renewals and the reaper send, captured without being sent.

The verbs themselves run, so what is captured is what they send, with the strategy that is set and the handler's own
filter. Django's ``execute_wrapper`` takes each statement and puts a harmless question in its place.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from django.db import connections, models, transaction

from django_taskclaim.completion import Delete
from django_taskclaim.conf import setting
from django_taskclaim.db.sql import SQL, WAIT, Change
from django_taskclaim.handlers import handler_for
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.assignments import completed
from django_taskclaim.querysets.claiming import checked_request
from django_taskclaim.querysets.cursor import Cursor
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.states import WORKER_MARK, Token

#: Statements by key differ in their number of keys only, so a few stand for all.
SAMPLE = 50

#: No claim ever had this token, so nothing would be written even if a statement were sent.
NOBODY = Token(f"claimdoctor{WORKER_MARK}", -1)


@dataclass
class StatementCapture:
    """Captures the statements on one table; each question is answered with rows of the table or with none."""

    target: ClaimTarget
    #: Whether a SELECT that locks finds rows too, so that what would follow is captured as well.
    locks_find: bool
    captured: list[SQL] = field(default_factory=list)

    def __call__(
        self, execute: Callable[..., Any], text: str, params: Any, many: bool, context: Any
    ) -> Any:
        if not self._is_ours(text):
            return execute(text, params, many, context)
        statement = SQL(text, tuple(params or ()))
        if all(statement.text != known.text for known in self.captured):
            self.captured.append(statement)
        return execute(self._stand_in(text), (), many, context)

    def _is_ours(self, text: str) -> bool:
        return (
            text.startswith(("SELECT", "UPDATE", "DELETE", "WITH"))
            and self.target.table.name in text
        )

    def _stand_in(self, text: str) -> str:
        """Return a question with the same columns: a few rows for a SELECT, nothing for all else."""
        table = self.target.table
        if text.startswith("WITH RECURSIVE"):
            # Of quarantined rows, by priority: as if there was one.
            return "SELECT 0"
        locks = self.target.dialect.lock_clause in text
        if text.startswith("SELECT") and (self.locks_find or not locks):
            wanted = text.removeprefix("SELECT ").removeprefix("DISTINCT ").partition(" FROM ")[0]
            return f"SELECT {wanted} FROM {table.name} LIMIT {SAMPLE}"
        return f"SELECT 1 FROM {table.name} WHERE 1 = 0"


@contextmanager
def capturing(target: ClaimTarget, *, locks_find: bool = False) -> Iterator[list[SQL]]:
    """Capture every statement on the target's table inside the block; none of them is sent."""
    capture = StatementCapture(target, locks_find)
    # The caller's transaction makes the verbs open savepoints only; nothing has been written when it ends.
    with (
        transaction.atomic(using=target.alias),
        connections[target.alias].execute_wrapper(capture),
    ):
        yield capture.captured


def claim_statements(model: type[models.Model], alias: str) -> list[SQL]:
    """Return what a worker of *model* sends to claim a batch, at first and behind a bound."""
    target = ClaimTarget.of(model, alias)
    handler = handler_for(model)
    rows: Any = handler.rows(alias) if handler else model._default_manager.using(alias)
    if not hasattr(rows, "claim_batch"):
        rows = ClaimQuerySet(model, using=alias)
    limit = handler.batch_size if handler is not None else int(setting("BATCH_SIZE"))
    # Of the user's columns none: one that cannot be read is not the doctor's concern.
    ours = [*target.columns.key, *(field for field in [target.columns.priority] if field)]
    last = target.rows.only(*(field.attname for field in ours)).order_by().first()
    # Where the settings ask for REPEATABLE READ, a limit per key refuses this transaction, though no worker's own.
    with capturing(target, locks_find=True) as captured, suppress(RuntimeError):
        rows.claim_batch(limit, durable=False)
        if last is not None:
            request = checked_request(model, limit, None, None, False, False)
            rows._claim(replace(request, cursor=Cursor.behind(last, target)))
    return captured


def reaper_statements(model: type[models.Model], alias: str) -> list[SQL]:
    """Return what ``release_expired`` sends to find rows whose lease has ended."""
    with capturing(ClaimTarget.of(model, alias)) as captured:
        ClaimQuerySet(model, using=alias).release_expired()
    return captured


def fenced_statements(model: type[models.Model], alias: str) -> list[SQL]:
    """Return what completions and renewals send; nothing for an empty table."""
    target = ClaimTarget.of(model, alias)
    keys = list(target.rows.order_by().values_list("pk", flat=True)[:SAMPLE])
    if not keys:
        return []
    with capturing(target, locks_find=True) as captured:
        deletes = isinstance(policy_for(model).completion, Delete)
        change = None if deletes else Change(completed(target))
        target.dialect.write_held(target.table, [(NOBODY, keys)], change)
        target.dialect.select_keys(target.table, keys, target.table.standing(NOBODY), WAIT)
        target.dialect.renew_held(target.table, NOBODY, keys, timedelta(seconds=60))
    return captured
