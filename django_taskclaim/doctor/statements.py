"""The statements that claims and the reaper send, captured without being sent.

The verbs themselves run, so what is captured is what they send, with the strategy that is set and the handler's own
filter. Django's ``execute_wrapper`` takes each statement and puts a harmless question in its place.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from django.db import connections, models, transaction

from django_taskclaim.conf import setting
from django_taskclaim.db.sql import SQL
from django_taskclaim.handlers import handler_for
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.claiming import checked_request, claim
from django_taskclaim.querysets.cursor import Cursor
from django_taskclaim.querysets.scope import ClaimTarget

#: Statements by key differ in their number of keys only, so a few stand for all.
SAMPLE = 50


@contextmanager
def capturing(target: ClaimTarget, *, locks_find: bool) -> Iterator[list[SQL]]:
    """Capture every statement on the target's table inside the block; none of them is sent.

    A SELECT finds rows of the table, one that locks only with *locks_find*: then what would follow is captured too.
    """
    statements: list[SQL] = []
    table, lock_clause = target.table.name, target.dialect.lock_clause

    def stand_in(text: str) -> str:
        if text.startswith("WITH RECURSIVE"):
            # Of quarantined rows, by priority: as if there was one.
            return "SELECT 0"
        if text.startswith("SELECT") and (locks_find or lock_clause not in text):
            wanted = text.removeprefix("SELECT ").removeprefix("DISTINCT ").partition(" FROM ")[0]
            return f"SELECT {wanted} FROM {table} LIMIT {SAMPLE}"
        return f"SELECT 1 FROM {table} WHERE 1 = 0"

    def capture(execute: Callable[..., object], text: str, params: Any, *rest: object) -> object:
        if table not in text or not text.startswith(("SELECT", "UPDATE", "DELETE", "WITH")):
            return execute(text, params, *rest)
        if all(text != known.text for known in statements):
            statements.append(SQL(text, tuple(params or ())))
        return execute(stand_in(text), (), *rest)

    # The caller's transaction makes the verbs open savepoints only; nothing has been written when it ends.
    with transaction.atomic(using=target.alias), connections[target.alias].execute_wrapper(capture):
        yield statements


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
            claim(rows, replace(request, cursor=Cursor.behind(last, target)))
    return captured


def reaper_statements(model: type[models.Model], alias: str) -> list[SQL]:
    """Return what ``release_expired`` sends to find rows whose lease has ended."""
    with capturing(ClaimTarget.of(model, alias), locks_find=False) as captured:
        ClaimQuerySet(model, using=alias).release_expired()
    return captured
