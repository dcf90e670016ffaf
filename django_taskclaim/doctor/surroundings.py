"""What the tables, the settings and the server must be like."""

from collections.abc import Iterable, Iterator
from typing import Any

from django.apps import apps
from django.core.checks.messages import ERROR
from django.db import Error, connections, models, router
from django.db.migrations.loader import MigrationLoader

from django_taskclaim.checks.databases import check_routers, faults_of
from django_taskclaim.checks.handlers import check_handlers
from django_taskclaim.checks.models import check_models
from django_taskclaim.checks.settings import check_settings
from django_taskclaim.columns import has_ranges
from django_taskclaim.db.sql import real_name
from django_taskclaim.doctor.findings import Finding
from django_taskclaim.doctor.vacuum import oldest_transaction
from django_taskclaim.fields import AnyField, ClaimColumn
from django_taskclaim.formatting import first_line, listed
from django_taskclaim.links import is_companion, source_link
from django_taskclaim.models import NamedLease, Switch, WorkerProcess
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.ranges.keys import source_of

#: Known by name alone: this module stands below it in the import order.
CONTROL, CONTROL_LABEL = "django_taskclaim.control", "taskclaim_control"


def missing_tables(
    model: type[models.Model], alias: str, *, whole: bool = False
) -> Iterator[Finding]:
    """Yield the tables and columns that the database lacks; without them nothing else can be asked.

    With *whole* also columns and tables of the user's own, without which no row can be read.
    """
    target = ClaimTarget.of(model, alias)
    connection = connections[alias]
    with connection.cursor() as cursor:
        there = set(connection.introspection.table_names(cursor, include_views=True))
    yield from _missing_of_ours(there, alias)
    owner: Any = target.columns.owner
    concrete: Any = model._meta.concrete_model
    for part in dict.fromkeys([owner, concrete, *concrete._meta.all_parents] if whole else [owner]):
        table = real_name(part._meta.db_table)
        if table not in there and not _is_elsewhere(part._meta.db_table):
            yield Finding.problem(
                f"The database {alias!r} has no table {table} for {part._meta.label}.",
                how_to_make(part, alias),
            )
            continue
        ours = [*target.columns.guarded, target.columns.priority] if part is owner else []
        wanted = part._meta.local_concrete_fields if whole else ours
        yield from _missing_columns(part, alias, [field for field in wanted if field is not None])


def how_to_make(model: type[models.Model], alias: str, columns: Iterable[AnyField] = ()) -> str:
    """Return the commands that make the table of *model*, or these *columns* of it."""
    meta = model._meta
    if not meta.managed:
        return "Look at db_table and at DATABASES: migrations do not make this table (managed = False)."
    migrate = f"manage.py migrate {meta.app_label} --database {alias}"
    if _is_in_migrations(model, columns):
        return migrate
    other = (
        f" (or manage.py claimadopt {meta.label}, so that rows that are there are not done again)"
    )
    ours = any(isinstance(field, ClaimColumn) for field in columns)
    return f"manage.py makemigrations {meta.app_label}{other if ours else ''}, then {migrate}"


def _is_in_migrations(model: type[models.Model], columns: Iterable[AnyField]) -> bool:
    """Say whether the app has migrations that make the table and these columns, run or not."""
    label, name = model._meta.app_label, model._meta.model_name
    try:
        loader = MigrationLoader(None)
        state = loader.project_state().models.get((label, name))
    except Exception:
        # Somebody else's broken migration is no reason to write another one.
        return True
    return state is not None and {field.name for field in columns} <= state.fields.keys()


def missing_source(model: type[models.Model], alias: str) -> Iterator[Finding]:
    """Tell where the table is gone, or not yet there, that a companion or ranges are of."""
    try:
        source, using = _source_of(model, alias)
    except TypeError:
        # A check tells of a source that does not exist.
        return
    if source is None:
        return
    table, connection = real_name(source._meta.db_table), connections[using]
    if _is_elsewhere(source._meta.db_table):
        return
    with connection.cursor() as cursor:
        there = connection.introspection.table_names(cursor, include_views=True)
    if table not in there:
        yield Finding.problem(
            f"The database {using!r} has no table {table} for {source._meta.label}, the source of {model._meta.label}.",
            how_to_make(source, using),
        )


def _source_of(model: type[models.Model], alias: str) -> tuple[type[models.Model] | None, str]:
    """Return what a companion or ranges are of, and on which database that is."""
    if is_companion(model):
        link = source_link(model)
        return link.source, link.alias_beside(alias)
    return (source_of(model) if has_ranges(model) else None), alias


def _missing_of_ours(there: set[str], alias: str) -> Iterator[Finding]:
    ours = [model._meta.db_table for model in (Switch, WorkerProcess, NamedLease)]
    missing = [name for name in ours if name not in there]
    if missing:
        yield Finding.problem(
            f"The database {alias!r} lacks {listed(missing)}, which every claim there needs.",
            f"manage.py migrate taskclaim --database {alias}",
        )
    if apps.is_installed(CONTROL) and router.allow_migrate(alias, CONTROL_LABEL):
        tables = [model._meta.db_table for model in apps.get_app_config(CONTROL_LABEL).get_models()]
        if absent := [name for name in tables if name not in there]:
            yield Finding.problem(
                f"The database {alias!r} lacks {listed(absent)}, which the workers of a project with {CONTROL} need.",
                f"manage.py migrate {CONTROL_LABEL} --database {alias}",
            )


def _is_elsewhere(table: str) -> bool:
    """Say whether the table's name carries a schema, so that a list of tables cannot show it."""
    return '"."' in table or "`.`" in table


def _missing_columns(
    model: type[models.Model], alias: str, wanted: Iterable[Any]
) -> Iterator[Finding]:
    connection, table = connections[alias], model._meta.db_table
    with connection.cursor() as cursor:
        # Django's introspection describes no table of another schema.
        cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)} WHERE 1 = 0", ())
        # Most databases take no notice of capital letters.
        known = {column[0].lower() for column in cursor.description}
    missing = [field for field in wanted if real_name(field.column).lower() not in known]
    if missing:
        names = listed([real_name(field.column) for field in missing], most=20)
        yield Finding.problem(
            f"The table {real_name(table)} on {alias!r} lacks the column{'s' * (len(missing) > 1)} {names}.",
            how_to_make(model, alias, missing),
        )


def configuration_findings(alias: str, of: Iterable[type[models.Model]]) -> Iterator[Finding]:
    """Yield what the server of one database, or one of these models' tables there, breaks; or that it is in order.

    A database that does not answer is a finding, not an exception.
    """
    try:
        found = list(faults_of(alias, of))
        oldest = list(oldest_transaction(alias))
    except Error as error:
        yield refused(alias, error)
        return
    for fault in found:
        make = Finding.problem if fault.serious else Finding.note
        yield make(f"{fault.message} ({fault.id})", fault.hint)
    if not found:
        yield Finding.fine("The server's version and settings are in order.")
    yield from oldest


def refused(alias: str, error: Error) -> Finding:
    """Return what to say of a database that does not answer."""
    return Finding.problem(
        f"The database {alias!r} refused a question: {first_line(error)}",
        "Look at the server and at DATABASES, then ask again.",
    )


def project_findings() -> Iterator[Finding]:
    """Yield what the system checks of this package say of the project, whatever the model."""
    checks = (check_settings, check_models, check_handlers, check_routers)
    for message in (found for check in checks for found in check()):
        if message.is_silenced():
            continue
        make = Finding.problem if message.level >= ERROR else Finding.note
        yield make(f"{message.msg} ({message.id})", message.hint or "")
