"""Overrides that a person sets: stored by ``switch.set_overrides``, and recorded as an act with who and why."""

from collections.abc import Mapping
from typing import Any

from django.db import models

from django_taskclaim.control.audit import record_action
from django_taskclaim.switch import SwitchError, override_as_text, set_overrides


def change_overrides(
    model: type[models.Model],
    values: Mapping[str, Any],
    *,
    by: str,
    user: Any = None,
    reason: str = "",
    using: str | None = None,
) -> None:
    """Set *values* as ``switch.set_overrides`` does, and record it on each database where they were set."""
    changed = in_words(values)
    recorded = f"{changed}: {reason}" if reason else changed
    done: list[str] = []
    try:
        done = set_overrides(model, by=by, using=using, **values)
    except SwitchError as error:
        done = error.done
        raise
    finally:
        if done:
            record_action(model, "settings", by=by, reason=recorded, user=user, using=done)


def in_words(overrides: Mapping[str, Any]) -> str:
    """Return overrides as people write them: ``batch size 10, lease 30s, rate none``."""
    return ", ".join(
        f"{name.replace('_', ' ')} {override_as_text(value)}" for name, value in overrides.items()
    )
