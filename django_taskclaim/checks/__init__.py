"""System checks: what is wrong with a project before its workers find out. Each has a hint that can be pasted.

========= ====================================================================================================
id        what it says
========= ====================================================================================================
E001      an entry of ``TASKCLAIM`` is unknown or has a value that makes no sense
E002      the default manager of a claimable model returns rows without the verbs
E004      a field or attribute of the user's replaces ``row.claim``
E005      a model lacks claim columns, has its own in their place or has them on several tables, or ``claim_fields``
          names what does not exist
E006      a router keeps the tables of this package away from a database that holds a claimable model
E007      ``client_flag`` in OPTIONS takes away FOUND_ROWS (MySQL, MariaDB)
E008      the database has no claim of the kind that ``TASKCLAIM["CLAIM_STRATEGY"]`` asks for
E012      a database that holds a claimable model has ``AUTOCOMMIT`` False
E013      the hook ``TASKCLAIM["REDACT"]`` cannot be imported or called, or returns no text
E016      a database that holds a claimable model is of a kind that nothing is claimed on, or SQLite before 3.35
E031      a health check of a handler, or of ``TASKCLAIM["HEALTH_CHECKS"]``, leads to nothing, or to what is no check
E041      ``TASKCLAIM["HISTORY"]`` names what is no claimable model, or the app that keeps histories is not installed
E051      the archive of a handler is no installed model on a table of its own
E052      rows are to be open again on a model without ``RetryMixin``
E061      a companion (``SourceMixin``) has no link ``source``
E062      the link of a companion is not unique
E064      ``update_fields`` of a companion's handler names a column that both tables have, or one on another database
E071      a model of ranges names no source
E074      nothing tells when a growing source has all rows of a range, or ``plan_ahead`` is no number of rows
W001      SQLite transactions do not begin IMMEDIATE
W003      a lease is so short that renewals cannot keep up
W009      an atomic handler may hold up all other writers for longer than a quarter of its lease
W051      an archive lacks columns of the model, which will be lost
E101–E104 asked of the server, with ``--database`` only: it is too old for the claims (E101), a table has no
          transactions (E102), holders are not compared exactly (E103), the default isolation makes claims fail
          each other (E104)
W102      a Galera cluster (MariaDB)
========= ====================================================================================================

The ids are written ``taskclaim.E001``. Those from E101 on touch the database, so Django runs them for
``manage.py check --database default`` and ``migrate`` only; ``claimdoctor`` runs them always.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, product

from django.apps import apps
from django.core.checks import CheckMessage, Tags, register
from django.db import NotSupportedError, connections, router

from django_taskclaim import conf, error_text
from django_taskclaim.checks.models import column_problems, problems_of
from django_taskclaim.columns import has_claim_columns
from django_taskclaim.db import dialect_for, is_supported
from django_taskclaim.findings import TAG, message
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.switch import claimable_models, holds, places_of

__all__ = ["TAG", "check_project", "check_servers"]


@register(TAG)
def check_project(**kwargs: object) -> list[CheckMessage]:
    """What the project's code and settings show; no database is asked."""
    # Proxies are included: they may have managers of their own.
    claimable = [model for model in apps.get_models() if has_claim_columns(model)]
    if wrong := check_settings():
        # The others read the settings.
        return [*wrong, *chain.from_iterable(map(column_problems, claimable))]
    found = chain.from_iterable(map(problems_of, claimable))
    return [*found, *check_hooks(), *check_databases()]


# Not under our own tag as well: Django 6.1 asks every server when a tag is named.
@register(Tags.database)
def check_servers(databases: Sequence[str] | None = None, **kwargs: object) -> list[CheckMessage]:
    """What each server answers about itself and the tables of claimable models there: the ids from E101 on."""
    found: list[CheckMessage] = []
    if check_settings():
        return found
    for alias in databases or ():
        if not is_supported(connections[alias]):
            continue
        here = [one for one in claimable_models() if holds(alias, one)]
        # A child's rows are claimed on its parent's table.
        tables = {(table := ClaimTarget.of(one, alias).table).name: table for one in here}
        if tables:
            found += server_for(connections[alias]).server_faults(list(tables.values()))
    return found


# What the settings and the databases show


#: The labels of the apps of this package with tables; the second one keeps acts and the histories of rows.
OUR_APPS = ("taskclaim", "taskclaim_control")


def check_settings() -> list[CheckMessage]:
    """E001 for each wrong entry."""
    return [message("E001", text, hint) for text, hint in conf.problems()]


def check_hooks() -> Iterator[CheckMessage]:
    """E013 and E041: what right entries name must be there."""
    if fault := error_text.redaction_fault():
        hint = 'TASKCLAIM = {"REDACT": "project.privacy.redact"}  # def redact(text: str) -> str'
        text = f"TASKCLAIM['REDACT'] is {conf.setting('REDACT')!r}, and {fault}."
        yield message("E013", text, hint)
    named = conf.setting("HISTORY")
    known = {model._meta.label_lower: model._meta.label for model in claimable_models()}
    for label in named:
        if label.lower() not in known:
            text = f"TASKCLAIM['HISTORY'] names {label!r}, which is no installed model that can be claimed."
            yield message("E041", text, f"Choose from {sorted(known.values())!r}.")
    if named and OUR_APPS[1] not in apps.app_configs:
        text = "TASKCLAIM['HISTORY'] names models, and the app that keeps histories is missing."
        yield message("E041", text, 'INSTALLED_APPS += ["django_taskclaim.control"]')


def check_databases() -> Iterator[CheckMessage]:
    """E006 to E008, E012, E016 and W001, which the settings alone show; no connection is opened."""
    sound = claimable_models()
    for alias, label in product(places_of(None, sound), OUR_APPS):
        if label in apps.app_configs and not router.allow_migrate(alias, label):
            text = (
                f"A router keeps the tables of {label} away from the database {alias!r}, which holds claimable"
                " models: claims read the switch there, and workers the commands of operators."
            )
            hint = f"Let allow_migrate({alias!r}, {label!r}) return True, and migrate --database {alias}."
            yield message("E006", text, hint)
    for alias in dict.fromkeys(map(router.db_for_write, sound)):
        yield from _configured_faults(alias)


def _configured_faults(alias: str) -> Iterator[CheckMessage]:
    connection, strategy = connections[alias], conf.setting("CLAIM_STRATEGY")
    try:
        dialect = dialect_for(connection)
    except NotSupportedError as error:
        hint = "Let a router keep the models with claim columns on one of these databases."
        yield message("E016", f"The database {alias!r} cannot claim. {error}", hint)
        return
    yield from autocommit_faults(alias)
    yield from server_for(connection).configured_faults()
    if strategy == "update_limit" and dialect.returns_updated:
        text = f"TASKCLAIM['CLAIM_STRATEGY'] is {strategy!r}, and the database {alias!r} can only claim as auto does."
        yield message("E008", text, 'TASKCLAIM = {"CLAIM_STRATEGY": "auto"}')


def autocommit_faults(alias: str) -> Iterator[CheckMessage]:
    """Yield that Django commits nothing by itself on this database, if that is so."""
    if not connections[alias].settings_dict["AUTOCOMMIT"]:
        text = f"The database {alias!r} has AUTOCOMMIT False: what a worker or a command writes is never committed."
        hint = "Leave AUTOCOMMIT out of DATABASES; put transaction.atomic() around what belongs together."
        yield message("E012", text, hint)
