"""The audit of rows that were taken over: the verb gets who and why, so the record needs no page."""

from collections.abc import Sequence
from typing import Any

from django_taskclaim.control.audit import record_action
from django_taskclaim.holders import name_of, user_of
from django_taskclaim.signals import rows_acted_on


def _taken_over(
    sender: Any,
    keys: Sequence[object],
    act: str,
    using: str,
    by: str = "",
    reason: str = "",
    **kwargs: object,
) -> None:
    if act != "taken over":
        return
    key = str(keys[0]) if len(keys) == 1 else ""
    user = user_of(by)
    record_action(
        sender,
        "take over",
        rows=len(keys),
        by=name_of(by, user),
        reason=reason,
        user=user,
        key=key,
        using=using,
    )


def listen() -> None:
    """Hear of every row taken over from now on."""
    rows_acted_on.connect(_taken_over, dispatch_uid=__name__)
