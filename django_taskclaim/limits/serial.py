"""Rows of one key one at a time and in order: ``serial_by``.

The first row of a key that is not done is its head. Only a head is claimed, and only while no row of its key is
processing; one that waits, is paused or has failed keeps the others of its key back, and nobody else.
"""

from collections.abc import Sequence
from typing import Any

from django.db import models
from django.db.models import Q

from django_taskclaim.columns import ClaimColumns
from django_taskclaim.db import Bound
from django_taskclaim.db.sql import SQL, Key
from django_taskclaim.fields import AnyField
from django_taskclaim.policy import Policy
from django_taskclaim.querysets.conditions import in_state, is_open, is_waiting
from django_taskclaim.querysets.scope import ClaimTarget, Rows, in_claim_order, with_keys
from django_taskclaim.states import Status

#: The heads of so many keys are looked up in one statement.
HEADS_AT_ONCE = 25


class Series:
    """The heads of keys, as one claim has found them: the first rows in ``order`` that are not done."""

    def __init__(self, order: Sequence[Any], *, failed_blocks: bool) -> None:
        self.order = order
        #: The states in which nobody works on a row that keeps those behind it back, ``open`` left out.
        self.idle_blocks = [Status.PAUSED, *([Status.FAILED] if failed_blocks else [])]
        #: Rows that may go next, and the keys that were looked at for them.
        self.heads: set[Key] = set()
        self.looked_up: set[Any] = set()

    def look_up(self, target: ClaimTarget, field: AnyField, values: Sequence[object]) -> list[Key]:
        """Find the heads of the first few of these keys, and return the new ones."""
        some = [value for value in values if value not in self.looked_up][:HEADS_AT_ONCE]
        heads = self._heads_of(target, field, some)
        self.looked_up.update(some)
        self.heads.update(heads)
        return heads

    def keeps_back(self, target: ClaimTarget, name: str) -> Q:
        """Match rows of keys of which a row is running, waits, is paused or has failed."""
        blocks = in_state(target.columns, Status.PROCESSING, *self.idle_blocks)
        blocks |= is_open(target.columns) & is_waiting(target.columns)
        rows = target.rows.order_by().filter(blocks, **{f"{name}__isnull": False})
        return Q(**{f"{name}__in": rows.values(name)})

    def _heads_of(
        self, target: ClaimTarget, field: AnyField, values: Sequence[object]
    ) -> list[Key]:
        """Return, of each of these keys, the first open row, unless one that keeps it back comes before it."""
        table, columns = target.table, target.columns
        parts: list[SQL] = []
        # The index has the state first, so the first open row and the first that blocks are found apart.
        for states in ([Status.OPEN], self.idle_blocks):
            rows = target.rows.filter(in_state(columns, *states), **{field.attname: Bound("key")})
            first = target.dialect.compiled(self._in_order(target, rows), 1, columns.key)
            assert first is not None, "rows in some state are possible"
            for value in values:
                key = field.get_db_prep_value(value, target.dialect.connection)
                params = [key if type(one) is Bound else one for one in first.params]
                parts.append(
                    SQL(f"SELECT * FROM ({first.text}) taskclaim_{len(parts)}", (*params,))
                )
        firsts = table.python_keys(target.dialect.fetch(SQL.join(" UNION ALL ", parts)))
        if not firsts:
            return []
        ordered = self._in_order(target, with_keys(target.rows, target, firsts))
        fields = list(dict.fromkeys([*columns.key, field, columns.status]))
        heads: dict[Any, list[Any]] = {}
        for row in target.dialect.first(ordered, table, len(firsts), fields):
            heads.setdefault(row[fields.index(field)], row)
        return [table.key_of(row) for row in heads.values() if row[-1] == Status.OPEN]

    def _in_order(self, target: ClaimTarget, rows: Rows) -> Rows:
        asked: Rows = models.QuerySet(target.model).order_by(*self.order)
        return in_claim_order(rows, asked, target)


def serial_order(policy: Policy, columns: ClaimColumns) -> list[object]:
    """Return the order of the rows of one key: the policy's own, else by priority and key.

    Without ``not_before``, for a row that waits for its retry keeps its place.
    """
    key = [field.attname for field in columns.key]
    if policy.order_by:
        return [*policy.order_by, *key]
    priority = columns.priority
    return [*([] if priority is None else [f"-{priority.name}"]), *key]
