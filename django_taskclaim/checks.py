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
E012      a database that holds a claimable model has ``AUTOCOMMIT`` False
E013      the hook ``TASKCLAIM["REDACT"]`` cannot be imported or called, or returns no text
E016      a database that holds a claimable model is of a kind that nothing is claimed on, or SQLite before 3.35
E041      ``TASKCLAIM["HISTORY"]`` names what is no claimable model, or the app that keeps histories is not installed
E061      a companion (``SourceMixin``) has no link ``source``
E062      the link of a companion is not unique
E071      a model of ranges names no source, nothing tells when a growing one has all rows of a range, or
          ``plan_ahead`` is no number of rows
W001      SQLite transactions do not begin IMMEDIATE
W003      a lease is so short that renewals cannot keep up
W009      an atomic handler may hold up all other writers for longer than a quarter of its lease
W051      an archive lacks columns of the model, or other rows are deleted with an archived row
W064      ``update_fields`` of a companion's handler names a column that the source has, too
E101–E104 asked of the server, with ``--database`` only: it is too old for the claims (E101), a table has no
          transactions (E102), holders are not compared exactly (E103), the default isolation makes claims fail
          each other (E104)
W102      a Galera cluster (MariaDB)
========= ====================================================================================================

The ids are written ``taskclaim.E001``. Those from E101 on touch the database, so Django runs them for
``manage.py check --database default`` and ``migrate`` only; ``claimdoctor`` runs them always.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, product
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Tags, register
from django.db import NotSupportedError, connections, models, router

from django_taskclaim import conf, error_text
from django_taskclaim.columns import (
    LINK,
    SourceLink,
    claim_columns,
    deleted_with,
    has_claim_columns,
    is_claimable,
    is_companion,
    source_link,
)
from django_taskclaim.completion import Archive
from django_taskclaim.db import dialect_for, is_supported
from django_taskclaim.fields import ClaimColumn, PriorityField
from django_taskclaim.formatting import format_duration, listed
from django_taskclaim.handlers import Handler, handler_for
from django_taskclaim.models import ClaimBase, RangeMixin
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.monitoring.server.base import TAG, message
from django_taskclaim.policy import SHORTEST_LEASE
from django_taskclaim.querysets.completing import PREFIX, writable
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.ranges import refuse_unplannable
from django_taskclaim.ranges.keys import RangeTarget
from django_taskclaim.switch import claimable_models, holds, places_of


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
    """E006, E007, E012, E016 and W001, which the settings alone show; no connection is opened."""
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
    connection = connections[alias]
    try:
        dialect_for(connection)
    except NotSupportedError as error:
        hint = "Let a router keep the models with claim columns on one of these databases."
        yield message("E016", f"The database {alias!r} cannot claim. {error}", hint)
        return
    yield from autocommit_faults(alias)
    yield from server_for(connection).configured_faults()


def autocommit_faults(alias: str) -> Iterator[CheckMessage]:
    """Yield that Django commits nothing by itself on this database, if that is so."""
    if not connections[alias].settings_dict["AUTOCOMMIT"]:
        text = f"The database {alias!r} has AUTOCOMMIT False: what a worker or a command writes is never committed."
        hint = "Leave AUTOCOMMIT out of DATABASES; put transaction.atomic() around what belongs together."
        yield message("E012", text, hint)


# What a model and its handler show


def problems_of(model: type[models.Model]) -> Iterator[CheckMessage]:
    """Yield what is wrong with a claimable model and its handler; where TASKCLAIM is wrong, that is not to be asked."""
    yield from column_problems(model)
    if is_companion(model):
        yield from _companion(model)
    if issubclass(model, RangeMixin):
        yield from _ranges(model)
    if is_claimable(model) and (handler := handler_for(model)):
        for look in (_lease, _one_writer, _archive):
            yield from look(handler)


def column_problems(model: type[models.Model]) -> Iterator[CheckMessage]:
    """Yield E002, E004 and E005."""
    label, handle = model._meta.label, ClaimBase.__dict__["claim"]
    if issubclass(model, ClaimBase) and inspect.getattr_static(model, "claim", None) is not handle:
        text = f"{label}.claim replaces row.claim, through which a row's claim is completed and renewed."
        hint = 'Rename it; a field may keep its column: ticket = models.CharField(…, db_column="claim").'
        yield message("E004", text, hint, model)
    manager: Any = model._default_manager
    rows = manager
    # It may need what only a request or a worker has, such as a tenant.
    with suppress(Exception):
        rows = manager.get_queryset()
    if not hasattr(rows, "claim_batch"):
        name = manager.name or "objects"
        text = f"{label}.{name} = {type(manager).__name__}() gives rows without claim_batch(), so no worker can work."
        hint = f"{name} = ClaimManager()  # or a class that inherits from it, with a queryset from ClaimQuerySet"
        yield message("E002", text, hint, model)
    try:
        claim_columns(model)
    except TypeError as error:
        hint = (
            f"class {model.__name__}(PrefixedTaskMixin):  # or TaskMixin, or claim_fields, from a role to a field of"
            " django_taskclaim.fields"
        )
        yield message("E005", str(error), hint, model)


# Companions and ranges, which work on the rows of another model


def _companion(model: type[models.Model]) -> Iterator[CheckMessage]:
    one_to_one = f"{LINK} = models.OneToOneField(%s, models.DO_NOTHING, db_constraint=False)"
    try:
        link = source_link(model)
    except TypeError as error:
        yield message("E061", str(error), one_to_one % "Photo", model)
        return
    if not _is_unique(link):
        text = f"{model._meta.label}.{LINK} is not unique, so one source could have two rows."
        yield message("E062", text, one_to_one % link.source.__name__, model)
    alias = router.db_for_write(model)
    # Results of a source on another database are refused as they are stored.
    if link.alias_beside(alias) == alias and is_claimable(model) and (found := handler_for(model)):
        yield from _results(found, link)


def _is_unique(link: SourceLink) -> bool:
    """Say whether the link is unique by its field or by a constraint; the columns of a SourceKey are so together."""
    names, meta = {field.name for field in link.own}, link.companion._meta
    together = [*meta.unique_together, *(one.fields for one in meta.total_unique_constraints)]
    return names in map(set, together) or (len(names) == 1 and link.own[0].unique)


def _results(handler: Handler, link: SourceLink) -> Iterator[CheckMessage]:
    source = link.source._meta.label
    both = set(handler.update_fields) & writable(handler.model) & writable(link.source)
    if handler.gets_sources and both:
        names = sorted(both)
        text = f"{handler.name} stores {listed(names)} of the companion, and {source}, which it receives, has the same."
        hint = f"update_fields=[{PREFIX + names[0]!r}] stores the column of {source}."
        yield message("W064", text, hint, handler.model)


def _ranges(model: type[models.Model]) -> Iterator[CheckMessage]:
    alias = router.db_for_write(model)
    # Others have E005, and databases of another kind E016.
    if not (is_claimable(model) and is_supported(connections[alias])):
        return
    try:
        refuse_unplannable(RangeTarget(model, alias))
    except (TypeError, ValueError) as error:
        hint = 'source = "photos.Photo"; commits_within = timedelta(minutes=10)'
        yield message("E071", str(error), hint, model)


# Handlers


def _lease(handler: Handler) -> Iterator[CheckMessage]:
    model, lease = handler.model, handler.lease
    if lease < SHORTEST_LEASE:
        text = (
            f"Rows of {model._meta.label} are claimed for {format_duration(lease)}: one slow renewal, and a running row"
            " is lost."
        )
        yield message("W003", text, f"@handler({model.__name__}, lease=60)", model)


def _one_writer(handler: Handler) -> Iterator[CheckMessage]:
    """Look at atomic handlers where an open transaction keeps everybody else from writing."""
    alias, most = router.db_for_write(handler.model), handler.lease / 4
    if not (handler.atomic and is_supported(connections[alias])):
        return
    has_one_writer = dialect_for(connections[alias]).has_one_writer
    if has_one_writer and (handler.timeout is None or handler.timeout > most):
        text = (
            f"{handler.name} is atomic, and {connections[alias].display_name} has one writer: while a row runs, no"
            f" lease on the database {alias!r} can be renewed, no row claimed and none completed."
        )
        hint = f"@handler({handler.model.__name__}, atomic=True, timeout={most.total_seconds():g})"
        yield message("W009", text, f"{hint}  # a quarter of the lease at most", handler.model)


def _archive(handler: Handler) -> Iterator[CheckMessage]:
    if not isinstance(handler.completion, Archive):
        return
    model, archive = handler.model, handler.completion.to
    there = {field.attname for field in archive._meta.concrete_fields}
    parents = model._meta.parents.values()
    lost = sorted(f"rows of {one._meta.label}" for one in deleted_with(model, set())) + [
        field.name
        for field in model._meta.concrete_fields
        if not (field.attname in there or field in parents)
        and not isinstance(field, (ClaimColumn, PriorityField))
    ]
    if lost:
        text = f"{archive._meta.label}, the archive of {handler.name}, lacks {listed(lost)}, which will be lost."
        hint = 'Add the columns, keep other rows by on_delete, or SILENCED_SYSTEM_CHECKS = ["taskclaim.W051"].'
        yield message("W051", text, hint, model)
