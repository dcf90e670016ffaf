"""Limits that count by a column: ``limit_per`` and ``serial_by``.

At most so many rows of one value of the column, a key, are processing at once, over all hosts. Claims of a limited
table wait for one lock, held until they commit, so what one counts no other changes. A claim reads rows in claim order
without locks, chooses those whose keys are below their limit, and claims these by their own keys, which repeats every
condition.

``serial_by``: the first row of a key that is not done is its head. Only a head is claimed, and only while no row of its
key is processing. A head that waits, is paused or has failed keeps back the others of its key, and nobody else.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from django.db import models
from django.db.models import Count, Q

from django_taskclaim.columns import ClaimColumns, claim_columns
from django_taskclaim.db import Bound
from django_taskclaim.db.sql import SQL, Key
from django_taskclaim.fields import AnyField
from django_taskclaim.policy import Policy, policies_over
from django_taskclaim.querysets.scope import (
    ClaimTarget,
    Rows,
    in_claim_order,
    in_state,
    is_open,
    is_running,
    is_waiting,
)
from django_taskclaim.states import Status

# serial_by

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
        ordered = self._in_order(target, target.rows.filter(pk__in=firsts))
        fields = list(dict.fromkeys([*columns.key, field, columns.status]))
        heads: dict[Any, list[Any]] = {}
        for row in target.dialect.first(ordered, table, len(firsts), fields):
            heads.setdefault(row[fields.index(field)], row)
        return [table.key_of(row) for row in heads.values() if row[-1] == Status.OPEN]

    def _in_order(self, target: ClaimTarget, rows: Rows) -> Rows:
        ordered: Rows = models.QuerySet(target.model).order_by(*self.order)
        return in_claim_order(rows, ordered, target)


def serial_order(policy: Policy, columns: ClaimColumns) -> list[object]:
    """Return the order of the rows of one key: the policy's own, else by priority and key.

    Without ``not_before``, for a row that waits for its retry keeps its place.
    """
    key = [field.attname for field in columns.key]
    if policy.order_by:
        return [*policy.order_by, *key]
    priority = columns.priority
    return [*([] if priority is None else [f"-{priority.name}"]), *key]


# Choosing rows

#: Types whose values do not compare as keys do.
NO_KEYS = ("JSONField", "BinaryField")

#: So many rows in claim order are read before those of keys at their limit are left out.
READ_AHEAD = 200

#: How often one claim reads more when it is still short.
MORE_READS = 5


class KeyLimit(NamedTuple):
    """At most ``most`` rows with one value of ``field`` are processing; rows where it is NULL are not limited."""

    field: AnyField
    most: int
    #: For ``serial_by``: in which order the rows of a key follow each other, and which are first.
    series: Series | None = None

    @property
    def name(self) -> str:
        """The field as querysets call it, without a join."""
        return self.field.attname

    def full(self, target: ClaimTarget) -> Q:
        """Match rows of keys that have as many rows processing as they may."""
        running = _running(target).filter(**{f"{self.name}__isnull": False})
        counts = running.values(self.name).annotate(n=Count("*"))
        return Q(**{f"{self.name}__in": counts.filter(n__gte=self.most).values(self.name)})


def _running(target: ClaimTarget) -> Rows:
    """Return what is processing, for any holder, expired or not."""
    return target.rows.order_by().filter(is_running(target.columns))


class KeyChooser:
    """Chooses, under the lock, the first of the *candidates* of a claim whose keys are below their limits."""

    def __init__(self, target: ClaimTarget, candidates: Rows, limit: int) -> None:
        self.target, self.candidates = target, candidates
        self.limits = limits_over(target.model)
        #: How many rows of each key are processing. Counted by value: which values are equal, each database says
        #: otherwise.
        self._running = [
            Counter(_running(target).values_list(one.name, flat=True)) for one in self.limits
        ]
        limited = [one.field for one in self.limits]
        self._fields = list(dict.fromkeys([*target.columns.key, *limited]))
        self._places = [self._fields.index(field) for field in limited]
        self._most = max(READ_AHEAD, 4 * limit)
        self._reads = 0
        self._rows: list[list[Any]] = []
        #: What was chosen, whether it was got or not, with its values: nothing is tried twice.
        self._tried: dict[Key, list[Any]] = {}

    def choose(self, wanted: int) -> list[Key]:
        """Return the keys of up to *wanted* rows to claim next; none where there are no more, or enough was read."""
        while True:
            chosen = list(islice(self._admitted(), wanted))
            if chosen or not wanted or not self._read():
                return chosen

    def forget(self, keys: Iterable[Key]) -> None:
        """Take note that these rows were not got: somebody has locked them, or has changed them meanwhile."""
        for key in keys:
            self._add(self._tried[key], -1)

    def _admitted(self) -> Iterator[Key]:
        # What is found for a series is added while this goes on.
        for row in self._rows:
            key, values = self.target.table.key_of(row), [row[place] for place in self._places]
            if key not in self._tried and self._admits(key, values):
                self._tried[key] = values
                self._add(values, 1)
                yield key

    def _admits(self, key: Key, values: Sequence[object]) -> bool:
        """Say whether the row may be claimed now."""
        for number, (limit, value) in enumerate(zip(self.limits, values, strict=True)):
            if value is None:
                continue
            if self._running[number][value] >= limit.most:
                return False
            if limit.series is not None:
                if value not in limit.series.looked_up:
                    self._look_up(number, limit.series, value)
                if key not in limit.series.heads:
                    return False
        return True

    def _look_up(self, number: int, series: Series, value: object) -> None:
        """Find the heads of this key and of those that are expected next."""
        place, running = self._places[number], self._running[number]
        expected = dict.fromkeys([value, *[row[place] for row in self._rows]])
        values = [one for one in expected if one is not None and not running[one]]
        heads = series.look_up(self.target, self.limits[number].field, values)
        # A row that waited for its retry may stand far behind others of its key.
        known = {self.target.table.key_of(row) for row in self._rows}
        if elsewhere := [head for head in heads if head not in known]:
            self._rows += self._first(self.candidates.filter(pk__in=elsewhere))

    def _add(self, values: Sequence[object], number: int) -> None:
        for running, value in zip(self._running, values, strict=True):
            running[value] += number

    def _read(self) -> bool:
        """Read more candidates, at first without a look at limits; False where there are no more."""
        if self._reads > MORE_READS or (self._reads and len(self._rows) < self._most):
            return False
        rows = self.candidates
        for limit in self.limits if self._reads else ():
            # What this claim has taken is processing by now.
            rows = rows.exclude(limit.full(self.target))
            if limit.series is not None and limit.series.looked_up:
                rows = rows.exclude(**{f"{limit.name}__in": limit.series.looked_up})
        self._reads += 1
        self._rows = self._first(rows)
        return bool(self._rows)

    def _first(self, rows: Rows) -> list[list[Any]]:
        return self.target.dialect.first(rows, self.target.table, self._most, self._fields)


# Which limits a model has


def limits_over(model: type[models.Model]) -> list[KeyLimit]:
    """Return the limits that a claim through *model* obeys: its own, and those of the models it stands for.

    Raises ValueError in one sentence for a column that cannot be counted by.
    """
    return [
        limit
        for policy in policies_over(model).values()
        for limit in limits_of_policy(model, policy)
    ]


def limits_of_policy(model: type[models.Model], policy: Policy) -> list[KeyLimit]:
    """Return the limits that *policy* names; ValueError as of ``limits_over``."""
    found = [
        KeyLimit(_counted(model, name, "limit_per"), most)
        for name, most in policy.limit_per.items()
    ]
    if policy.serial_by is not None:
        field = _counted(model, policy.serial_by, "serial_by")
        order = serial_order(policy, claim_columns(model))
        found.append(KeyLimit(field, 1, Series(order, failed_blocks=policy.failed_blocks)))
    return found


def _counted(model: type[models.Model], name: str, option: str) -> AnyField:
    columns = claim_columns(model)
    meta = columns.owner._meta
    own = {
        each: field for field in meta.local_concrete_fields for each in (field.name, field.attname)
    }
    field = own.get(name)
    if field is None:
        raise ValueError(
            f"{option} counts by columns of {meta.label}, the table with the claim columns;"
            f" {name!r} is none of them."
        )
    if field in columns.guarded or field.get_internal_type() in NO_KEYS:
        what = "a claim column" if field in columns.guarded else f"a {type(field).__name__}"
        raise ValueError(f"{option} cannot count by {name!r}, which is {what}.")
    return field


def at_their_limit(target: ClaimTarget) -> Q:
    """Match rows of the claim table that an empty claim may have left for a limit; empty without limits."""
    found = Q()
    for limit in limits_over(target.model):
        blocks = limit.full(target)
        found |= blocks if limit.series is None else limit.series.keeps_back(target, limit.name)
    return found
