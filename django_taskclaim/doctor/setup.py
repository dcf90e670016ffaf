"""The setup that claims need: tables, columns, settings and a server in order."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.core import checks
from django.db import DatabaseError, Error, connections, models, router

from django_taskclaim.checks import OUR_APPS, TAG, check_servers
from django_taskclaim.columns import has_ranges, is_companion, source_link
from django_taskclaim.db.sql import real_name
from django_taskclaim.fields import AnyField, ClaimColumn
from django_taskclaim.formatting import first_line, format_duration, listed
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.ranges.keys import source_of

#: Dead rows that are too many to wait for before a vacuum.
TOO_MANY_DEAD = 50_000

#: A transaction that is open for longer keeps what 100,000 claimed rows leave behind.
LONG = timedelta(minutes=1)


def missing_tables(model: type[models.Model], alias: str) -> Iterator[checks.CheckMessage]:
    """Yield the tables and columns that the databases lack; without them no row can be claimed and read."""
    for at, needed in _needed(model, alias).items():
        connection = connections[at]
        with connection.cursor() as cursor:
            tables = set(connection.introspection.table_names(cursor, include_views=True))
        # One command may make several tables; the first one is named.
        absent: dict[str, str] = {}
        for one in needed:
            if _is_there(one, tables):
                yield from _missing_columns(one, at)
            else:
                absent.setdefault(_how_to_make(one, at), real_name(one._meta.db_table))
        for command, name in absent.items():
            yield checks.Error(f"The database {at!r} lacks the table {name}.", command)


def _needed(model: type[models.Model], alias: str) -> dict[str, list[type[models.Model]]]:
    """Return the models whose tables are needed by database: ours, those of *model*, and the source of its rows."""
    concrete: Any = model._meta.concrete_model
    needed = {alias: [concrete, *concrete._meta.all_parents]}
    for label in OUR_APPS:
        if label in apps.app_configs and (label == TAG or router.allow_migrate(alias, label)):
            needed[alias] += apps.get_app_config(label).get_models()
    # A system check reports a source that does not exist.
    with suppress(TypeError):
        if is_companion(model):
            link = source_link(model)
            needed.setdefault(link.alias_beside(alias), []).append(link.source)
        elif has_ranges(model):
            needed[alias].append(source_of(model))
    return needed


def _is_there(model: type[models.Model], tables: set[str]) -> bool:
    """Say whether the model's table is among *tables*, or its name carries a schema, which no list of tables shows."""
    name = model._meta.db_table
    return '"."' in name or "`.`" in name or real_name(name) in tables


def _missing_columns(model: type[models.Model], alias: str) -> Iterator[checks.CheckMessage]:
    connection, table = connections[alias], model._meta.db_table
    with connection.cursor() as cursor:
        # Django's introspection describes no table of another schema.
        cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)} WHERE 1 = 0", ())
        # Most databases ignore the case of a column's name.
        known = {column[0].lower() for column in cursor.description}
    fields = model._meta.local_concrete_fields
    missing = [field for field in fields if real_name(field.column).lower() not in known]
    if missing:
        names = listed([real_name(field.column) for field in missing], most=20)
        yield checks.Error(
            f"The table {real_name(table)} on {alias!r} lacks the column{'s' * (len(missing) > 1)} {names}.",
            _how_to_make(model, alias, missing),
        )


def _how_to_make(model: type[models.Model], alias: str, columns: Iterable[AnyField] = ()) -> str:
    """Return the commands that make the table of *model*, or these *columns* of it."""
    meta = model._meta
    if not meta.managed:
        return "Look at db_table and at DATABASES: migrations do not make this table (managed = False)."
    migrate = f"Run: manage.py migrate {meta.app_label} --database {alias}"
    if any(isinstance(field, ClaimColumn) for field in columns):
        return f"{migrate}; if no migration adds them, first manage.py claimadopt {meta.label}"
    return migrate


def server_findings(alias: str) -> Iterator[checks.CheckMessage]:
    """Yield what the system checks find on the server of one database, and how old its oldest transaction is.

    A database that does not answer is a finding, not an exception.
    """
    try:
        yield from check_servers(databases=[alias])
        yield from oldest_transaction(alias)
    except Error as error:
        yield refused(alias, error)


def refused(alias: str, error: Error) -> checks.CheckMessage:
    """Return the finding for a database that does not answer."""
    return checks.Error(
        f"The database {alias!r} refused a question: {first_line(error)}",
        "Look at the server and at DATABASES, then ask again.",
    )


# What a server keeps of rows that have changed; claims read past it


def dead_rows(model: type[models.Model], alias: str) -> Iterator[checks.CheckMessage]:
    """Yield how many dead rows the table of *model* has, where the server counts them."""
    target = ClaimTarget.of(model, alias)
    found = server_for(connections[alias]).dead_rows(target.table)
    if found is None:
        return
    living, dead = found
    text = (
        f"The table {real_name(target.columns.owner._meta.db_table)} has {dead:,} dead rows beside"
        f" {living:,} living"
    )
    if dead < TOO_MANY_DEAD or dead <= living * 0.2:
        yield checks.Info(f"{text}.")
    else:
        yield checks.Warning(
            f"{text}: each claim may read past many of them.",
            "Look for a transaction that still needs them (above), then VACUUM the table. docs/performance.md has"
            " settings that make a vacuum come sooner.",
        )


def oldest_transaction(alias: str) -> Iterator[checks.CheckMessage]:
    """Yield how long the oldest transaction on one database has been open, where the server shows it."""
    try:
        found = server_for(connections[alias]).oldest_transaction()
    except DatabaseError:
        # On MySQL the user needs the privilege PROCESS for that, and the list may be refused for a moment.
        return
    for seconds, holder, remedy in found:
        age = timedelta(seconds=max(0.0, float(seconds)))
        text = f"The oldest transaction has been open for {format_duration(age)}"
        if age <= LONG:
            yield checks.Info(f"{text}.")
        else:
            yield checks.Warning(
                f"{text} ({holder}): the server keeps old versions of rows for it, and claims read past them.",
                f"End it, or let it commit more often: {remedy}",
            )
