"""Whether the statements of a model find an index that fits them."""

from collections.abc import Iterator, Sequence
from typing import Any

from django.db import connections, models, transaction

from django_taskclaim.db.sql import SQL, real_name
from django_taskclaim.doctor.findings import Finding
from django_taskclaim.doctor.statements import (
    claim_statements,
    fenced_statements,
    reaper_statements,
)
from django_taskclaim.fields import AnyField
from django_taskclaim.formatting import listed
from django_taskclaim.handlers import handler_for
from django_taskclaim.indexes import ClaimIndex
from django_taskclaim.limits.key_limits import limits_over
from django_taskclaim.limits.serial import SerialLimit
from django_taskclaim.monitoring.server import Plan, Server, server_for
from django_taskclaim.querysets.ordering import in_policy_order
from django_taskclaim.querysets.scope import ClaimTarget


def missing_indexes(model: type[models.Model], alias: str) -> Iterator[Finding]:
    """Yield the claim index with the statement that creates it, where the table has none that fits."""
    target = ClaimTarget.of(model, alias)
    index = claim_index(target)
    if index is None or _is_there(index, target):
        return
    columns = listed([name for name, _ in _wanted(index, target)])
    yield Finding.problem(
        f"The table {_table_name(target)} has no index on {columns}: every claim reads and sorts all open rows.",
        f"Create it{_server(target).on_a_busy_table}, or run makemigrations and migrate:",
        details=tuple(create_statements(index, target)),
    )


def missing_key_indexes(model: type[models.Model], alias: str) -> Iterator[Finding]:
    """Yield an index for each column whose rows of one value are claimed in order, where none finds the first one."""
    target = ClaimTarget.of(model, alias)
    for limit in limits_over(model):
        if not isinstance(limit, SerialLimit):
            continue
        index = index_for(model, target, limit.field, limit.order)
        if index is None or _is_there(index, target, 2):
            continue
        yield Finding.note(
            f"The table {_table_name(target)} has no index that begins with"
            f" {listed([name for name, _ in _wanted(index, target)][:2])}: each claim sorts all open rows of one"
            f" {limit.name} to find the first of them.",
            f"Create it{_server(target).on_a_busy_table}, and name it in Meta.indexes:",
            details=tuple(create_statements(index, target)),
        )


def index_for(
    model: type[models.Model],
    target: ClaimTarget,
    key: AnyField | None = None,
    order: Sequence[Any] = (),
) -> Any:
    """Return the index for claims of the handler's rows in their order, or *order*, of one *key* if given.

    None where no index of the claim table alone gives that order.
    """
    handler = handler_for(model)
    rows = handler.rows() if handler is not None else model._default_manager.all()
    query = (rows.order_by(*order) if order else in_policy_order(rows)).query
    owner = target.columns.owner
    own = {
        each: field.name
        for field in owner._meta.local_concrete_fields
        for each in (field.name, field.attname)
    }
    asked = list(query.order_by) or target.columns.order
    named = [str(item).lstrip("-+") for item in asked]
    if not query.standard_ordering or not {*named, "pk"} <= {*own, "pk"}:
        return None
    key_names = [field.name for field in target.columns.key]
    fields = [target.columns.status.name, *([] if key is None else [key.name])]
    for item, name in zip(asked, named, strict=True):
        names = key_names if name == "pk" else [own[name]]
        fields += ["-" * str(item).startswith("-") + each for each in names if each not in fields]
    index = models.Index(fields=fields)
    index.set_name_with_model(owner)
    return index


def claim_index(target: ClaimTarget) -> Any:
    """Return the index that the mixin has given the model."""
    return next(
        (one for one in target.columns.owner._meta.indexes if isinstance(one, ClaimIndex)), None
    )


def create_statements(index: Any, target: ClaimTarget) -> list[str]:
    """Return Django's own statements that create *index*, ready to be sent."""
    with connections[target.alias].schema_editor(collect_sql=True, atomic=False) as editor:
        editor.add_index(target.columns.owner, index)
    return [real_name(statement) for statement in editor.collected_sql]


def _server(target: ClaimTarget) -> Server:
    return server_for(connections[target.alias])


def _table_name(target: ClaimTarget) -> str:
    return real_name(target.columns.owner._meta.db_table)


def _wanted(index: Any, target: ClaimTarget) -> list[tuple[str, str]]:
    owner: Any = target.columns.owner._meta
    return [
        (real_name(owner.get_field(name).column), order or "ASC")
        for name, order in index.fields_orders
    ]


def _is_there(index: Any, target: ClaimTarget, length: int | None = None) -> bool:
    """Say whether an index of any name begins with the columns of *index*, or with the first *length* of them."""
    wanted = _wanted(index, target)[:length]
    return any(known[: len(wanted)] == wanted for known in _server(target).indexes(target.table))


def judged_plans(model: type[models.Model], alias: str) -> Iterator[Finding]:
    """Yield what EXPLAIN says of the statements as they would be sent now."""
    judged: list[Plan] = []
    for what, statements, may_sort in (
        ("claim", claim_statements(model, alias), False),
        ("search for expired rows", reaper_statements(model, alias), True),
        ("completion or renewal of rows by their keys", fenced_statements(model, alias), True),
    ):
        plans = _explained(model, alias, statements, may_sort)
        judged += plans
        yield from _complaint(model, alias, what, plans)
    if not any(plan.sorts or plan.scans for plan in judged):
        yield Finding.fine(
            "Claims, completions, renewals and the reaper use indexes: no sort, no scan."
        )


def _explained(
    model: type[models.Model], alias: str, statements: list[SQL], may_sort: bool
) -> list[Plan]:
    target = ClaimTarget.of(model, alias)
    server = _server(target)
    with transaction.atomic(using=alias):
        return [server.explain(one, target.table, may_sort=may_sort) for one in statements]


def _complaint(
    model: type[models.Model], alias: str, what: str, plans: list[Plan]
) -> Iterator[Finding]:
    target, details = ClaimTarget.of(model, alias), []
    bad = next((plan for plan in plans if plan.sorts or plan.scans), None)
    if bad is None:
        return
    faults = listed(
        [*(["sorts rows"] if bad.sorts else []), *(["reads the whole table"] if bad.scans else [])]
    )
    index = claim_index(target)
    if index is not None and not _is_there(index, target):
        advice = "Create the missing index named above, then ask again."
    elif what == "claim":
        name = f" {index.name}" if index is not None else ""
        advice = (
            f"The claim index{name} is there but does not serve this claim: refresh the statistics"
            f" ({_analyze(target)}), and if the handler's queryset has a filter or an order of its own, add"
            " an index on the status, followed by those columns."
        )
        fitting = index_for(model, target)
        if fitting is not None and not _is_there(fitting, target):
            details = create_statements(fitting, target)
            advice = (
                f"The handler has an order of its own, which the claim index{name} does not have. Create the index in"
                f" the last line{_server(target).on_a_busy_table}, and name it in Meta.indexes; if claims still sort"
                f" then, refresh the statistics ({_analyze(target)})."
            )
    else:
        advice = f"Refresh the statistics: {_analyze(target)}"
    yield Finding.problem(f"The {what} {faults}.", advice, details=(*bad.lines, *details))


def _analyze(target: ClaimTarget) -> str:
    return _server(target).refresh_statistics(target.table)
