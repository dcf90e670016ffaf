"""The setup that claims need: tables, columns, an index, settings and a server in order."""

from collections.abc import Iterator
from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.core import checks
from django.db import DatabaseError, connections, models, router, transaction

from django_taskclaim.checks import OUR_APPS, check_servers
from django_taskclaim.columns import has_ranges, is_claimable, is_companion, source_link
from django_taskclaim.contention import Meaning, meaning_of
from django_taskclaim.db.sql import real_name
from django_taskclaim.formatting import first_line, format_duration, listed
from django_taskclaim.indexes import ClaimIndex
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.monitoring.server.base import TAG
from django_taskclaim.querysets.scope import ClaimTarget, no_transaction
from django_taskclaim.ranges.keys import source_of

#: Dead rows that are too many to wait for before a vacuum.
TOO_MANY_DEAD = 50_000

#: A transaction that is open for longer keeps what 100,000 claimed rows leave behind.
LONG = timedelta(minutes=1)


def missing_tables(model: type[models.Model], alias: str) -> Iterator[checks.CheckMessage]:
    """Yield the tables that cannot be read with their columns; without them no row can be claimed and read.

    Raises the error of a database that does not answer.
    """
    # One command may make several tables; the first one is named.
    found: dict[str, str] = {}
    for one, at in _needed(model, alias):
        connection = connections[at]
        connection.ensure_connection()
        # SQLite's transaction may wait for a writer. Inside the caller's an error would spoil what comes after it.
        block = nullcontext() if no_transaction(connection) else transaction.atomic(using=at)
        try:
            with block:
                list(models.QuerySet(one, using=at).extra(where=["1 = 0"]).order_by())
        except DatabaseError as error:
            if meaning_of(error) is not Meaning.REFUSAL:
                raise
            text = f"The table {real_name(one._meta.db_table)} on {at!r} cannot be read"
            found.setdefault(_how_to_make(one, at), f"{text}: {first_line(error)}.")
    yield from (checks.Error(text, command) for command, text in found.items())


def _needed(model: type[models.Model], alias: str) -> list[tuple[type[models.Model], str]]:
    """Return whose tables are needed on which database: those of *model*, ours, and the source of its rows."""
    concrete: Any = model._meta.concrete_model
    needed = [*concrete._meta.all_parents, concrete]
    for label in OUR_APPS:
        if label in apps.app_configs and (label == TAG or router.allow_migrate(alias, label)):
            needed += apps.get_app_config(label).get_models()
    places = [(one, alias) for one in needed]
    # A system check reports a source that does not exist.
    with suppress(TypeError):
        if is_companion(model):
            link = source_link(model)
            places.append((link.source, link.alias_beside(alias)))
        elif has_ranges(model):
            places.append((source_of(model), alias))
    return places


def _how_to_make(model: type[models.Model], alias: str) -> str:
    """Return the commands that make the table of *model* as it has to be."""
    meta = model._meta
    if not meta.managed:
        return "Look at db_table and at DATABASES: migrations do not make this table (managed = False)."
    migrate = f"Run: manage.py migrate {meta.app_label} --database {alias}"
    if is_claimable(model):
        new = f"manage.py makemigrations {meta.app_label} for a new table"
        old = f"manage.py claimadopt {meta.label} for one with rows"
        return f"{migrate}. If that finds no migration, first {new}, or {old}"
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
    statements = "\n".join(map(real_name, editor.collected_sql))
    yield checks.Error(
        f"The table {real_name(owner.db_table)} has no index on {listed([name for name, _ in wanted])}: every claim"
        " reads and sorts all open rows.",
        f"Create it{server.on_a_busy_table}, or run makemigrations and migrate:\n{statements}",
    )


# What a server keeps of rows that have changed; claims read past it


def dead_rows(model: type[models.Model], alias: str) -> Iterator[checks.CheckMessage]:
    """Yield that the table of *model* has many dead rows, where the server counts them."""
    target = ClaimTarget.of(model, alias)
    living, dead = server_for(connections[alias]).dead_rows(target.table)
    if dead >= TOO_MANY_DEAD and dead > living * 0.2:
        yield checks.Warning(
            f"The table {real_name(target.columns.owner._meta.db_table)} has {dead:,} dead rows beside {living:,}"
            " living: each claim may read past many of them.",
            "Look for a transaction that still needs them (above), then VACUUM the table. docs/performance.md has"
            " settings that make a vacuum come sooner.",
        )


def server_findings(alias: str) -> Iterator[checks.CheckMessage]:
    """Yield what the system checks find on the server of one database, and a transaction that is open for long."""
    yield from check_servers(databases=[alias])
    # On MySQL the user needs the privilege PROCESS for that, and the list may be refused for a moment.
    with suppress(DatabaseError):
        for seconds, holder, remedy in server_for(connections[alias]).oldest_transaction():
            if (age := timedelta(seconds=float(seconds))) > LONG:
                yield checks.Warning(
                    f"The oldest transaction has been open for {format_duration(age)} ({holder}): the server keeps old"
                    " versions of rows for it, and claims read past them.",
                    f"End it, or let it commit more often: {remedy}",
                )
