"""Users of the site who hold rows: the name of a holder for a user, and the name of a holder as people speak of it."""

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


def names_of(holders: Iterable[str]) -> dict[str, str]:
    """Return ``name_of`` for each of the holders; their users are read together."""
    names = {one: one.partition(WORKER_MARK)[0] for one in holders}
    keys = list[str]()
    if apps.is_installed("django.contrib.auth"):
        for one in names:
            # A caller of verbs may have a name that means no user.
            with suppress(ValidationError, ValueError):
                if one.startswith(PREFIX):
                    keys.append(get_user_model()._meta.pk.to_python(one.removeprefix(PREFIX)))
    for user in get_user_model()._default_manager.filter(pk__in=keys) if keys else ():
        # "user:017" spells the same key and is another name.
        if holder_of(user) in names:
            names[holder_of(user)] = name_of(None, user)
    return names


def name_of(holder: str | None, user: Any = None) -> str:
    """Return a holder as people speak of it: a user's full or login name, the worker's own part of its id."""
    if user is None:
        return names_of([holder or ""])[holder or ""]
    full_name = getattr(user, "get_full_name", str)
    return full_name() or str(user.get_username())
