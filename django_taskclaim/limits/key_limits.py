"""Limits that count by a column: ``limit_per``, and ``serial_by`` of ``serial``.

At most so many rows of one value of the column, a key, are processing at once, over all hosts. Claims of a limited
table wait for one lock, held until they commit, so what one counts no other changes. A claim reads rows in claim order
without locks, chooses those whose keys are below their limit, and claims these by their own keys, which repeats every
condition.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

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


class KeyLimit:
    """At most ``most`` rows with one value of ``field`` are processing; rows where it is NULL are not limited.

    Made for one claim: it counts the rows of each key once.
    """

    def __init__(self, field: AnyField, most: int, series: Series | None = None) -> None:
        self.field, self.most = field, most
        #: For ``serial_by``: in which order the rows of a key follow each other.
        self.series = series
        #: The field as querysets call it, without a join.
        self.name = field.attname
        #: How many rows of each key are processing, for any holder, expired or not.
        self.running: Counter[Any] = Counter()

    def count(self, target: ClaimTarget, values: Iterable[object]) -> None:
        """Count what is processing of these keys, by value: what two values are equal each database says otherwise."""
        new = [one for one in dict.fromkeys(values) if one is not None and one not in self.running]
        for part in target.dialect.chunks(new, target.table):
            rows = _running(target).filter(**{f"{self.name}__in": part})
            found = Counter(rows.values_list(self.name, flat=True))
            self.running.update({key: found[key] for key in part})

    def full(self, target: ClaimTarget) -> Q:
        """Match rows of keys that have as many rows processing as they may."""
        running = _running(target).filter(**{f"{self.name}__isnull": False})
        counts = running.values(self.name).annotate(n=Count("*"))
        return Q(**{f"{self.name}__in": counts.filter(n__gte=self.most).values(self.name)})

    def without_closed(self, target: ClaimTarget, rows: Rows) -> Rows:
        """Return *rows* without those of keys of which this claim takes no more."""
        closed = [key for key, number in self.running.items() if number >= self.most]
        if self.series is not None:
            closed += self.series.looked_up
        if closed:
            rows = rows.exclude(**{f"{self.name}__in": closed})
        return rows.exclude(self.full(target))


def _running(target: ClaimTarget) -> Rows:
    return target.rows.order_by().filter(is_running(target.columns))


class KeyChooser:
    """Chooses, under the lock, the first of the *candidates* of a claim whose keys are below their limits."""

    def __init__(self, target: ClaimTarget, candidates: Rows, limit: int) -> None:
        self.target, self.candidates = target, candidates
        self.limits = limits_over(target.model)
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
        for limit, value in zip(self.limits, values, strict=True):
            if value is None:
                continue
            if limit.running[value] >= limit.most:
                return False
            if limit.series is not None and not self._is_head(limit, limit.series, value, key):
                return False
        return True

    def _is_head(self, limit: KeyLimit, series: Series, value: object, key: Key) -> bool:
        """Say whether the row is the first of its key; looks up the next few keys together."""
        if value not in series.looked_up:
            place = self._places[self.limits.index(limit)]
            expected = dict.fromkeys([value, *[row[place] for row in self._rows]])
            values = [
                one for one in expected if one is not None and limit.running[one] < limit.most
            ]
            heads = series.look_up(self.target, limit.field, values)
            # A row that waited for its retry may stand far behind others of its key.
            known = {self.target.table.key_of(row) for row in self._rows}
            if elsewhere := [head for head in heads if head not in known]:
                self._look_at(with_keys(self.candidates, self.target, elsewhere), len(elsewhere))
        return key in series.heads

    def _add(self, values: Sequence[object], number: int) -> None:
        for limit, value in zip(self.limits, values, strict=True):
            limit.running[value] += number

    def _read(self) -> bool:
        """Read more candidates, at first without a look at limits; False where there are no more."""
        if self._reads > MORE_READS or (self._reads and len(self._rows) < self._most):
            return False
        rows = self.candidates
        for limit in self.limits if self._reads else ():
            rows = limit.without_closed(self.target, rows)
        self._reads += 1
        self._rows = []
        self._look_at(rows, self._most)
        return bool(self._rows)

    def _look_at(self, rows: Rows, most: int) -> None:
        found = self.target.dialect.first(rows, self.target.table, most, self._fields)
        for limit, place in zip(self.limits, self._places, strict=True):
            limit.count(self.target, [row[place] for row in found])
        self._rows += found


# Which limits a model has


def limits_over(model: type[models.Model]) -> list[KeyLimit]:
    """Return the limits that a claim through *model* obeys: its own, and those of the models it stands for.

    Raises ValueError in one sentence for a column that cannot be counted by.
    """
    return [limit for policy in policies_over(model) for limit in limits_of_policy(model, policy)]


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
