"""Whether the claims of a model find an index that fits them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.core import checks
from django.db import connections, models, transaction

from django_taskclaim.conf import setting
from django_taskclaim.db.sql import SQL, real_name
from django_taskclaim.formatting import listed
from django_taskclaim.handlers import handler_for
from django_taskclaim.indexes import ClaimIndex
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.claiming import checked_call, claim
from django_taskclaim.querysets.cursor import Cursor
from django_taskclaim.querysets.scope import ClaimTarget

#: Statements by key differ in their number of keys only, so a few stand for all.
SAMPLE = 50


def missing_index(model: type[models.Model], alias: str) -> Iterator[checks.CheckMessage]:
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
    yield checks.Error(
        f"The table {real_name(owner.db_table)} has no index on {listed([name for name, _ in wanted])}: every claim"
        " reads and sorts all open rows.",
        "\n".join(
            [
                f"Create it{server.on_a_busy_table}, or run makemigrations and migrate:",
                *(real_name(statement) for statement in editor.collected_sql),
            ]
        ),
    )


def _claim_index(target: ClaimTarget) -> Any:
    """Return the index that the mixin has given the model."""
    indexes = target.columns.owner._meta.indexes
    return next((index for index in indexes if isinstance(index, ClaimIndex)), None)


def judged_plans(model: type[models.Model], alias: str) -> Iterator[checks.CheckMessage]:
    """Yield what EXPLAIN says of the claim statements as they would be sent now."""
    target, server = ClaimTarget.of(model, alias), server_for(connections[alias])
    with transaction.atomic(using=alias):
        plans = [server.explain(one, target.table) for one in claim_statements(model, alias)]
    bad = next((plan for plan in plans if plan.sorts or plan.scans), None)
    if bad is None:
        yield checks.Info("Claims use indexes: no sort, no scan.")
        return
    faults = ["sorts rows"] * bad.sorts + ["reads the whole table"] * bad.scans
    index = _claim_index(target)
    yield checks.Error(
        f"The claim {listed(faults)}.",
        f"Create the index{f' {index.name}' if index is not None else ''} if it is missing, or refresh the"
        " statistics (ANALYZE). If the handler's queryset has a filter or an order of its own,"
        " add an index on the status, followed by those columns.\n" + "\n".join(bad.lines),
    )


# What is explained


@contextmanager
def _capturing(target: ClaimTarget) -> Iterator[list[SQL]]:
    """Capture every statement on the target's table inside the block; none of them is sent.

    Django's ``execute_wrapper`` puts a harmless question in its place. A SELECT finds rows of the table, so that what
    follows is captured, too.
    """
    statements: list[SQL] = []
    table = target.table.name

    def stand_in(text: str) -> str:
        if text.startswith("WITH RECURSIVE"):
            # Of quarantined rows, by priority: as if there was one.
            return "SELECT 0"
        if text.startswith("SELECT"):
            wanted = text.removeprefix("SELECT ").removeprefix("DISTINCT ").partition(" FROM ")[0]
            return f"SELECT {wanted} FROM {table} LIMIT {SAMPLE}"
        return f"SELECT 1 FROM {table} WHERE 1 = 0"

    def capture(execute: Callable[..., object], text: str, params: Any, *rest: object) -> object:
        if table not in text or not text.startswith(("SELECT", "UPDATE", "DELETE", "WITH")):
            return execute(text, params, *rest)
        if all(text != known.text for known in statements):
            statements.append(SQL(text, tuple(params or ())))
        return execute(stand_in(text), (), *rest)

    # The caller's transaction makes the verbs open savepoints only; nothing has been written when it ends.
    with transaction.atomic(using=target.alias), connections[target.alias].execute_wrapper(capture):
        yield statements


def claim_statements(model: type[models.Model], alias: str) -> list[SQL]:
    """Return what a worker of *model* sends to claim a batch, at first and behind the last row claimed.

    The verb itself runs, with the strategy that is set and the handler's own filter.
    """
    target = ClaimTarget.of(model, alias)
    handler = handler_for(model)
    rows: Any = handler.rows(alias) if handler else model._default_manager.using(alias)
    if not hasattr(rows, "claim_batch"):
        rows = ClaimQuerySet(model, using=alias)
    limit = handler.batch_size if handler is not None else int(setting("BATCH_SIZE"))
    # Of the user's columns none: one that cannot be read is not the doctor's concern.
    ours = [*target.columns.key, *(field for field in [target.columns.priority] if field)]
    last = target.rows.only(*(field.attname for field in ours)).order_by().first()
    # Where the settings ask for REPEATABLE READ, a limit per key refuses this transaction, though no worker's own.
    with _capturing(target) as captured, suppress(RuntimeError):
        rows.claim_batch(limit, durable=False)
        if last is not None:
            call = checked_call(rows.all(), limit, None, None, False, False)
            call.cursor = Cursor.behind(last, target)
            claim(call)
    return captured
