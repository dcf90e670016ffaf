"""The databases that hold claimable models."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from django.core.checks import CheckMessage
from django.db import NotSupportedError, connections, models, router

from django_taskclaim import conf
from django_taskclaim.checks.messages import from_fault, message
from django_taskclaim.columns import is_claimable
from django_taskclaim.db import dialect_for, is_supported
from django_taskclaim.models import Switch
from django_taskclaim.monitoring.server import Fault, server_for
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.switch import claimable_models, holds


def check_routers(**kwargs: Any) -> list[CheckMessage]:
    """E006 where our tables may not go, or a router names a database that is none."""
    unknown = {
        alias: model
        for model in _sound_models()
        if (alias := router.db_for_write(model)) not in connections
    }
    return [
        *(
            message(
                "E006",
                f"A router writes {model._meta.label} to the database {alias!r}, and DATABASES has no such alias.",
                f"Let db_for_write() return one of {', '.join(connections)}, or None.",
                model,
            )
            for alias, model in unknown.items()
        ),
        *(
            message(
                "E006",
                f"A router keeps the tables of taskclaim away from the database {alias!r}, which holds"
                f" {model._meta.label}: every claim there reads the switch in its own statement.",
                f"Let allow_migrate({alias!r}, 'taskclaim') return True, and run: manage.py migrate taskclaim"
                f" --database {alias}",
            )
            for alias, model in first_models().items()
            if not router.allow_migrate_model(alias, Switch)
        ),
    ]


def check_configuration(**kwargs: Any) -> list[CheckMessage]:
    """E007, E008, W001 and W002, which the settings alone show."""
    aliases = dict.fromkeys(router.db_for_write(model) for model in _sound_models())
    return [
        from_fault(fault)
        for alias in aliases
        if alias in connections
        for fault in configured_faults(alias)
    ]


def check_servers(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E101 and the following, asked of each server."""
    holding = first_models()
    return [
        from_fault(fault)
        for alias in databases or ()
        if alias in holding
        for fault in server_faults(
            alias, [model for model in _sound_models() if holds(alias, model)]
        )
    ]


def faults_of(alias: str, of: Iterable[type[models.Model]]) -> Iterator[Fault]:
    """Yield what the settings and the server of one database break for these models."""
    yield from configured_faults(alias)
    yield from server_faults(alias, of)


def configured_faults(alias: str) -> Iterator[Fault]:
    """Yield what the settings of a database break; no connection is opened."""
    try:
        dialect = dialect_for(connections[alias])
    except NotSupportedError as error:
        hint = "Let a router keep the models with claim columns on one of these databases."
        yield Fault("E016", f"The database {alias!r} cannot claim. {error}", hint)
        return
    yield from autocommit_faults(alias)
    yield from server_for(connections[alias]).configured_faults()
    strategy = conf.setting("CLAIM_STRATEGY")
    if strategy in conf.CLAIM_STRATEGIES and strategy not in dialect.strategies:
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


def server_faults(alias: str, of: Iterable[type[models.Model]]) -> Iterator[Fault]:
    """Yield what the server of a database, or a table there, breaks; nothing where no claim is known for it."""
    if not is_supported(connections[alias]):
        return
    tables = {
        target.table.name: target.table for target in (ClaimTarget.of(model, alias) for model in of)
    }
    yield from server_for(connections[alias]).server_faults(list(tables.values()))


def _sound_models() -> list[type[models.Model]]:
    return [model for model in claimable_models() if is_claimable(model)]


def first_models() -> dict[str, type[models.Model]]:
    """Return the databases that hold claimable models, each with one of them."""
    return {
        alias: model
        for alias in connections
        for model in reversed(_sound_models())
        if holds(alias, model)
    }
