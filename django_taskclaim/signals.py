"""Signals about changes of state, each sent after the commit that made it true.

Each is sent with ``sender`` (the model class), ``rows`` (the instances) and ``using`` (the database alias).
``rows_expired`` and ``rows_acted_on`` have ``keys`` instead of ``rows``. A receiver that raises an error is logged and
stops nothing.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections, models, transaction
from django.dispatch import Signal

from django_taskclaim.claim import claim_of

#: A claim took these rows.
rows_claimed = Signal()
#: The rows are done. Their completion policy may have deleted them by now, or opened them again.
rows_completed = Signal()
#: Also carries ``error``.
rows_failed = Signal()
#: Their holder gave these rows back.
rows_released = Signal()
#: Also carries ``to``, who holds them now. The instances carry the claims that have ended.
rows_handed_over = Signal()
#: A verb of a holder found that its claim on these rows had ended.
claim_lost = Signal()
#: From the reaper, which loads no instances. Carries ``keys`` and ``holders`` (who had claimed them, in the order of
#: the keys), and their ``outcome``: "charged" (open again, one try used up), "uncharged" (open again; a caller had
#: named the holder), "quarantined" (open again after the last try; claimed alone next time) or "failed".
rows_expired = Signal()
#: From the verbs of operators, which load no instances. Carries ``keys`` and the ``act``: "reset", "paused",
#: "resumed", "rescheduled", "taken back", "failed", "pruned", "deleted" (the rows are gone) or "taken over"; also
#: ``by`` and ``reason``, which are known where the admin, a command or ``take_over()`` acted, and else empty.
rows_acted_on = Signal()

#: Who acts, and why.
_operator: ContextVar[tuple[str, str]] = ContextVar("taskclaim_operator", default=("", ""))


@contextmanager
def acted_by(by: str, reason: str) -> Iterator[None]:
    """Let ``rows_acted_on`` of what the block does to rows carry who did it, and why."""
    before = _operator.set((by, reason))
    try:
        yield
    finally:
        _operator.reset(before)


def send_acted_on(
    model: type[models.Model], using: str, keys: Iterable[object], act: str, **facts: str
) -> None:
    """Send that an operator's verb did *act* to the rows with these keys, as ``send_after_commit``."""
    by, reason = _operator.get()
    facts = {"by": by, "reason": reason, **facts}
    send_after_commit(rows_acted_on, model, using, keys=keys, act=act, **facts)


def send_after_commit(
    signal: Signal, model: type[models.Model], using: str, **facts: object
) -> None:
    """Send *signal* once the current transaction has committed; at once where there is none.

    With autocommit switched off nobody tells Django of the commit, so nothing is sent.
    """
    if not signal.has_listeners(model):
        return
    connection = connections[using]
    if connection.in_atomic_block or connection.get_autocommit():
        send = partial(signal.send_robust, sender=model, using=using, **facts)
        transaction.on_commit(send, using=using, robust=True)


def send_of_rows(signal: Signal, rows: Iterable[models.Model], **facts: Any) -> None:
    """Send *signal* about rows, by model and by the database of their claims; as ``send_after_commit``."""
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        claim = claim_of(row)
        alias = row._state.db or DEFAULT_DB_ALIAS if claim is None else claim.alias
        groups.setdefault((type(row), alias), []).append(row)
    for (model, alias), same in groups.items():
        send_after_commit(signal, model, alias, rows=same, **facts)
