"""Signals about rows that carry claims, gathered by model and database."""

from collections.abc import Sequence
from typing import Any

from django.dispatch import Signal

from django_taskclaim.signals import send_after_commit
from django_taskclaim.tokens import carried_claim, carried_claims


def tell(signal: Signal, rows: Sequence[Any], **facts: Any) -> None:
    """Send a signal about rows that carry claims, once the current transaction has committed."""
    if not signal.receivers:
        return
    for model in dict.fromkeys(map(type, rows)):
        if not signal.has_listeners(model):
            continue
        of_model = [row for row in rows if type(row) is model]
        for alias in dict.fromkeys(claim.alias for claim in carried_claims(of_model)):
            same = [row for row in of_model if carried_claim(row).alias == alias]
            send_after_commit(signal, model, alias, rows=same, **facts)
