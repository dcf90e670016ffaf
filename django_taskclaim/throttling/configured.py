"""The health checks that the settings name: loaded late, and asked whether the database can answer them at all."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from django.db.models import Model
from django.utils.module_loading import import_string

from django_taskclaim import conf
from django_taskclaim.monitoring.server import Refusal
from django_taskclaim.throttling.answers import Check, Surroundings
from django_taskclaim.throttling.health import ServerCheck


def health_checks(also: Iterable[Any] = ()) -> list[Check]:
    """Return the checks of ``TASKCLAIM["HEALTH_CHECKS"]`` and of *also*, ready to be asked.

    Raises what ``loaded`` raises.
    """
    return [loaded(entry) for entry in (*conf.setting("HEALTH_CHECKS"), *also)]


def loaded(entry: Any) -> Check:
    """Return the check that an entry names: it itself, what its dotted path leads to, an instance of a class.

    Raises ImportError for a path that leads nowhere and TypeError for what cannot be called.
    """
    found = import_string(entry) if isinstance(entry, str) else entry
    if isinstance(found, type):
        found = found()
    if not callable(found):
        raise TypeError(f"{found!r} is no health check: it cannot be called.")
    check: Callable[[Surroundings], Any] = found
    return check


def name_of(check: Check) -> str:
    """Return what people read where a check stops something."""
    if isinstance(check, ServerCheck):
        return str(check)
    name = getattr(check, "__qualname__", None) or type(check).__qualname__
    return str(name)


def refusals(
    where: Surroundings, checks: Iterable[Check], *, ask: bool = True
) -> Iterator[Refusal]:
    """Yield why the database cannot answer one of *checks*; with *ask* its server is asked, too.

    Checks of the user's own may bring ``refusals(where, ask=…)``, as ours do. Errors of the database pass.
    """
    for check in checks:
        find = getattr(check, "refusals", None)
        if callable(find):
            yield from find(where, ask=ask)


def refused(model: type[Model], using: str, also: Iterable[Any] = ()) -> list[str]:
    """Return a sentence for each check that would be worthless for *model* on the database *using*.

    A worker that finds one does not start. Errors of the database pass: one that is away refuses nothing. So do those
    of ``loaded``.
    """
    where = Surroundings(model, using)
    return [f"{found.message} {found.hint}" for found in refusals(where, health_checks(also))]
