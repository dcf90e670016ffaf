"""Who holds rows: the ids of workers, names that a caller gives, and users of the site."""

import os
import secrets
import socket
from typing import Any

from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError

from django_taskclaim.states import WORKER_MARK

#: What a user's key follows in the name of a holder.
PREFIX = "user:"


def new_holder(worker: str | None = None) -> str:
    """Return an id for one batch: ``<process>#<random>``, never used before or again.

    A worker's begins with the name that its process reports under.
    """
    process = process_name(worker) if worker else f"{os.getpid()}@{socket.gethostname()}"[:170]
    return process + WORKER_MARK + secrets.token_hex(8)


def process_name(worker: str) -> str:
    """Return the name of this process of *worker*, unique on its host while it lives: ``<worker>@<host>:<pid>``."""
    pid = f":{os.getpid()}"
    return f"{worker}@{socket.gethostname()}"[: 170 - len(pid)] + pid


def checked_name(name: str, argument: str = "claimed_by") -> str:
    """Return a holder named by the caller; the mark of workers tells the reaper who is none of them."""
    if not isinstance(name, str) or not name or len(name) > 200 or "\x00" in name:
        raise ValueError(f"{argument} must be a text of 1 to 200 characters, not {name!r}.")
    if WORKER_MARK in name:
        raise ValueError(
            f"{argument} {name!r} contains {WORKER_MARK!r}, which marks the ids of workers."
        )
    return name


def holder_of(user: Any) -> str:
    """Return the name under which *user* holds rows, ``user:17``; ValueError for nobody in particular."""
    if getattr(user, "pk", None) is None:
        raise ValueError("Only a user who is logged in can hold rows.")
    return f"{PREFIX}{user.pk}"


def user_of(holder: str | None) -> object:
    """Return the user whom a holder's name means, None where it means none."""
    if not (holder or "").startswith(PREFIX) or not apps.is_installed("django.contrib.auth"):
        return None
    users = get_user_model()._default_manager
    try:
        user = users.filter(pk=(holder or "").removeprefix(PREFIX)).first()
    except (ValidationError, ValueError):
        return None
    # "user:017" spells the same key and is another name.
    return user if user is not None and holder_of(user) == holder else None


def name_of(holder: str | None, user: Any = None) -> str:
    """Return a holder as people speak of it: a user's full or login name, the worker's own part of its id."""
    user = user or user_of(holder)
    if user is not None:
        full_name = getattr(user, "get_full_name", str)
        return full_name() or str(user.get_username())
    return (holder or "").partition(WORKER_MARK)[0]
