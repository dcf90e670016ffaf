"""Whether the statements of a model find an index that fits them."""

from collections.abc import Iterator
from typing import Any

from django.db import connections, models, transaction

from django_taskclaim.db.sql import SQL, real_name
from django_taskclaim.doctor.findings import Finding
from django_taskclaim.doctor.statements import claim_statements, reaper_statements
from django_taskclaim.formatting import listed
from django_taskclaim.indexes import ClaimIndex
from django_taskclaim.monitoring.server import Plan, server_for
from django_taskclaim.querysets.scope import ClaimTarget


def missing_index(model: type[models.Model], alias: str) -> Iterator[Finding]:
    """Yield the claim index with the statement that creates it, where the table has none that fits."""
    target, server = ClaimTarget.of(model, alias), server_for(connections[alias])
    index = _claim_index(target)
    owner: Any = target.columns.owner._meta
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
    yield Finding.problem(
        f"The table {real_name(owner.db_table)} has no index on {listed([name for name, _ in wanted])}: every claim"
        " reads and sorts all open rows.",
        f"Create it{server.on_a_busy_table}, or run makemigrations and migrate:",
        details=tuple(real_name(statement) for statement in editor.collected_sql),
    )


def _claim_index(target: ClaimTarget) -> Any:
    """Return the index that the mixin has given the model."""
    indexes = target.columns.owner._meta.indexes
    return next((index for index in indexes if isinstance(index, ClaimIndex)), None)


def judged_plans(model: type[models.Model], alias: str) -> Iterator[Finding]:
    """Yield what EXPLAIN says of the statements as they would be sent now."""
    claims = _explained(model, alias, claim_statements(model, alias), may_sort=False)
    searches = _explained(model, alias, reaper_statements(model, alias), may_sort=True)
    target = ClaimTarget.of(model, alias)
    refresh = server_for(connections[alias]).refresh_statistics(target.table)
    index = _claim_index(target)
    bad = [plan for plan in claims if plan.sorts or plan.scans]
    if bad:
        yield _complaint(
            "claim",
            bad[0],
            f"Create the index{f' {index.name}' if index is not None else ''} if it is missing, or refresh the"
            f" statistics ({refresh}). If the handler's queryset has a filter or an order of its own, add an index on"
            " the status, followed by those columns.",
        )
    late = [plan for plan in searches if plan.sorts or plan.scans]
    if late:
        yield _complaint("search for expired rows", late[0], f"Refresh the statistics: {refresh}")
    if not bad and not late:
        yield Finding.fine("Claims and the reaper use indexes: no sort, no scan.")


def _explained(
    model: type[models.Model], alias: str, statements: list[SQL], *, may_sort: bool
) -> list[Plan]:
    table, server = ClaimTarget.of(model, alias).table, server_for(connections[alias])
    with transaction.atomic(using=alias):
        return [server.explain(one, table, may_sort=may_sort) for one in statements]


def _complaint(what: str, plan: Plan, advice: str) -> Finding:
    faults = ["sorts rows"] * plan.sorts + ["reads the whole table"] * plan.scans
    return Finding.problem(f"The {what} {listed(faults)}.", advice, details=plan.lines)
