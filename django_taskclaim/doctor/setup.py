"""The setup that claims need: tables, columns, an index, settings and a server in order."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.core import checks
from django.db import DatabaseError, Error, connections, models, router, transaction

from django_taskclaim.checks import OUR_APPS, TAG, check_servers
from django_taskclaim.columns import has_ranges, is_companion, source_link
from django_taskclaim.db.sql import real_name
from django_taskclaim.fields import ClaimColumn
from django_taskclaim.formatting import first_line, format_duration, listed
from django_taskclaim.indexes import ClaimIndex
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.ranges.keys import source_of

#: Dead rows that are too many to wait for before a vacuum.
TOO_MANY_DEAD = 50_000

#: A transaction that is open for longer keeps what 100,000 claimed rows leave behind.
LONG = timedelta(minutes=1)


def missing_tables(model: type[models.Model], alias: str) -> Iterator[checks.CheckMessage]:
    """Yield the tables that cannot be read with their columns; without them no row can be claimed and read.

    Raises the error of a database that does not answer.
    """
    for at, needed in _needed(model, alias).items():
        connections[at].ensure_connection()
        # One command may make several tables; the first one is named.
        found: dict[str, str] = {}
        for one in needed:
            try:
                with transaction.atomic(using=at), connections[at].cursor() as cursor:
                    cursor.execute(_reads_nothing(one, at), ())
            except DatabaseError as error:
                text = f"The table {real_name(one._meta.db_table)} on {at!r} cannot be read"
                found.setdefault(_how_to_make(one, at), f"{text}: {first_line(error)}.")
        yield from (checks.Error(text, command) for command, text in found.items())


def _reads_nothing(model: type[models.Model], alias: str) -> str:
    """Return a statement that names every column of the model's own table, and finds no row."""
    quote, meta = connections[alias].ops.quote_name, model._meta
    table = quote(meta.db_table)
    # With the table before it, no database takes the name of a column that is not there for a text.
    columns = [quote(one.column) for one in meta.local_concrete_fields if one.column]
    return f"SELECT {', '.join(f'{table}.{name}' for name in columns)} FROM {table} WHERE 1 = 0"


def _needed(model: type[models.Model], alias: str) -> dict[str, list[type[models.Model]]]:
    """Return the models whose tables are needed by database: ours, those of *model*, and the source of its rows."""
    concrete: Any = model._meta.concrete_model
    needed = {alias: [concrete, *concrete._meta.all_parents]}
    for label in OUR_APPS:
        if label in apps.app_configs and (label == TAG or router.allow_migrate(alias, label)):
            ours = apps.get_app_config(label).get_models()
            needed[alias] += [one for one in ours if not one._meta.proxy]
    # A system check reports a source that does not exist.
    with suppress(TypeError):
        if is_companion(model):
            link = source_link(model)
            needed.setdefault(link.alias_beside(alias), []).append(link.source)
        elif has_ranges(model):
            needed[alias].append(source_of(model))
    return needed


def _how_to_make(model: type[models.Model], alias: str) -> str:
    """Return the commands that make the table of *model* as it has to be."""
    meta = model._meta
    if not meta.managed:
        return "Look at db_table and at DATABASES: migrations do not make this table (managed = False)."
    migrate = f"Run: manage.py migrate {meta.app_label} --database {alias}"
    if any(isinstance(field, ClaimColumn) for field in meta.local_concrete_fields):
        return f"{migrate}; if no migration adds its claim columns, first manage.py claimadopt {meta.label}"
    return migrate


def missing_index(model: type[models.Model], alias: str) -> Iterator[checks.CheckMessage]:
    """Yield the claim index with the statement that creates it, where the table has none that fits."""
    target, server = ClaimTarget.of(model, alias), server_for(connections[alias])
    owner: Any = target.columns.owner._meta
    index = next((one for one in owner.indexes if isinstance(one, ClaimIndex)), None)
    if index is None:
        return
    wanted = [
        (real_name(owner.get_field(name).column), order or "ASC")
        for name, order in index.fields_orders
    ]
    # An index of any name that begins with these columns serves.
    if any(known[: len(wanted)] == wanted for known in server.indexes(target.table)):
        return
    with connections[alias].schema_editor(collect_sql=True, atomic=False) as editor:
        editor.add_index(target.columns.owner, index)
    yield checks.Error(
        f"The table {real_name(owner.db_table)} has no index on {listed([name for name, _ in wanted])}: every claim"
        " reads and sorts all open rows.",
        "\n".join(
            [
                f"Create it{server.on_a_busy_table}, or run makemigrations and migrate:",
                *(real_name(statement) for statement in editor.collected_sql),
            ]
        ),
    )


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
