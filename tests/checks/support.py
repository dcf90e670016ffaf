"""Messages of the checks, and connections of other settings."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.checks import CheckMessage
from django.db import connections

from django_taskclaim.checks import problems_of


def ids(messages: Iterable[CheckMessage]) -> list[str]:
    """Return the ids of this package's messages, each of which has a hint."""
    found = [message for message in messages if str(message.id).startswith("taskclaim.")]
    assert all(message.hint for message in found)
    return sorted(str(message.id).removeprefix("taskclaim.") for message in found)


def ids_of(model: Any) -> list[str]:
    """Return the ids of what the system checks find wrong with a model."""
    return ids(problems_of(model))


def text(messages: Iterable[CheckMessage]) -> str:
    return "\n".join(f"{message.msg} {message.hint}" for message in messages)


@contextmanager
def configured(**changes: Any) -> Iterator[Any]:
    """Let the default connection be another one, with these settings; OPTIONS are added to the usual ones."""
    usual = connections["default"]
    settings = copy.deepcopy(usual.settings_dict)
    settings["OPTIONS"] |= changes.pop("OPTIONS", {})
    other = connections["default"] = type(usual)(settings | changes, "default")
    try:
        yield other
    finally:
        other.close()
        connections["default"] = usual
