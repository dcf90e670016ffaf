"""Limits that count by a column: ``limit_per``, and ``serial_by`` of ``serial``.

At most so many rows of one value of the column, a key, are processing at once, over all hosts. Claims of a limited
table wait for one lock, held until they commit, so what one counts no other changes. A claim reads rows in claim order
without locks, chooses those whose keys are below their limit, and claims these by their own keys, which repeats every
condition.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from django.db import models
from django.db.models import Count, Q

from django_taskclaim.columns import claim_columns
from django_taskclaim.db.sql import Key
from django_taskclaim.fields import AnyField
from django_taskclaim.limits.serial import Series, serial_order
from django_taskclaim.policy import Policy, policies_over
from django_taskclaim.querysets.conditions import is_running
from django_taskclaim.querysets.scope import ClaimTarget, Rows, with_keys

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
            self._rows += self._first(with_keys(self.candidates, self.target, elsewhere))

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
