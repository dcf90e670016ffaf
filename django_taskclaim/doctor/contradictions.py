"""Rows in combinations of claim columns that no verb leaves behind, and the statement that corrects them."""

from collections.abc import Iterator

from django.db import connections, models
from django.db.models import Count, Q

from django_taskclaim.columns import claim_columns
from django_taskclaim.db.sql import real_name
from django_taskclaim.doctor.findings import Finding
from django_taskclaim.formatting import counted
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.states import Status

#: By state, the columns that are NULL in it.
EMPTY = {
    Status.OPEN: ("claimed_by", "claimed_at", "expires_at"),
    Status.PAUSED: ("claimed_by", "claimed_at", "expires_at"),
    Status.COMPLETE: ("expires_at",),
    Status.FAILED: ("expires_at",),
}


def contradictions(model: type[models.Model], alias: str) -> Iterator[Finding]:
    """Yield how many rows of *model* contradict themselves, and what corrects them; reads every row once."""
    columns, quote = claim_columns(model), connections[alias].ops.quote_name
    status, expiry = columns.status.name, columns.expires_at.name
    conditions = {Status.PROCESSING: Q(**{status: Status.PROCESSING, f"{expiry}__isnull": True})}
    corrections = {Status.PROCESSING: f"manage.py release_expired {model._meta.label}"}
    for state, roles in EMPTY.items():
        fields = [getattr(columns, role) for role in roles]
        is_set = Q(_connector=Q.OR, **{f"{field.name}__isnull": False for field in fields})
        conditions[state] = Q(**{status: state}) & is_set
        names = [quote(real_name(field.column)) for field in fields]
        iteration = quote(real_name(columns.iteration.column))
        # Rows that nobody may hold get the next iteration, so that no token stands.
        next_one = [f"{iteration} = {iteration} + 1"] if len(roles) > 1 else []
        corrections[state] = (
            f"UPDATE {quote(columns.owner._meta.db_table)}"
            f" SET {', '.join([*(f'{name} = NULL' for name in names), *next_one])}"
            f" WHERE {quote(real_name(columns.status.column))} = '{state.value}'"
            f" AND ({' OR '.join(f'{name} IS NOT NULL' for name in names)});"
        )
    rows: ClaimQuerySet[models.Model] = ClaimQuerySet(columns.owner, using=alias)
    counts = rows.order_by().aggregate(
        **{f"found_{state.value}": Count("pk", filter=one) for state, one in conditions.items()}
    )
    for state, found in zip(conditions, counts.values(), strict=True):
        if found:
            running = state == Status.PROCESSING
            what = "without an end of the lease" if running else "with a holder or a lease"
            yield Finding.problem(
                f"{counted(found, 'row')} of {model._meta.label} {state.value} {what}: something other than a verb"
                " wrote there.",
                corrections[state],
            )
