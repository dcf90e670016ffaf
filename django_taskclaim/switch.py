"""What a person stores for a model, outside every worker and seen by all of them, on every host: pauses and overrides.

A pause is read inside the claim statement itself. Once ``pause`` has returned, no claim statement that starts claims
a row of the model; rows that run finish. It outlives every restart. An override replaces an option of the handler.
Each write names its columns, so a change of an override cannot end a pause.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.db import Error, connections, models, router
from django.utils.translation import gettext as _

from django_taskclaim import conf
from django_taskclaim.columns import claim_columns, is_claimable
from django_taskclaim.conf import Kind
from django_taskclaim.contention import retry_on_contention
from django_taskclaim.db import DatabaseLater, DatabaseNow
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import first_line, format_moment, plain
from django_taskclaim.limits import stops_of
from django_taskclaim.policy import LONGEST_LEASE, SHORTEST_LEASE
from django_taskclaim.tables import EVERY_MODEL, OVERRIDES, Switch, scope_of

Until = datetime | timedelta | float | None

#: How "no limit" is stored, also against a limit of the handler's.
_NO_LIMIT: dict[str, str | int] = {"rate": "", "max_running": 0, "hours": ""}


def _read_lease(value: object) -> timedelta:
    lease = conf.DURATION.read(value)
    if not SHORTEST_LEASE <= lease <= LONGEST_LEASE:
        raise ValueError
    return lease


_OVERRIDES: Mapping[str, Kind[Any]] = {
    "batch_size": conf.BATCH_SIZE,
    "lease": Kind("from 2 seconds to 1 day", _read_lease),
    "rate": conf.RATE,
    "max_running": conf.whole_number(most=2**31 - 1),
    "hours": conf.HOURS,
}


class SwitchError(TaskClaimError):
    """The switch was not written on every database: ``errors`` by alias, and ``done``, the aliases where it was."""

    def __init__(self, errors: dict[str, Exception], done: list[str]) -> None:
        self.errors, self.done = errors, done
        super().__init__(errors, done)

    def __str__(self) -> str:
        failed = "; ".join(f"{alias}: {first_line(error)}" for alias, error in self.errors.items())
        done = f"was set on {', '.join(self.done)}, but not" if self.done else "was not set"
        return f"The switch {done} on {failed}"


def pause(
    model: type[models.Model] | None,
    *,
    reason: str = "",
    by: str = "",
    until: Until = None,
    using: str | None = None,
) -> None:
    """Stop every claim of *model*, committed on return; through a child model, only the child's claims.

    None is all models. *until* ends the pause by itself: a datetime, or seconds or a timedelta from now. ``using=None``
    means every database that holds the model. Inside a caller's transaction the pause holds once that commits. Raises
    TypeError for a model that is not claimable and ``SwitchError`` if a database could not be reached.
    """
    end: object = until
    if until is not None and not isinstance(until, datetime):
        end = DatabaseLater(conf.DURATION.check(until, "until"))
    columns = {"paused_at": DatabaseNow(), "until": end, "reason": reason[:500], "by": by[:200]}
    _write(model, using, columns)


def resume(model: type[models.Model] | None, *, using: str | None = None) -> None:
    """Let claims of *model* flow again; a pause of everything, or of its parent, stays."""
    _write(model, using, {"paused_at": None, "until": None, "reason": "", "by": ""})


def pause_all(
    *, reason: str = "", by: str = "", until: Until = None, using: str | None = None
) -> None:
    """Stop the claims of every model on every database that holds one (or on *using* alone)."""
    pause(None, reason=reason, by=by, until=until, using=using)


def resume_all(*, using: str | None = None) -> None:
    """Turn the switch of all models on again; models that were paused by name stay paused."""
    resume(None, using=using)


def set_overrides(
    model: type[models.Model], *, by: str = "", using: str | None = None, **overrides: object
) -> None:
    """Set what replaces options of the handler of *model*, committed on return; what is not named stays as it is.

    ``batch_size`` and ``lease`` are for workers, ``rate``, ``max_running`` and ``hours`` for all who claim. None gives
    one back to the handler; for a limit an empty text or 0 is no limit, even if the handler names one. ``using=None``
    means every database that holds the model. ValueError in one sentence for a value that makes no
    sense, TypeError for a name that is none, ``SwitchError`` if a database could not be reached.
    """
    if unknown := sorted(set(overrides).difference(OVERRIDES)):
        text = f"There is no override {', '.join(unknown)}"
        raise TypeError(f"{text}; there are {', '.join(OVERRIDES)}.")
    values = {name: as_stored(name, value) for name, value in overrides.items()}
    _write(model, using, {**values, "set_at": DatabaseNow(), "set_by": by[:200]})


def as_stored(name: str, value: object) -> Any:
    """Return how a value of the override *name* is stored; ValueError in one sentence for one that makes no sense."""
    is_no_limit = value == _NO_LIMIT.get(name) and not isinstance(value, bool)
    return value if value is None or is_no_limit else _OVERRIDES[name].check(value, name)


def override_from_text(name: str, text: str) -> object:
    """Return the value that a person means: "none" is no limit, "default" or nothing follows the handler."""
    if text in ("", "default"):
        return None
    if text == "none" and name in _NO_LIMIT:
        return _NO_LIMIT[name]
    is_number = name in ("batch_size", "max_running") and text.isdecimal()
    return as_stored(name, int(text) if is_number else text)


def override_as_text(value: object) -> str:
    """Return what ``override_from_text`` reads *value* from."""
    if value is None:
        return "default"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    return str(value or "none")


def overrides_of(model: type[models.Model], *, using: str) -> dict[str, object]:
    """Return the overrides that are stored for *model*, by name; an empty text or 0 is no limit."""
    return stops_of(model, using=using).own.overrides


def paused_by(model: type[models.Model], *, using: str | None = None) -> Switch | None:
    """Return the pause that stops claims of *model* now, the widest first; None while the switch is on."""
    return next(iter(stops_of(model, using=using).pauses), None)


def paused_model(pause: Switch) -> str | None:
    """Return the label of the model that was paused, as people write it; None for all models."""
    return None if pause.is_for_all else str(apps.get_model(pause.scope)._meta.label)


def describe_pause(pause: Switch) -> str:
    """Say in one plain line what is paused, by whom, since when and until when, and why."""
    label = paused_model(pause)
    text = _("%(model)s is paused by %(who)s") if label else _("All models are paused by %(who)s")
    text %= {"model": label, "who": pause.by or _("somebody")}
    if pause.paused_at:
        text += " " + _("since %(time)s") % {"time": format_moment(pause.paused_at)}
    if pause.until:
        text += ", " + _("until %(time)s") % {"time": format_moment(pause.until)}
    return plain(f"{text}: {pause.reason}" if pause.reason else text)


def claimable_models() -> list[type[models.Model]]:
    """Return every installed model whose rows can be claimed, proxies left out."""
    return [model for model in apps.get_models() if is_claimable(model) and not model._meta.proxy]


def places_of(using: str | None, of: Iterable[type[models.Model]]) -> list[str]:
    """Return the databases on which the switch of these models is turned: *using*, or every one that holds one."""
    if using is not None:
        return [connections[using].alias]
    return [alias for alias in connections if any(holds(alias, model) for model in of)]


def holds(alias: str, model: type[models.Model]) -> bool:
    """Say whether rows of *model* live on the database *alias*; its table may have been made by others."""
    if connections[alias].settings_dict["TEST"].get("MIRROR"):
        return False
    return router.allow_migrate_model(alias, model) or router.db_for_write(model) == alias


def _write(
    model: type[models.Model] | None, using: str | None, columns: Mapping[str, object]
) -> None:
    """Write these columns of the switch, and no others, on each database; one that fails keeps no other from it."""
    if model is not None:
        claim_columns(model)
    scope = EVERY_MODEL if model is None else scope_of(model)
    aliases = places_of(using, claimable_models() if model is None else [model])

    def write(alias: str) -> None:
        Switch.row(scope, alias).update(**columns)

    errors: dict[str, Exception] = {}
    for alias in aliases:
        try:
            retry_on_contention(using=alias).call(write, alias)
        except (Error, TaskClaimError) as error:
            errors[alias] = error
    if errors:
        raise SwitchError(errors, [alias for alias in aliases if alias not in errors])
