"""Whether the database removes what updates leave behind; claims read past what it still keeps."""

from collections.abc import Iterator
from datetime import timedelta

from django.db import DatabaseError, connections, models

from django_taskclaim.db.sql import real_name
from django_taskclaim.doctor.findings import Finding
from django_taskclaim.formatting import format_duration
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.querysets.scope import ClaimTarget

#: Dead rows that are too many to wait for before a vacuum.
TOO_MANY_DEAD = 50_000

#: A transaction that is open for longer keeps what 100,000 claimed rows leave behind.
LONG = timedelta(minutes=1)


def dead_rows(model: type[models.Model], alias: str) -> Iterator[Finding]:
    """Yield how many dead rows the table of *model* has, where the server counts them."""
    target = ClaimTarget.of(model, alias)
    found = server_for(connections[alias]).dead_rows(target.table)
    if found is None:
        return
    ago = found.vacuumed_ago
    vacuumed = "" if ago is None else f"; vacuumed {format_duration(ago)} ago"
    text = (
        f"The table {real_name(target.columns.owner._meta.db_table)} has {found.dead:,} dead rows beside"
        f" {found.living:,} living{vacuumed}"
    )
    if found.dead < TOO_MANY_DEAD or found.dead <= found.living * 0.2:
        yield Finding.fine(f"{text}.")
    else:
        yield Finding.note(
            f"{text}: each claim may read past many of them.",
            "Look for a transaction that still needs them (above), then VACUUM the table. docs/performance.md has"
            " settings that make a vacuum come sooner.",
        )


def oldest_transaction(alias: str) -> Iterator[Finding]:
    """Yield how long the oldest transaction on one database has been open, where the server shows it."""
    try:
        oldest = server_for(connections[alias]).oldest_transaction()
    except DatabaseError:
        # On MySQL the user needs the privilege PROCESS for that, and the list may be refused for a moment.
        return
    if oldest is None:
        return
    text = f"The oldest transaction has been open for {format_duration(oldest.age)}"
    if oldest.age <= LONG:
        yield Finding.fine(f"{text}.")
    else:
        yield Finding.note(
            f"{text} ({oldest.holder}): the server keeps old versions of rows for it, and claims read past them.",
            f"End it, or let it commit more often: {oldest.remedy}",
        )
