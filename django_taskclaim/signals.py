"""Signals about changes of state, each sent after the commit that made it true.

Every one is sent with ``sender`` the model class, ``rows`` the instances and ``using`` the database alias, but for
``rows_expired`` and ``rows_acted_on``, which have ``keys`` instead of ``rows``. A receiver that raises is logged and
stops nothing.
"""

from collections.abc import Callable
from typing import Any

from django.db import connections, models, transaction
from django.dispatch import Signal

rows_claimed = Signal()
#: Whatever their completion policy made of them: they may be gone by then, or open again.
rows_completed = Signal()
#: Also carries ``error``.
rows_failed = Signal()
rows_released = Signal()
#: Also carries ``to``, who holds them now. The instances carry the claims that have ended.
rows_handed_over = Signal()
#: Their leases were extended.
rows_renewed = Signal()
claim_lost = Signal()
#: From the reaper, which loads no instances: ``keys``, and their ``fate``, which is "charged" (open again, one try
#: used up), "uncharged" (open again; a holder that a caller had named), "crashed" (open again after its last try, to
#: be claimed alone) or "failed". Also ``holders``, who had claimed them, in the order of the keys.
rows_expired = Signal()
#: From the verbs of operators, which load no instances: ``keys``, and the ``act``, which is "reset", "paused",
#: "resumed", "taken back", "failed", "repaired", "pruned" (they are gone) or "taken over"; the last also with ``by``,
#: who holds them now, and ``reason``.
rows_acted_on = Signal()


def send_after_commit(signal: Signal, model: type[models.Model], using: str, **facts: Any) -> None:
    """Send *signal* once the current transaction has committed; at once where there is none.

    With autocommit switched off nobody tells Django of the commit, so nothing is sent.
    """
    if not signal.has_listeners(model):
        return
    connection = connections[using]
    if connection.in_atomic_block or connection.get_autocommit():
        after_commit(using, lambda: signal.send_robust(sender=model, using=using, **facts))


def after_commit(using: str, tell: Callable[[], object]) -> None:
    """Call *tell* once the current transaction has committed; at once where there is none that Django knows of."""
    if connections[using].in_atomic_block:
        transaction.on_commit(tell, using=using, robust=True)
    else:
        tell()
