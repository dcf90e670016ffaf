"""Limits of the whole fleet, as they hold now: what handlers say, and what a person has set instead, while all runs.

What is set is stored on the database of the rows and followed by every claim that starts after it, on any host. A
process in which no handler of the model names such a limit learns of the first one within some seconds, and claims
nothing of the model until then.
"""

from dataclasses import dataclass
from typing import Any

from django.db import connections, models, router, transaction
from django.utils.translation import gettext as _

from django_taskclaim import conf
from django_taskclaim.allowances import Hours, Rate
from django_taskclaim.columns import claim_columns
from django_taskclaim.db import DatabaseNow, dialect_for
from django_taskclaim.models import FleetLimit, Switch
from django_taskclaim.querysets.limits.grant import settled
from django_taskclaim.querysets.limits.stored import ModelLimits, know_stored, limits_held
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.switch import NotEverywhere, on_each, places_of
from django_taskclaim.switch_reading import limits_scope, scope_of

#: What can be set, in the order in which people are told of it.
OPTIONS = ("rate", "max_running", "hours")

#: How "no limit" is stored, whatever the handler says.
_NONE: dict[str, Any] = {"rate": "", "max_running": 0, "hours": ""}


class LimitsError(NotEverywhere):
    """The limits were not set on every database."""

    def _told(self) -> str:
        return _("The limits were set on %(done)s, but not on %(failed)s")


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """What holds for the claims of a model, over all who claim; None is no limit."""

    rate: str | None = None
    max_running: int | None = None
    hours: str | None = None
    #: Who has set one of them last; empty where all are the handler's.
    set_by: str = ""
    is_set: bool = False

    def __bool__(self) -> bool:
        return any(getattr(self, name) is not None for name in OPTIONS)

    @classmethod
    def of(cls, terms: ModelLimits) -> "FleetLimits":
        """Return what *terms* mean, as it is written."""
        rate, hours = terms.rate, terms.hours
        return cls(
            None if rate is None else rate.text,
            terms.max_running,
            None if hours is None else str(hours),
            terms.set_by,
            terms.is_stored,
        )


def limits_of(model: type[models.Model], *, using: str | None = None) -> list[FleetLimits]:
    """Return what claims of *model* keep to now: its own limits, and those of the models it inherits its claims from.

    Empty where there are none; asks the database.
    """
    target = ClaimTarget.of(model, using or router.db_for_write(model))
    return [FleetLimits.of(terms) for terms in limits_held(target)[0]]


def told(limits: FleetLimits) -> str:
    """Return limits in words, for commands and logs."""
    parts = [
        *([] if limits.rate is None else [f"rate {limits.rate}"]),
        *([] if limits.max_running is None else [f"{limits.max_running} running at once"]),
        *([] if limits.hours is None else [f"hours {limits.hours}"]),
    ]
    by = f" (set by {limits.set_by})" if limits.is_set and limits.set_by else ""
    return ", ".join(parts) + by


def set_limits(
    model: type[models.Model], *, by: str = "", using: str | None = None, **limits: Any
) -> list[str]:
    """Set ``rate``, ``max_running`` or ``hours`` of *model*, committed on return; what is not named stays as it is.

    None gives one back to the handler, an empty text or 0 is no limit whatever the handler says. ``using=None`` means
    every database that holds the model; they are returned. ValueError in one sentence for a value that makes no sense,
    TypeError for a name that is none, ``LimitsError`` if a database could not be reached.
    """
    claim_columns(model)
    unknown = sorted(set(limits).difference(OPTIONS))
    if unknown:
        raise TypeError(f"There is no limit {', '.join(unknown)}; there are {', '.join(OPTIONS)}.")
    values = {name: as_stored(name, value) for name, value in limits.items()}
    aliases = places_of(using, [model])
    # Each opens a transaction of its own, which must see what others commit.
    on_each(
        aliases, lambda alias: _store(model, alias, values, by[:200]), LimitsError, atomic=False
    )
    return aliases


def stored_limits(model: type[models.Model], *, using: str) -> dict[str, Any]:
    """Return what a person has set, by option; None follows the handler, an empty text or 0 is no limit."""
    row = FleetLimit.objects.using(using).filter(scope=scope_of(model)).first() or FleetLimit()
    return {name: getattr(row, name) for name in OPTIONS}


def as_stored(name: str, value: Any) -> Any:
    """Return how a value of the option *name* is stored; ValueError in one sentence for one that makes no sense."""
    if value is None:
        return None
    if value == _NONE[name] and not isinstance(value, bool):
        return _NONE[name]
    if name == "max_running":
        conf.whole_number().check(value, "max_running")
        return value
    return (Rate if name == "rate" else Hours).parse(value).text


def _store(model: type[models.Model], alias: str, values: dict[str, Any], by: str) -> None:
    scope = scope_of(model)
    with dialect_for(connections[alias]).own_transaction():
        limits, marks = FleetLimit.objects.using(alias), Switch.objects.using(alias)
        facts = {**values, "set_at": DatabaseNow(), "set_by": by}
        limits.bulk_create([FleetLimit(scope=scope)], ignore_conflicts=True)
        if "rate" in values:
            # Locked: a claim that is under way has counted its rows before another rate holds.
            before = limits.select_for_update().annotate(now=DatabaseNow()).get(scope=scope)
            facts |= settled(model, before)
        limits.filter(scope=scope).update(**facts)
        row = limits.get(scope=scope)
        there = any(getattr(row, name) is not None for name in OPTIONS)
        if there:
            told = {"paused_at": DatabaseNow(), "reason": "limits are stored", "by": by}
            marks.update_or_create(scope=limits_scope(scope), defaults=told)
            # From here on, for the mark stops whoever does not know: if this is rolled back, a look tells.
            know_stored(alias, scope, there=True)
        else:
            marks.filter(scope=limits_scope(scope)).delete()
        transaction.on_commit(lambda: know_stored(alias, scope, there=there), using=alias)
