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
from itertools import chain
from typing import Any

from django.db import models
from django.db.models import Count, Q

from django_taskclaim.columns import claim_columns
from django_taskclaim.db.sql import SQL, Bound, Key, sql
from django_taskclaim.fields import AnyField
from django_taskclaim.policy import Policy, policies_over
from django_taskclaim.querysets import scope
from django_taskclaim.querysets.scope import ClaimTarget, Rows
from django_taskclaim.states import Status

# One limit

#: The heads of so many keys are looked up in one statement.
HEADS_AT_ONCE = 50


class KeyLimit:
    """At most ``most`` rows with one value of ``field`` are processing; rows where it is NULL are not limited.

    With an *order* the rows of a key follow each other in that order: the limit is one of ``serial_by``. It also keeps
    what one claim has learned of the keys.
    """

    def __init__(
        self, field: AnyField, most: int, order: Sequence[Any] = (), *, failed_blocks: bool = True
    ) -> None:
        self.field, self.most, self.order = field, most, order
        #: The field as querysets call it, without a join.
        self.name = field.attname
        #: The states in which nobody works on a row that keeps those behind it back, ``open`` left out.
        self.idle_blocks = [Status.PAUSED, *([Status.FAILED] if failed_blocks else [])]
        #: How many rows of each key are processing. Counted by value: which values are equal, each database says
        #: otherwise.
        self.running: Counter[Any] = Counter()
        #: The keys whose heads were looked up, and the heads found.
        self.looked_up: set[Any] = set()
        self.heads: set[Key] = set()

    def admits(self, key: Key, value: object) -> bool:
        """Say whether the row, which has this value, may be claimed now."""
        if value is None:
            return True
        return self.running[value] < self.most and (not self.order or key in self.heads)

    def full(self, target: ClaimTarget) -> Q:
        """Match rows of keys that have as many rows processing as they may."""
        running = _running(target).filter(**{f"{self.name}__isnull": False})
        counts = running.values(self.name).annotate(taskclaim_running=Count("*"))
        full = counts.filter(taskclaim_running__gte=self.most)
        return Q(**{f"{self.name}__in": full.values(self.name)})

    def keeps_back(self, target: ClaimTarget) -> Q:
        """Match rows of keys of which no row may be claimed, or with an order perhaps none."""
        if not self.order:
            return self.full(target)
        blocks = scope.in_state(target.columns, Status.PROCESSING, *self.idle_blocks)
        blocks |= scope.is_open(target.columns) & scope.is_waiting(target.columns)
        rows = target.rows.order_by().filter(blocks, **{f"{self.name}__isnull": False})
        return Q(**{f"{self.name}__in": rows.values(self.name)})

    def look_up(self, target: ClaimTarget, values: Sequence[object]) -> set[Key]:
        """Find, of each of these keys, the first open row, unless one that keeps it back comes before it."""
        self.looked_up.update(values)
        parts = (values[n : n + HEADS_AT_ONCE] for n in range(0, len(values), HEADS_AT_ONCE))
        found = {head for part in parts for head in self._heads_of(target, part)}
        self.heads |= found
        return found

    def _heads_of(self, target: ClaimTarget, values: Sequence[object]) -> list[Key]:
        table, columns = target.table, target.columns
        parts: list[SQL] = []
        # The index has the state first, so the first open row and the first that blocks are found apart.
        for states in ([Status.OPEN], self.idle_blocks):
            rows = target.rows.filter(scope.in_state(columns, *states), **{self.name: Bound("key")})
            first = target.dialect.compiled(self._in_order(target, rows), 1, columns.key)
            assert first is not None, "rows in some state are possible"
            for value in values:
                key = self.field.get_db_prep_value(value, target.dialect.connection)
                name = f"taskclaim_{len(parts)}"
                parts.append(sql("SELECT * FROM ({}) {}", first.bind({"key": key}), name))
        firsts = table.python_keys(target.dialect.fetch(SQL.join(" UNION ALL ", parts)))
        ordered = self._in_order(target, target.rows.filter(pk__in=firsts))
        names = [field.attname for field in (*columns.key, self.field, columns.status)]
        found: dict[Any, tuple[Any, ...]] = {}
        for row in ordered.values_list(*names):
            found.setdefault(row[-2], row)
        return [table.key_of(row) for row in found.values() if row[-1] == Status.OPEN]

    def _in_order(self, target: ClaimTarget, rows: Rows) -> Rows:
        ordered: Rows = models.QuerySet(target.model).order_by(*self.order)
        return target.in_claim_order(rows, ordered)


def _running(target: ClaimTarget) -> Rows:
    """Return what is processing, for any holder, expired or not."""
    return target.rows.order_by().filter(scope.is_running(target.columns))


# Choosing rows

#: Types of columns whose values are lists and dictionaries, which cannot be counted by value.
NO_KEYS = ("JSONField", "ArrayField", "HStoreField")

#: So many rows in claim order are read at least.
READ_AHEAD = 200

#: How often one claim reads; from the second time on without rows of keys that are known to have no more.
MOST_READS = 6


class KeyChooser:
    """Chooses the first of the *candidates* of a claim whose keys are below their limits, under the lock of these."""

    def __init__(self, target: ClaimTarget, candidates: Rows, limit: int) -> None:
        self.target, self.candidates = target, candidates
        self.limits = limits_over(target.model)
        for one in self.limits:
            one.running.update(_running(target).values_list(one.name, flat=True))
        self._names = [*(f.attname for f in target.columns.key), *(one.name for one in self.limits)]
        self._size, self._reads = max(READ_AHEAD, 4 * limit), 0
        self._heads_wanted = max(HEADS_AT_ONCE, limit)
        #: The values of the limited columns of each row that was read, by the row's key.
        self._rows: dict[Key, tuple[Any, ...]] = {}
        #: The same of what was chosen, whether it was got or not: nothing is tried twice.
        self._tried: dict[Key, tuple[Any, ...]] = {}

    def choose(self, wanted: int) -> list[Key]:
        """Return the keys of up to *wanted* rows to claim next; none where there are no more, or enough was read."""
        chosen: list[Key] = []
        while wanted and not chosen:
            for key, values in self._rows.items():
                if len(chosen) < wanted and key not in self._tried and self._admits(key, values):
                    self._tried[key] = values
                    self._add(values, 1)
                    chosen.append(key)
            if not chosen and not self._read():
                break
        return chosen

    def forget(self, keys: Iterable[Key]) -> None:
        """Take note that these rows were not got: somebody has locked them, or has changed them meanwhile."""
        for key in keys:
            self._add(self._tried[key], -1)

    def _admits(self, key: Key, values: Sequence[object]) -> bool:
        pairs = zip(self.limits, values, strict=True)
        return all(limit.admits(key, value) for limit, value in pairs)

    def _add(self, values: Sequence[object], number: int) -> None:
        for limit, value in zip(self.limits, values, strict=True):
            limit.running[value] += number

    def _read(self) -> bool:
        """Read the first candidates, and the heads of their keys; False where there are no more, or enough was read."""
        if self._reads == MOST_READS:
            return False
        rows = self.candidates
        if self._reads:
            rows = rows.exclude(pk__in=[*self._tried])
            is_last = self._reads + 1 == MOST_READS
            for limit in self.limits:
                # What this claim has taken is processing by now. At last only keys count that nothing keeps back.
                full = (limit.keeps_back if is_last else limit.full)(self.target)
                rows = rows.exclude(full).exclude(**{f"{limit.name}__in": limit.looked_up})
        self._rows = self._first(rows)
        self._reads = self._reads + 1 if self._rows else MOST_READS
        for place, limit in enumerate(self.limits):
            if limit.order:
                self._look_up(limit, dict.fromkeys(v[place] for v in self._rows.values()))
        return bool(self._rows)

    def _look_up(self, limit: KeyLimit, seen: Iterable[object]) -> None:
        """Find the heads of the first keys among the rows that were read."""
        values = [one for one in seen if one is not None and not limit.running[one]]
        if self._reads == 1:
            # Nearly always these are enough.
            values = values[: self._heads_wanted]
        # A row that waited for its retry may stand far behind others of its key.
        if elsewhere := limit.look_up(self.target, values) - self._rows.keys():
            self._rows |= self._first(self.candidates.filter(pk__in=elsewhere))

    def _first(self, rows: Rows) -> dict[Key, tuple[Any, ...]]:
        table = self.target.table
        found = rows.values_list(*self._names)[: self._size]
        return {table.key_of(row): row[len(table.key) :] for row in found}


# Which limits a model has


def limits_over(model: type[models.Model]) -> list[KeyLimit]:
    """Return the limits that a claim through *model* obeys: its own, and those of the models it stands for.

    Raises ValueError in one sentence for a column that cannot be counted by.
    """
    found = (limits_of_policy(model, policy) for policy in policies_over(model).values())
    return list(chain.from_iterable(found))


def limits_of_policy(model: type[models.Model], policy: Policy) -> Iterator[KeyLimit]:
    """Yield the limits that *policy* names; ValueError as of ``limits_over``."""
    for name, most in policy.limit_per.items():
        yield KeyLimit(_counted(model, name, "limit_per"), most)
    if policy.serial_by is not None:
        field = _counted(model, policy.serial_by, "serial_by")
        columns = claim_columns(model)
        # Without ``not_before``, for a row that waits for its retry keeps its place.
        usual = [] if columns.priority is None else [f"-{columns.priority.name}"]
        order = [*(policy.order_by or usual), *(one.attname for one in columns.key)]
        yield KeyLimit(field, 1, order, failed_blocks=policy.failed_blocks)


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
        found |= limit.keeps_back(target)
    return found
