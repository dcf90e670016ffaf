"""Whether the database clears away what updates leave behind; claims read past what it does not."""

from collections.abc import Iterator
from datetime import timedelta

from django.db import DatabaseError, connections, models

from django_taskclaim.dialects.inspection import real_name
from django_taskclaim.dialects.upkeep import Upkeep, horizon_of, purge_lag, upkeep_of
from django_taskclaim.doctor.findings import Finding
from django_taskclaim.querysets.scope import Desk
from django_taskclaim.wording import first_line, lasting, listed

#: Updates below which a table is not hot, whatever else is said of it.
HOT_TABLE = 10_000

#: With fewer HOT updates than this part, room in the pages is worth it; a row's claim and completion are never HOT.
FEW_HOT, ROOMY = 0.3, 90

#: Dead rows that are too many to wait for before a vacuum.
TOO_MANY_DEAD = 50_000

#: Changed rows that InnoDB has still to purge; idle servers have less than a thousand.
TOO_MUCH_TO_PURGE = 100_000

#: A transaction that is open for longer holds back what 100,000 claimed rows leave behind.
LONG = timedelta(minutes=1)


def worn_tables(model: type[models.Model], alias: str) -> Iterator[Finding]:
    """Yield what is to be set for the table of *model*, and how many dead rows it has now."""
    desk = Desk.of(model, alias)
    found = upkeep_of(connections[alias], desk.table)
    if found is None:
        return
    table = real_name(desk.columns.owner._meta.db_table)
    yield from _dead_rows(table, found)
    yield from _settings(found)


def _dead_rows(table: str, found: Upkeep) -> Iterator[Finding]:
    dead = f"The table {table} has {found.dead_rows:,} dead rows beside {found.live_rows:,} living"
    ago = "" if found.vacuumed_ago is None else f"; vacuumed {lasting(found.vacuumed_ago)} ago"
    if found.dead_rows < TOO_MANY_DEAD or found.dead_rows <= found.live_rows * 0.2:
        yield Finding.fine(f"{dead}{ago}.")
        return
    yield Finding.note(
        f"{dead}{ago}: each claim may read past many of them.",
        "Look for a transaction that holds them back (above), then VACUUM the table.",
    )


def _settings(found: Upkeep) -> Iterator[Finding]:
    """Recommend what a table that is updated all the time should have, where it has not."""
    if found.updates < HOT_TABLE:
        return
    if not found.autovacuum:
        yield Finding.note(
            "Autovacuum is switched off on this server: what updates leave behind stays, in every table.",
            "Switch it on:",
            details=("ALTER SYSTEM SET autovacuum = on;", "SELECT pg_reload_conf();"),
        )
    if found.options.get("autovacuum_enabled", "true") in {"false", "off", "0"}:
        yield Finding.note(
            "Autovacuum is switched off for this table: what updates leave behind stays.",
            "Switch it on:",
            details=_alter(found, "RESET (autovacuum_enabled)"),
        )
    if found.vacuum_waits_for > TOO_MANY_DEAD:
        yield Finding.note(
            f"A vacuum waits until {found.vacuum_waits_for:,} rows are dead, and claims read past them until then.",
            "Have it come sooner, and work without pauses:",
            details=_alter(
                found,
                "SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,"
                " autovacuum_vacuum_cost_delay = 0)",
            ),
        )
    share = found.hot_updates / found.updates
    if share < FEW_HOT and found.fillfactor > ROOMY:
        yield Finding.note(
            f"Of {found.updates:,} updates {share:.0%} were HOT: most new versions of rows went to other pages.",
            "Leave room in each page for them (what is there already follows with VACUUM FULL or as it is rewritten):",
            details=_alter(found, "SET (fillfactor = 70)"),
        )


def _alter(found: Upkeep, what: str) -> tuple[str, ...]:
    return tuple(f"ALTER TABLE {name} {what};" for name in found.tables)


def clearing(alias: str) -> Iterator[Finding]:
    """Yield what keeps one database from clearing away old versions of rows, whatever the table.

    Where the server does not let the user look, a note says what is needed.
    """
    connection = connections[alias]
    try:
        oldest, waiting = horizon_of(connection), purge_lag(connection)
    except DatabaseError as error:
        yield Finding.note(
            f"The database {alias!r} does not tell what holds back old versions of rows: {first_line(error)}",
            "GRANT PROCESS ON *.* TO the user of DATABASES, if you want to know.",
        )
        return
    if oldest is not None and oldest.age > LONG:
        yield Finding.note(
            f"The oldest transaction on {alias!r} has been open for {lasting(oldest.age)} ({oldest.holder}): what rows"
            " were before they changed is kept for it, and claims read past that.",
            f"End it, or let it commit more often: {oldest.remedy}",
        )
    if waiting is not None and waiting > TOO_MUCH_TO_PURGE:
        yield Finding.note(
            f"{waiting:,} changes on {alias!r} wait to be purged (history list length): claims read past index entries"
            " of rows that are long done.",
            "A transaction that stays open holds it back; else raise innodb_purge_threads, or claim larger batches.",
        )
    facts = _told(oldest.age if oldest is not None else None, waiting)
    if facts:
        yield Finding.fine(f"{listed(facts)}.")


def _told(oldest: timedelta | None, waiting: int | None) -> list[str]:
    told = []
    if oldest is not None and oldest <= LONG:
        told.append(f"The oldest transaction is {lasting(oldest)} old")
    if waiting is not None and waiting <= TOO_MUCH_TO_PURGE:
        told.append(f"{waiting:,} changes wait to be purged")
    return told
