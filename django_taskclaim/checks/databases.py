"""The databases that hold claimable models, and the health checks that they are to answer."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.core.checks import CheckMessage
from django.db import NotSupportedError, connections, models, router
from django.utils.connection import ConnectionDoesNotExist

from django_taskclaim import conf
from django_taskclaim.checks.messages import from_fault, message
from django_taskclaim.columns import is_claimable
from django_taskclaim.db import dialect_for, is_supported
from django_taskclaim.handlers import handler_for
from django_taskclaim.models import Switch
from django_taskclaim.monitoring.server import Fault, server_for
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.switch import claimable_models, holds
from django_taskclaim.throttling.health import loaded, refusal


def check_aliases() -> list[CheckMessage]:
    """E006 where a router names a database that is none."""
    return [
        message(
            "E006",
            f"A router writes {model._meta.label} to the database {alias!r}, and DATABASES has no such alias.",
            f"Let db_for_write() return one of {', '.join(connections)}, or None.",
            model,
        )
        for alias, model in _written_to().items()
        if alias not in connections
    ]


def check_databases() -> Iterator[CheckMessage]:
    """E006 to E008, E012, E016, W001 and W002, which the settings alone show; no connection is opened."""
    for alias, model in first_models().items():
        if not router.allow_migrate_model(alias, Switch):
            yield message(
                "E006",
                f"A router keeps the tables of taskclaim away from the database {alias!r}, which holds"
                f" {model._meta.label}: every claim there reads the switch in its own statement.",
                f"Let allow_migrate({alias!r}, 'taskclaim') return True, and run: manage.py migrate taskclaim"
                f" --database {alias}",
            )
    for alias in _written_to():
        yield from map(from_fault, configured_faults(alias))


def configured_faults(alias: str) -> Iterator[Fault]:
    """Yield what the settings of a database break."""
    try:
        dialect = dialect_for(connections[alias])
    except NotSupportedError as error:
        hint = "Let a router keep the models with claim columns on one of these databases."
        yield Fault("E016", f"The database {alias!r} cannot claim. {error}", hint)
        return
    yield from autocommit_faults(alias)
    yield from server_for(connections[alias]).configured_faults()
    strategy = conf.setting("CLAIM_STRATEGY")
    if strategy not in dialect.strategies:
        yield Fault(
            "E008",
            f"TASKCLAIM['CLAIM_STRATEGY'] is {strategy!r}, which {connections[alias].display_name} (database {alias!r})"
            f" does not have; it has {', '.join(dialect.strategies)}.",
            'TASKCLAIM = {"CLAIM_STRATEGY": "auto"}',
        )


def autocommit_faults(alias: str) -> Iterator[Fault]:
    """Yield that Django commits nothing by itself on this database, if that is so."""
    if not connections[alias].settings_dict["AUTOCOMMIT"]:
        yield Fault(
            "E012",
            f"The database {alias!r} has AUTOCOMMIT False: what a worker or a command writes there is never committed.",
            "Leave AUTOCOMMIT out of DATABASES; put transaction.atomic() around what belongs together.",
        )


def check_servers(databases: Iterable[str]) -> Iterator[CheckMessage]:
    """E101 and the following, asked of each server."""
    for alias in databases:
        there = [model for model in _sound_models() if holds(alias, model)]
        yield from map(from_fault, server_faults(alias, there))


def server_faults(alias: str, of: Iterable[type[models.Model]]) -> Iterator[Fault]:
    """Yield what the server of a database, or a table there, breaks; nothing where no claim is known for it."""
    tables = {}
    if is_supported(connections[alias]):
        targets = (ClaimTarget.of(model, alias) for model in of)
        tables = {target.table.name: target.table for target in targets}
    if tables:
        yield from server_for(connections[alias]).server_faults(list(tables.values()))


def _sound_models() -> list[type[models.Model]]:
    return [model for model in claimable_models() if is_claimable(model)]


def _written_to() -> dict[str, type[models.Model]]:
    """Return the databases on which rows are claimed, each with one of the models."""
    return {router.db_for_write(model): model for model in reversed(_sound_models())}


def first_models() -> dict[str, type[models.Model]]:
    """Return the databases that hold claimable models, each with one of them."""
    return {
        alias: model
        for alias in connections
        for model in reversed(_sound_models())
        if holds(alias, model)
    }


# Health checks


def check_health(databases: Sequence[str] | None = None) -> list[CheckMessage]:
    """E031 and E032, which ask no database; of *databases* E131, which asks their servers."""
    asks, found = databases is not None, {}
    for entry, alias in _health_checks():
        if databases is not None and alias not in databases:
            continue
        try:
            refused = refusal(loaded(entry), alias, ask=asks)
        except (ImportError, TypeError, ConnectionDoesNotExist) as error:
            text = f"The entry {entry!r} among the health checks is none: {error}"
            hint = 'TASKCLAIM = {"HEALTH_CHECKS": [ReplicaLag(at_most=10)]}  # from django_taskclaim.throttling'
            if not asks:
                found[text] = message("E031", text, hint)
            continue
        if refused is not None:
            found[refused.message] = message("E131" if asks else "E032", *refused)
    return list(found.values())


def _health_checks() -> Iterator[tuple[Any, str]]:
    """Yield the health checks that workers ask, each with the database that it is asked on."""
    for model in _sound_models():
        if (found := handler_for(model)) is not None:
            for entry in (*conf.setting("HEALTH_CHECKS"), *found.health_checks):
                yield entry, router.db_for_write(model)
