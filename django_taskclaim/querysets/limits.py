"""Limits per key: at most so many rows of one value of a column are processing at once, over all holders and hosts.

Claims of a limited table queue for one lock, held until they commit, so what one counts no other changes. Rows are
read in claim order without locks; those whose keys have room are claimed by their own keys, every condition repeated.
A model without limits comes nowhere near this module's statements.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from django.db import models
from django.db.models import Q
from django.db.models.sql.where import AND

from django_taskclaim.columns import claim_columns
from django_taskclaim.dialects import ClaimedRow, KeyIn, SwitchIsOn
from django_taskclaim.dialects.inspection import real_name
from django_taskclaim.dialects.statements import Key
from django_taskclaim.fields import AnyField
from django_taskclaim.policy import Policy, policies_over
from django_taskclaim.querysets.counting import KeyCount, KeyLimit
from django_taskclaim.querysets.scope import ClaimTarget, Rows
from django_taskclaim.querysets.serial import InTurn, kept_back, serial_order
from django_taskclaim.querysets.transactions import refuse_old_snapshots
from django_taskclaim.states import Status
from django_taskclaim.tokens import clock

#: So many rows in claim order are looked at before keys that have no room are stepped over.
FRONT = 200

#: How often one claim looks further when it is still short.
LOOKS = 5

#: Such a look reads the column of so many rows at a time, goes on behind the last of them at most so often, and takes
#: rows from so many keys.
STEP, STEPS, HEADS = 200, 20, 50

#: For so many seconds what is known of a table's indexes is not asked again.
INDEXES_KNOWN = 60.0

#: Types whose values do not compare as keys do.
NO_KEYS = ("JSONField", "BinaryField")


def limits_over(model: type[models.Model]) -> list[KeyLimit]:
    """Return the limits that a claim through *model* obeys: its own, and those of the models it stands for.

    Raises ValueError in one sentence for a column that cannot be counted by.
    """
    return [limit for policy in policies_over(model) for limit in _limits_of(policy, model)]


def _limits_of(policy: Policy, model: type[models.Model]) -> Iterator[KeyLimit]:
    for name, most in policy.own_limit_per.items():
        yield KeyLimit(_counted(model, name, "limit_per"), most)
    if policy.own_serial_by is not None:
        field = _counted(model, policy.own_serial_by, "serial_by")
        order = serial_order(policy, claim_columns(model))
        yield InTurn(field, 1, order, policy.own_failed_blocks)


def refuse_uncountable(model: type[models.Model], policy: Policy) -> None:
    """Raise ValueError in one sentence for names of columns that no limit of *model* can count by."""
    for _ in _limits_of(policy, model):
        pass


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


def without_room(target: ClaimTarget) -> Q:
    """Match rows of the claim table whose key has as many rows processing as it may; empty without limits."""
    found = Q()
    for limit in limits_over(target.model):
        found |= kept_back(limit, target) if isinstance(limit, InTurn) else _full(limit, target)
    return found


def _full(limit: KeyLimit, target: ClaimTarget) -> Q:
    running = target.rows.order_by().filter(
        **{target.columns.status.name: Status.PROCESSING, f"{limit.name}__isnull": False}
    )
    counts = running.values(limit.name).annotate(n=models.Count("*"))
    full = counts.filter(n__gte=limit.most).values(limit.name)
    return Q(**{f"{limit.name}__in": full})


def refuse_to_count_in_old_snapshots(target: ClaimTarget, options: str) -> None:
    """Raise RuntimeError inside a transaction of the caller's that does not see what others commit."""
    refuse_old_snapshots(target, f"claim_batch() counts what others have claimed for {options}")


def take_limit_lock(target: ClaimTarget) -> None:
    """Let claims of the table that count wait for each other until they commit."""
    target.dialect.queue(f"limits:{target.columns.owner._meta.label_lower}")


class KeyChooser:
    """One claim under the lock: chooses rows whose keys have room, until it has enough of them."""

    def __init__(
        self,
        limits: Sequence[KeyLimit],
        target: ClaimTarget,
        due: Rows,
        switch: SwitchIsOn,
        limit: int,
    ) -> None:
        """*due* are the rows to choose from, in claim order, whatever the *switch* says."""
        self.target, self.due, self.candidates = target, due, due.filter(switch)
        self.limit = limit
        self.counts = [one.count(target) for one in limits]
        self.taken: list[ClaimedRow] = []
        #: What was chosen, whether it was got or not: nothing is tried twice.
        self._tried: set[Key] = set()
        #: What was chosen last, by key, each with its values of the limited columns.
        self._chosen: dict[Key, list[Any]] = {}
        fields = [count.limit.field for count in self.counts]
        key = target.columns.key
        self._fields = [*key, *(field for field in dict.fromkeys(fields) if field not in key)]
        self._seen_at = [self._fields.index(field) for field in fields]

    @property
    def _wanted(self) -> int:
        return self.limit - len(self.taken)

    def choices(self) -> Iterator[tuple[Rows, int]]:
        """Yield rows to claim next, and how many they are; what came of it is noted before the next ones."""
        front = max(FRONT, 4 * self.limit)
        rows = self._read(self.candidates, front)
        yield from self._choose_all(rows)
        more, looks = len(rows) >= front, 0
        while self._wanted and more and looks < LOOKS:
            looks += 1
            limited = next((one for one in self.counts if one.full and self._is_indexed(one)), None)
            if limited is not None:
                rows, more = self._key_by_key(limited)
            else:
                rows = self._read(self._with_room(), front)
                more = len(rows) >= front
            yield from self._choose_all(rows)

    def note(self, rows: Sequence[ClaimedRow]) -> None:
        """Note which of the rows chosen last were claimed. A key that was changed meanwhile counts as it was seen."""
        self.taken += rows
        got = {row.key for row in rows}
        for key, values in self._chosen.items():
            if key not in got:
                self._add(values, -1)

    def _choose_all(self, rows: Sequence[Sequence[Any]]) -> Iterator[tuple[Rows, int]]:
        yield from self._choose(rows)
        # What goes before these, but stands elsewhere in claim order.
        seen = [self.target.table.key_of(row) for row in rows]
        for count in self.counts:
            first = [key for key in count.overlooked(seen) if key not in self._tried]
            if first and self._wanted:
                more = self._read(self._only(self.candidates, first), len(first))
                yield from self._choose(more)

    def _read(self, rows: Rows, most: int) -> list[list[Any]]:
        return self.target.dialect.first(rows, self.target.table, most, self._fields)

    def _choose(self, rows: Sequence[Sequence[Any]]) -> Iterator[tuple[Rows, int]]:
        # Others may have locked some, so the next ones are tried.
        while self._wanted and (chosen := self._with_keys_that_admit(rows)):
            for part in self.target.dialect.chunks(list(chosen), self.target.table):
                self._chosen = {key: chosen[key] for key in part}
                yield self._only(self.candidates.order_by(), part), len(part)

    def _with_keys_that_admit(self, rows: Sequence[Sequence[Any]]) -> dict[Key, list[Any]]:
        """Return the first of *rows* whose keys have room, each with its values of the limited columns."""
        for count, place in zip(self.counts, self._seen_at, strict=True):
            count.learn(row[place] for row in rows)
        chosen: dict[Key, list[Any]] = {}
        for row in rows:
            key = self.target.table.key_of(row)
            values = [row[place] for place in self._seen_at]
            if key in chosen or key in self._tried:
                continue
            if all(one.admits(value, key) for one, value in zip(self.counts, values, strict=True)):
                chosen[key] = values
                self._add(values, 1)
            if len(chosen) == self._wanted:
                break
        self._tried.update(chosen)
        return chosen

    def _add(self, values: Sequence[Any], number: int) -> None:
        for count, value in zip(self.counts, values, strict=True):
            count.add(value, number)

    def _only(self, rows: Rows, keys: Sequence[Key]) -> Rows:
        rows = rows.all()
        # Not by filter(): MySQL is then told "… = TRUE", and finds no index for that.
        rows.query.where.add(KeyIn(self.target.columns.owner, keys), AND)
        return rows

    # Looking further

    def _with_room(self) -> Rows:
        """Return the candidates without the keys known to be full, and without what was tried."""
        rows = self.candidates
        for count in self.counts:
            if full := count.full:
                rows = rows.exclude(**{f"{count.limit.name}__in": full})
        return rows

    def _is_indexed(self, count: KeyCount) -> bool:
        return has_key_index(self.target, count.limit.field)

    def _key_by_key(self, count: KeyCount) -> tuple[list[list[Any]], bool]:
        """Return the first rows of keys that have room, and whether there may be more such keys."""
        found, more = self._next_keys(count)
        keys = count.first_of_each(self.due, found, self._wanted)
        if count.limit.field.null:
            without = self.due.filter(**{f"{count.limit.name}__isnull": True})
            keys += [self.target.table.key_of(row) for row in self._read(without, self._wanted)]
        if not keys:
            return [], more
        return self._read(self._only(self.candidates, keys), len(keys)), more

    def _next_keys(self, count: KeyCount) -> tuple[list[Any], bool]:
        """Step over the index from key to key, from where the last look ended and round to there again.

        Returns keys that have room, and whether the round was not completed.
        """
        place = _place(self.target, count.limit.field)
        start = after = _last_keys.pop(place, None)
        free: dict[Any, None] = {}
        for _ in range(STEPS):
            wrapped = start is not None and after is None
            values = self._values(count, after, start if wrapped else None)
            count.learn(values)
            free.update(dict.fromkeys(key for key in values if count.left(key)))
            at_the_end = len(values) < STEP
            if len(free) >= HEADS:
                _last_keys[place] = list(free)[HEADS - 1]
                return list(free)[:HEADS], True
            if at_the_end and (wrapped or start is None):
                return list(free), False
            after = None if at_the_end else values[-1]
        if after is not None:
            _last_keys[place] = after
        return list(free), True

    def _values(self, count: KeyCount, after: Any, last: Any) -> list[Any]:
        """Return what the next open rows have in the column, in its order: those above *after*, and up to *last*."""
        name, field = count.limit.name, count.limit.field
        bounds = {"gt": after, "lte": last, "isnull": False if field.null else None}
        given = {f"{name}__{how}": bound for how, bound in bounds.items() if bound is not None}
        rows = self.due.filter(**given).order_by(name)
        return [row[0] for row in self.target.dialect.first(rows, self.target.table, STEP, [field])]


# What is known of a table

_last_keys: dict[tuple[str, str, str], Any] = {}
_indexed: dict[tuple[str, str, str], tuple[float, bool]] = {}


def _place(target: ClaimTarget, field: AnyField) -> tuple[str, str, str]:
    return target.alias, target.table.name, field.attname


def has_key_index(target: ClaimTarget, field: AnyField) -> bool:
    """Say whether an index begins with the status and the column, so that the rows of one key can be stepped over."""
    place = _place(target, field)
    asked, there = _indexed.get(place, (-INDEXES_KNOWN, False))
    if clock() - asked >= INDEXES_KNOWN:
        wanted = [real_name(target.columns.status.column), real_name(field.column)]
        known = target.dialect.indexes(target.table)
        there = any([name for name, _ in one[:2]] == wanted for one in known)
        _indexed[place] = clock(), there
    return there
