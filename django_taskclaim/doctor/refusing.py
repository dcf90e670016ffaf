"""Rows that the database lets nobody write: an UPDATE of those that are next is tried, and rolled back."""

from collections.abc import Iterator, Sequence
from typing import Any

from django.db import DatabaseError, models, transaction

from django_taskclaim.claim import clock
from django_taskclaim.db.sql import SQL, Change
from django_taskclaim.doctor.findings import Finding
from django_taskclaim.error_text import describe
from django_taskclaim.formatting import counted
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.assignments import held_by_another, open_again
from django_taskclaim.querysets.isolating import MOST_ROWS, RefusedRows, refusals
from django_taskclaim.querysets.scope import ClaimTarget, Rows, on_claim_table
from django_taskclaim.querysets.transactions import in_transaction
from django_taskclaim.states import Status

#: So many due rows are tried, and as many whose lease has ended.
TRIED = 500

#: Seconds that such an UPDATE may wait for a lock.
PATIENCE = 1


def refusing_rows(model: type[models.Model], alias: str) -> Iterator[Finding]:
    """Yield which of the rows that are next to be claimed, or put back, cannot be written."""
    target = ClaimTarget.of(model, alias)
    rows: ClaimQuerySet[Any] = ClaimQuerySet(model, using=alias)
    claimed = [
        target.table.assign(target.columns.status, SQL(f"'{Status.PROCESSING.value}'")),
        *held_by_another(target, "claimdoctor", policy_for(model).lease),
    ]
    began = clock()
    try:
        _try(target, rows.due(), claimed, *target.columns.order)
        _try(target, rows.expired(), open_again(target))
    except DatabaseError as error:
        yield Finding.note(
            f"Whether all rows can be written could not be tried: {describe(error)}."
        )
    found = refusals(model, alias, since=began)
    if found:
        few = "" if len(found) < MOST_ROWS else "at least "
        yield Finding.problem(
            f"The database refuses to have {few}{counted(len(found), 'row')} of {model._meta.label} written: no worker"
            " claims them or puts them back. All others go on.",
            "Mend the rows, or the check or trigger that refuses them.",
            tuple(f"{one.key}: {one.error}" for one in found),
        )


def _try(target: ClaimTarget, found: Rows, assignments: Sequence[SQL], *order: str) -> None:
    """Write the first rows that nobody has locked, and roll that back."""
    dialect, table, key = target.dialect, target.table, target.columns.key
    rows = on_claim_table(found, target)

    def attempt(keys: Sequence[Any]) -> None:
        in_transaction(target, write_some, keys)

    def write_some(keys: Sequence[Any]) -> None:
        locked = dialect.lock_first(rows.filter(pk__in=keys).order_by("pk"), table, len(keys), key)
        if locked:
            dialect.write(table, table.keys_of(locked), Change(assignments))

    with transaction.atomic(using=target.alias):
        try:
            with dialect.limit_lock_wait(PATIENCE):
                keys = table.keys_of(dialect.first(rows.order_by(*order), table, TRIED, key))
                search: RefusedRows[Any] = RefusedRows(target)
                for _ in search.send(keys, attempt):
                    pass
        finally:
            transaction.set_rollback(True, using=target.alias)
