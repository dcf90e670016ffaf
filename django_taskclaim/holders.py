"""Users of the site who hold rows: the name of a holder for a user, and the user for a name."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError

from django_taskclaim.states import WORKER_MARK

#: What a user's key follows in the name of a holder.
PREFIX = "user:"


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


def names_of(holders: Iterable[str]) -> dict[str, str]:
    """Return ``name_of`` for each of the holders; their users are read together."""
    names = {one: one.partition(WORKER_MARK)[0] for one in holders}
    keys = [one.removeprefix(PREFIX) for one in names if one.startswith(PREFIX)]
    if keys and apps.is_installed("django.contrib.auth"):
        with suppress(ValidationError, ValueError):
            for user in get_user_model()._default_manager.filter(pk__in=keys):
                names[holder_of(user)] = name_of(None, user)
    return names


def name_of(holder: str | None, user: Any = None) -> str:
    """Return a holder as people speak of it: a user's full or login name, the worker's own part of its id."""
    user = user or user_of(holder)
    if user is not None:
        full_name = getattr(user, "get_full_name", str)
        return full_name() or str(user.get_username())
    return (holder or "").partition(WORKER_MARK)[0]
