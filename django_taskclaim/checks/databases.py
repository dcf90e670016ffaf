"""The databases that hold claimable models."""

from collections.abc import Iterable, Iterator

from django.core.checks import CheckMessage
from django.db import NotSupportedError, connections, models, router

from django_taskclaim import conf
from django_taskclaim.checks.messages import message
from django_taskclaim.columns import is_claimable
from django_taskclaim.db import dialect_for, is_supported
from django_taskclaim.models import Switch
from django_taskclaim.monitoring.server import Fault, server_for
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.switch import claimable_models, holds


def check_aliases() -> Iterator[CheckMessage]:
    """E006 where a router names a database that is none."""
    for alias, model in _written_to().items():
        if alias not in connections:
            text = f"A router writes {model._meta.label} to the database {alias!r}, and DATABASES has no such alias."
            hint = f"Let db_for_write() return one of {', '.join(connections)}, or None."
            yield message("E006", text, hint, model)


def check_databases() -> Iterator[CheckMessage]:
    """E006 to E008, E012, E016, W001 and W002, which the settings alone show; no connection is opened."""
    for alias, model in first_models().items():
        if not router.allow_migrate_model(alias, Switch):
            text = (
                f"A router keeps the tables of taskclaim away from the database {alias!r}, which holds"
                f" {model._meta.label}: every claim there reads the switch in its own statement."
            )
            hint = f"Let allow_migrate({alias!r}, 'taskclaim') return True, and migrate --database {alias}."
            yield message("E006", text, hint)
    for alias in _written_to():
        for fault in _configured_faults(alias):
            yield message(fault.id, fault.message, fault.hint)


def _configured_faults(alias: str) -> Iterator[Fault]:
    connection, strategy = connections[alias], conf.setting("CLAIM_STRATEGY")
    try:
        known = dialect_for(connection).strategies
    except NotSupportedError as error:
        hint = "Let a router keep the models with claim columns on one of these databases."
        yield Fault("E016", f"The database {alias!r} cannot claim. {error}", hint)
        return
    yield from autocommit_faults(alias)
    yield from server_for(connection).configured_faults()
    if strategy not in known:
        text = f"TASKCLAIM['CLAIM_STRATEGY'] is {strategy!r}; the database {alias!r} has {', '.join(known)}."
        yield Fault("E008", text, 'TASKCLAIM = {"CLAIM_STRATEGY": "auto"}')


def autocommit_faults(alias: str) -> Iterator[Fault]:
    """Yield that Django commits nothing by itself on this database, if that is so."""
    if not connections[alias].settings_dict["AUTOCOMMIT"]:
        text = f"The database {alias!r} has AUTOCOMMIT False: what a worker or a command writes is never committed."
        hint = "Leave AUTOCOMMIT out of DATABASES; put transaction.atomic() around what belongs together."
        yield Fault("E012", text, hint)


def check_servers(databases: Iterable[str]) -> Iterator[CheckMessage]:
    """E101 and the following, asked of each server about itself and the tables of claimable models there."""
    for alias in databases:
        if not is_supported(connections[alias]):
            continue
        there = (ClaimTarget.of(one, alias).table for one in _sound_models() if holds(alias, one))
        if tables := {table.name: table for table in there}:
            for fault in server_for(connections[alias]).server_faults(list(tables.values())):
                yield message(fault.id, fault.message, fault.hint)


def _sound_models() -> list[type[models.Model]]:
    return [model for model in claimable_models() if is_claimable(model)]


def _written_to() -> dict[str, type[models.Model]]:
    """Return the databases on which rows are claimed, each with one of the models."""
    return {router.db_for_write(model): model for model in reversed(_sound_models())}


def first_models() -> dict[str, type[models.Model]]:
    """Return the databases that hold claimable models, each with one of them."""
    found = reversed(_sound_models())
    return {alias: model for model in found for alias in connections if holds(alias, model)}
