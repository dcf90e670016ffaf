"""Rows whose claim columns contradict each other, as something that is no verb has left them, put right."""

from collections.abc import Callable
from dataclasses import dataclass

from django.db.models import Count, Q

from django_taskclaim.columns import claim_columns
from django_taskclaim.dialects.statements import SQL
from django_taskclaim.querysets.assignments import open_again
from django_taskclaim.querysets.operating import in_chunks, release_expired
from django_taskclaim.querysets.scope import Desk, Rows, on_claim_table
from django_taskclaim.signals import rows_acted_on, send_after_commit
from django_taskclaim.states import Status

#: What the signal calls it.
REPAIRED = "repaired"


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A combination of claim columns that no verb leaves behind."""

    name: str
    condition: Callable[[Desk], Q]
    #: What puts such a row right; None where that is the reaper's work.
    assignments: Callable[[Desk], list[SQL]] | None


def _never_ends(desk: Desk) -> Q:
    return _in(desk, Status.PROCESSING) & ~_has(desk, "expires_at")


def _open_and_held(desk: Desk) -> Q:
    return _in(desk, Status.OPEN) & _any(desk)


def _paused_and_held(desk: Desk) -> Q:
    return _in(desk, Status.PAUSED) & _any(desk)


def _ended_and_leased(desk: Desk) -> Q:
    return _in(desk, Status.COMPLETE, Status.FAILED) & _has(desk, "expires_at")


def _in(desk: Desk, *states: Status) -> Q:
    return Q(**{f"{desk.columns.status.name}__in": states})


def _has(desk: Desk, role: str) -> Q:
    return Q(**{f"{getattr(desk.columns, role).name}__isnull": False})


def _any(desk: Desk) -> Q:
    return _has(desk, "claimed_by") | _has(desk, "claimed_at") | _has(desk, "expires_at")


def _paused_again(desk: Desk) -> list[SQL]:
    """Return what leaves a row paused and held by nobody; a token of before must not stand again."""
    _status, *others = open_again(desk)
    return [desk.table.assign(desk.columns.status, SQL(f"'{Status.PAUSED.value}'")), *others]


def _without_lease(desk: Desk) -> list[SQL]:
    return [desk.table.assign(desk.columns.expires_at, SQL("NULL"))]


#: All of them, by name: what such rows are.
CONTRADICTIONS = (
    Contradiction("processing without an end of the lease", _never_ends, None),
    Contradiction("open with a holder or a lease", _open_and_held, open_again),
    Contradiction("paused with a holder or a lease", _paused_and_held, _paused_again),
    Contradiction("complete or failed with a lease", _ended_and_leased, _without_lease),
)


def count(queryset: Rows) -> dict[str, int]:
    """Return how many rows contradict themselves, by contradiction, in one reading of the table."""
    desk = Desk.of(queryset.model, queryset.db)
    rows = on_claim_table(queryset, desk)
    key = desk.columns.status.name
    asked = {
        f"found_{n}": Count(key, filter=one.condition(desk)) for n, one in enumerate(CONTRADICTIONS)
    }
    found = rows.aggregate(**asked)
    return {
        one.name: found[f"found_{n}"] for n, one in enumerate(CONTRADICTIONS) if found[f"found_{n}"]
    }


def repair(queryset: Rows) -> dict[str, int]:
    """Put every contradiction right, chunk by chunk; see ``OperatorVerbs.repair``."""
    done = {one.name: _repair(queryset, one) for one in CONTRADICTIONS}
    return {name: rows for name, rows in done.items() if rows}


def _repair(queryset: Rows, one: Contradiction) -> int:
    if one.assignments is None:
        expiry = claim_columns(queryset.model).expires_at.name
        return release_expired(queryset.filter(**{f"{expiry}__isnull": True}), None)
    assignments = one.assignments

    def write(desk: Desk, locked: list[list[object]]) -> int:
        keys = [desk.table.key_of(row) for row in locked]
        still = desk.table.where_of(desk.rows.order_by().filter(one.condition(desk)))
        assert still is not None, "the condition can match"
        written = sum(
            desk.dialect.update_where(desk.table, part, still, assignments(desk))
            for part in desk.dialect.chunks(keys, desk.table)
        )
        if written:
            send_after_commit(rows_acted_on, desk.model, desk.alias, keys=keys, act=REPAIRED)
        return written

    return in_chunks(queryset, one.condition, write)
