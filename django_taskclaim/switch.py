"""The stored pause flag that a person turns: outside every worker, seen by all of them, on every host.

A pause is read inside the claim statement itself. Once ``pause`` has returned, no claim statement that starts claims
a row of the model; rows that run finish. It outlives every restart.
"""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.apps import apps
from django.db import Error, connections, models, router
from django.utils.translation import gettext as _

from django_taskclaim import conf
from django_taskclaim.columns import claim_columns, has_claim_columns
from django_taskclaim.contention import retry_on_contention
from django_taskclaim.db import DatabaseLater, DatabaseNow
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.fields import as_utc
from django_taskclaim.models import Switch
from django_taskclaim.querysets.limits.stored import know_stored
from django_taskclaim.switch_reading import (
    EVERY_MODEL,
    limits_scope,
    own_scopes,
    scope_of,
    scopes_over,
    throttle_scope,
)

Until = datetime | timedelta | float | None


class NotEverywhere(TaskClaimError):
    """Some databases could not be reached; ``errors`` holds what each alias said, ``done`` the others."""

    def __init__(self, errors: dict[str, Exception], done: list[str]) -> None:
        self.errors, self.done = errors, done
        super().__init__(errors, done)

    def __str__(self) -> str:
        failed = "; ".join(f"{alias}: {error}" for alias, error in self.errors.items())
        done = ", ".join(self.done) or _("no database")
        return self._told() % {"done": done, "failed": failed}

    def _told(self) -> str:
        raise NotImplementedError


class SwitchError(NotEverywhere):
    """The switch was not turned on every database."""

    def _told(self) -> str:
        return _("The switch was turned on %(done)s, but not on %(failed)s")


def pause(
    model: type[models.Model],
    *,
    reason: str = "",
    by: str = "",
    until: Until = None,
    using: str | None = None,
) -> None:
    """Stop every claim of *model*, committed on return; through a child model, only the child's claims.

    *until* ends the pause by itself: a datetime, or seconds or a timedelta from now. ``using=None`` means every
    database that holds the model. Inside a caller's transaction the pause holds once that commits. Raises TypeError
    for a model that is not claimable and ``SwitchError`` if a database could not be reached.
    """
    claim_columns(model)
    _turn(scope_of(model), places_of(using, [model]), _paused(reason, by, until))


def resume(model: type[models.Model], *, using: str | None = None) -> None:
    """Let claims of *model* flow again; a pause of everything, or of its parent, stays."""
    claim_columns(model)
    _turn(scope_of(model), places_of(using, [model]), None)


def pause_all(
    *, reason: str = "", by: str = "", until: Until = None, using: str | None = None
) -> None:
    """Stop the claims of every model on every database that holds one (or on *using* alone)."""
    _turn(EVERY_MODEL, places_of(using, claimable_models()), _paused(reason, by, until))


def resume_all(*, using: str | None = None) -> None:
    """Turn the switch of all models on again; models that were paused by name stay paused."""
    _turn(EVERY_MODEL, places_of(using, claimable_models()), None)


def paused_by(model: type[models.Model], *, using: str | None = None) -> Switch | None:
    """Return the pause that stops claims of *model* now, the widest first; None while the switch is on."""
    alias = using or router.db_for_write(model)
    scopes = scopes_over(model)
    in_force = models.Q(until=None) | models.Q(until__gt=DatabaseNow())
    rows = Switch.objects.using(alias).filter(in_force, scope__in=scopes, paused_at__isnull=False)
    return min(rows, key=lambda switch: scopes.index(switch.scope), default=None)


def paused_model(pause: Switch) -> str | None:
    """Return the label of the model that was paused, as people write it; None for all models."""
    if pause.scope == EVERY_MODEL:
        return None
    try:
        return str(apps.get_model(pause.scope)._meta.label)
    except LookupError:
        return pause.scope


class Stops(NamedTuple):
    """What stops claims of one model at the moment *now* of the database's clock."""

    now: datetime | None = None
    #: The widest pause.
    pause: Switch | None = None
    #: The stop that ends by itself and holds for everyone.
    throttle: Switch | None = None


def stops_of(model: type[models.Model], *, using: str) -> Stops:
    """Return what is stored that stops claims of *model* now, in one question; who asks learns of its limits, too."""
    over, own = scopes_over(model), own_scopes(model)
    throttled = [throttle_scope(scope) for scope in own]
    marked = {limits_scope(scope): scope for scope in own}
    in_force = models.Q(until=None) | models.Q(until__gt=DatabaseNow())
    asked = Switch.objects.using(using).filter(in_force, scope__in=[*over, *throttled, *marked])
    found = {
        row.scope: row for row in asked.filter(paused_at__isnull=False).annotate(now=DatabaseNow())
    }
    for mark, scope in marked.items():
        know_stored(using, scope, there=mark in found)
    return Stops(
        next((as_utc(row.now) for row in found.values()), None),
        next((found[scope] for scope in over if scope in found), None),
        max(
            (found[scope] for scope in throttled if scope in found),
            key=lambda row: as_utc(row.until),
            default=None,
        ),
    )


def claimable_models() -> list[type[models.Model]]:
    """Return every installed model that carries the claim columns, proxies left out."""
    return [
        model for model in apps.get_models() if has_claim_columns(model) and not model._meta.proxy
    ]


def _paused(reason: str, by: str, until: Until) -> dict[str, Any]:
    end: Any = until
    if until is not None and not isinstance(until, datetime):
        end = DatabaseLater(conf.positive_duration(until, "until"))
    return {"paused_at": DatabaseNow(), "until": end, "reason": reason[:500], "by": by[:200]}


def places_of(using: str | None, of: Iterable[type[models.Model]]) -> list[str]:
    """Return the databases on which the switch of these models is turned: *using*, or every one that holds one."""
    if using is not None:
        return [connections[using].alias]
    return [alias for alias in connections if any(holds(alias, model) for model in of)]


def holds(alias: str, model: type[models.Model]) -> bool:
    """Say whether rows of *model* live on the database *alias*, whoever made its table there."""
    if connections[alias].settings_dict["TEST"].get("MIRROR"):
        return False
    return router.allow_migrate_model(alias, model) or router.db_for_write(model) == alias


def _turn(scope: str, aliases: list[str], values: dict[str, Any] | None) -> None:
    on_each(aliases, lambda alias: _store(scope, alias, values), SwitchError)


def on_each(
    aliases: list[str],
    write: Callable[[str], None],
    error_class: type[NotEverywhere],
    *,
    atomic: bool = True,
) -> None:
    """Call *write* for each database, retrying contention; one that fails keeps no other from being written.

    With ``atomic=False`` it opens its own transaction. Raises *error_class* if there are any that failed.
    """
    errors: dict[str, Exception] = {}
    for alias in aliases:
        retry = retry_on_contention(using=alias, atomic=atomic)
        try:
            retry.call(write, alias)
        except (Error, TaskClaimError) as error:
            errors[alias] = error
    if errors:
        raise error_class(errors, [alias for alias in aliases if alias not in errors])


def _store(scope: str, alias: str, values: dict[str, Any] | None) -> None:
    rows = Switch.objects.using(alias)
    if values is None:
        rows.filter(scope=scope).delete()
    else:
        rows.update_or_create(scope=scope, defaults=values)
