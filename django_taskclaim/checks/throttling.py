"""The health checks of settings and handlers: that there are such, and that the databases can answer them."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from django.core.checks import CheckMessage
from django.db import DatabaseError, connections, router
from django.utils.connection import ConnectionDoesNotExist

from django_taskclaim import conf
from django_taskclaim.checks.messages import message
from django_taskclaim.columns import is_claimable
from django_taskclaim.handlers import handler_for
from django_taskclaim.switch import claimable_models
from django_taskclaim.throttling.health import Check, loaded, name_of, refusals


def check_health_checks(**kwargs: Any) -> list[CheckMessage]:
    """E031, and E032 as far as the kind of database shows it."""
    asked = list(_asked())
    faults = dict.fromkeys(_fault(entry) for entry in (*_shared(), *(one.entry for one in asked)))
    hint = 'TASKCLAIM = {"HEALTH_CHECKS": [ReplicaLag(at_most=10)]}  # from django_taskclaim.throttling'
    found = [message("E031", text, hint) for text in faults if text]
    return [*found, *_refused("E032", asked, ask=False)]


def check_health_answers(
    databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """E131, asked of each server on which rows with a handler are claimed."""
    asked = [one for one in _asked() if one.using in (databases or ())]
    return list(_refused("E131", asked, ask=True))


class _Asked(NamedTuple):
    """An entry, and the database on which a worker would ask it."""

    entry: Any
    using: str


def _asked() -> Iterator[_Asked]:
    """Yield what workers ask, on the database that each model with a handler is claimed on."""
    for model in claimable_models():
        found = handler_for(model) if is_claimable(model) else None
        if found is not None and (alias := router.db_for_write(model)) in connections:
            yield from (_Asked(entry, alias) for entry in (*_shared(), *found.health_checks))


def _refused(number: str, asked: Sequence[_Asked], *, ask: bool) -> Iterator[CheckMessage]:
    """Yield what databases refuse, each check once a database, for no model gets another answer."""
    once = {(id(one.entry), one.using): one for one in asked if not _fault(one.entry)}
    told = dict.fromkeys(
        refusal
        for one in once.values()
        for refusal in _refusals(loaded(one.entry), one.using, ask=ask)
    )
    return (message(number, text, hint) for text, hint in told)


def _refusals(check: Check, using: str, *, ask: bool) -> list[tuple[str, str]]:
    try:
        # What the kind of database shows is told without asking, and once.
        kind = list(refusals(check, using, ask=False))
        if not ask:
            return [*kind]
        return [found for found in refusals(check, using, ask=True) if found not in kind]
    except ConnectionDoesNotExist as error:
        text = f"The health check {name_of(check)} asks a database that is none: {error}"
        return [] if ask else [(text, "DATABASES = {…}")]
    except DatabaseError as error:
        text = f"The health check {name_of(check)} cannot be asked: {error}"
        return [(text, "manage.py claimdoctor")]


def _shared() -> Sequence[Any]:
    entries: Sequence[Any] = conf.setting("HEALTH_CHECKS")
    return entries


def _fault(entry: Any) -> str:
    """Return what is wrong with the entry."""
    try:
        loaded(entry)
    except (ImportError, TypeError) as error:
        return f"The entry {entry!r} among the health checks is none: {error}"
    return ""
