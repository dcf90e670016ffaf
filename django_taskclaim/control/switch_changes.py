"""What a person changes of the switch of a model, pauses and overrides, recorded from every page and command."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.db import models
from django.utils.translation import gettext as _

from django_taskclaim.control.audit import record_action
from django_taskclaim.formatting import format_duration
from django_taskclaim.switch import (
    SwitchError,
    claimable_models,
    override_as_text,
    pause,
    pause_all,
    places_of,
    resume,
    resume_all,
    set_overrides,
)


def turn(
    model: type[models.Model] | None,
    *,
    off: bool,
    by: str,
    user: object = None,
    reason: str = "",
    until: timedelta | None = None,
    using: str | None = None,
) -> None:
    """Pause or resume claims of *model*, or of all models with None.

    Raises ``SwitchError`` where a database could not be reached.
    """
    how: dict[str, Any] = {"reason": reason, "by": by, "until": until} if off else {}
    if off and until:
        reason = f"{reason} {_('for %(time)s') % {'time': format_duration(until)}}".strip()
    facts: dict[str, Any] = {"by": by, "user": user, "reason": reason}
    with _recorded(model, "pause" if off else "resume", using, facts):
        if model is None:
            (pause_all if off else resume_all)(**how, using=using)
        else:
            (pause if off else resume)(model, **how, using=using)


def change_overrides(
    model: type[models.Model],
    values: Mapping[str, object],
    *,
    by: str,
    user: object = None,
    reason: str = "",
    using: str | None = None,
) -> None:
    """Set *values* as ``switch.set_overrides`` does, with its errors."""
    changed = in_words(values)
    facts = {"by": by, "user": user, "reason": f"{changed}: {reason}" if reason else changed}
    with _recorded(model, "settings", using, facts):
        set_overrides(model, by=by, using=using, **values)


def in_words(overrides: Mapping[str, object]) -> str:
    """Return overrides as people write them: ``batch size 10, lease 30s, rate none``."""
    return ", ".join(
        f"{name.replace('_', ' ')} {override_as_text(value)}" for name, value in overrides.items()
    )


@contextmanager
def _recorded(
    model: type[models.Model] | None, action: str, using: str | None, facts: Mapping[str, Any]
) -> Iterator[None]:
    """Record what the block does, on each database where it was done."""
    done = places_of(using, claimable_models() if model is None else [model])
    failed: SwitchError | None = None
    try:
        yield
    except SwitchError as error:
        done, failed = error.done, error
    if done:
        record_action(model, action, using=done, **facts)
    if failed is not None:
        raise failed
