"""What the tables, the settings and the server must be like."""

from collections.abc import Iterable, Iterator

from django.apps import apps
from django.core.checks.messages import ERROR
from django.db import Error, connections, models, router

from django_taskclaim.checks.databases import check_routers, faults_of
from django_taskclaim.checks.handlers import check_handlers
from django_taskclaim.checks.models import check_models
from django_taskclaim.checks.settings import check_settings
from django_taskclaim.columns import has_ranges
from django_taskclaim.dialects.inspection import real_name
from django_taskclaim.doctor.findings import Finding
from django_taskclaim.doctor.upkeep import clearing
from django_taskclaim.links import is_companion, source_link
from django_taskclaim.models import NamedLease, Switch, WorkerProcess
from django_taskclaim.querysets.ranges.place import source_of
from django_taskclaim.querysets.scope import Desk
from django_taskclaim.wording import first_line, listed

#: Known by name alone: this module stands below it in the import order.
CONTROL, CONTROL_LABEL = "django_taskclaim.control", "taskclaim_control"


def missing_tables(model: type[models.Model], alias: str) -> Iterator[Finding]:
    """Yield the tables and columns that the database lacks; without them nothing else can be asked."""
    desk = Desk.of(model, alias)
    connection = connections[alias]
    with connection.cursor() as cursor:
        there = set(connection.introspection.table_names(cursor, include_views=True))
    yield from _missing_of_ours(there, alias)
    table = real_name(desk.columns.owner._meta.db_table)
    if table not in there and not _is_elsewhere(desk):
        label = model._meta.label
        yield Finding.problem(
            f"The database {alias!r} has no table {table} for {label}.",
            f"manage.py migrate {model._meta.app_label} --database {alias}",
        )
    else:
        yield from _missing_columns(desk)


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
    if '"."' in table or "`.`" in table:
        return
    with connection.cursor() as cursor:
        there = connection.introspection.table_names(cursor, include_views=True)
    if table not in there:
        yield Finding.problem(
            f"The database {using!r} has no table {table} for {source._meta.label}, the source of {model._meta.label}.",
            f"manage.py migrate {source._meta.app_label} --database {using}"
            if source._meta.managed
            else "Look at db_table and at DATABASES: migrations do not make this table (managed = False).",
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


def _is_elsewhere(desk: Desk) -> bool:
    """Say whether the table's name carries a schema, so that a list of tables cannot show it."""
    return '"."' in desk.table.name or "`.`" in desk.table.name


def _missing_columns(desk: Desk) -> Iterator[Finding]:
    connection = desk.dialect.connection
    name = real_name(desk.columns.owner._meta.db_table)
    with connection.cursor() as cursor:
        # Django's introspection describes no table of another schema.
        cursor.execute(f"SELECT * FROM {desk.table.name} WHERE 1 = 0", ())
        known = {column[0] for column in cursor.description}
    columns = desk.columns
    ours = [*columns.guarded, *([columns.priority] if columns.priority is not None else [])]
    wanted = [real_name(field.column) for field in ours]
    missing = [column for column in wanted if column not in known]
    if missing:
        meta = columns.owner._meta
        yield Finding.problem(
            f"The table {name} on {desk.alias!r} lacks the columns {listed(missing, most=20)}.",
            f"manage.py migrate {meta.app_label} --database {desk.alias}; where no migration adds them yet, first"
            f" manage.py claimadopt {meta.label}, lest rows that are there be done again.",
        )


def configuration_findings(alias: str, of: Iterable[type[models.Model]]) -> Iterator[Finding]:
    """Yield what the server of one database, or one of these models' tables there, breaks; or that it is in order.

    A database that does not answer is a finding, not an exception.
    """
    try:
        found = list(faults_of(alias, of))
        leftovers = list(clearing(alias))
    except Error as error:
        yield refused(alias, error)
        return
    for fault in found:
        make = Finding.problem if fault.serious else Finding.note
        yield make(f"{fault.message} ({fault.id})", fault.hint)
    if not found:
        yield Finding.fine("The server's version and settings are in order.")
    yield from leftovers


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
