"""Signals about rows that carry claims, gathered by model and database."""

from collections.abc import Sequence
from typing import Any

from django.db import models
from django.dispatch import Signal

from django_taskclaim.signals import send_after_commit
from django_taskclaim.tokens import carried_claim


def tell(signal: Signal, rows: Sequence[Any], **facts: Any) -> None:
    """Send a signal about rows that carry claims, once the current transaction has committed."""
    by_sender: dict[tuple[type[models.Model], str], list[Any]] = {}
    for row in rows:
        by_sender.setdefault((type(row), carried_claim(row).alias), []).append(row)
    for (model, alias), same in by_sender.items():
        send_after_commit(signal, model, alias, rows=same, **facts)
