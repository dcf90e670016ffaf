"""Rows in combinations of claim columns that no verb leaves behind, and the statement that corrects them."""

from collections.abc import Iterator
from typing import Any

from django.db import connections, models
from django.db.models import Count, Q

from django_taskclaim.columns import claim_columns
from django_taskclaim.db.sql import real_name
from django_taskclaim.doctor.findings import Finding
from django_taskclaim.formatting import counted
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.states import Status

#: By what such a row is: its states, and the columns of which one is set although none may be.
HELD = ("claimed_by", "claimed_at", "expires_at")
CONTRADICTIONS = {
    "open with a holder or a lease": ([Status.OPEN], HELD),
    "paused with a holder or a lease": ([Status.PAUSED], HELD),
    "complete or failed with a lease": ([Status.COMPLETE, Status.FAILED], ("expires_at",)),
}
ENDLESS = "processing without an end of the lease"


def contradictions(model: type[models.Model], alias: str) -> Iterator[Finding]:
    """Yield how many rows of *model* contradict themselves, and what corrects them; reads every row once."""
    columns = claim_columns(model)
    status, expiry = columns.status.name, columns.expires_at.name
    conditions = {ENDLESS: Q(**{status: Status.PROCESSING.value, f"{expiry}__isnull": True})}
    for name, (states, roles) in CONTRADICTIONS.items():
        is_set = Q(_connector=Q.OR, **{f"{_field(columns, r).name}__isnull": False for r in roles})
        conditions[name] = Q(**{f"{status}__in": states}) & is_set
    rows: ClaimQuerySet[models.Model] = ClaimQuerySet(columns.owner, using=alias)
    counts = rows.order_by().aggregate(
        **{f"found_{n}": Count("pk", filter=one) for n, one in enumerate(conditions.values())}
    )
    for name, found in zip(conditions, counts.values(), strict=True):
        if found:
            yield Finding.problem(
                f"{counted(found, 'row')} of {model._meta.label} {'is' if found == 1 else 'are'} {name}: something"
                " other than a verb wrote there.",
                f"manage.py release_expired {model._meta.label}"
                if name == ENDLESS
                else _correction(columns, alias, *CONTRADICTIONS[name]),
            )


def _field(columns: Any, role: str) -> Any:
    return getattr(columns, role)


def _correction(columns: Any, alias: str, states: list[Status], roles: tuple[str, ...]) -> str:
    """Return the UPDATE that takes the holder and the lease off such rows; a held one gets the next iteration."""
    quote = connections[alias].ops.quote_name
    names = [quote(real_name(_field(columns, role).column)) for role in roles]
    assigned = [f"{name} = NULL" for name in names]
    if roles == HELD:
        iteration = quote(real_name(columns.iteration.column))
        assigned.append(f"{iteration} = {iteration} + 1")
    listed = ", ".join(f"'{state.value}'" for state in states)
    return (
        f"UPDATE {quote(columns.owner._meta.db_table)} SET {', '.join(assigned)}"
        f" WHERE {quote(real_name(columns.status.column))} IN ({listed})"
        f" AND ({' OR '.join(f'{name} IS NOT NULL' for name in names)});"
    )
