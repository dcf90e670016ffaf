"""Limits per key: at most so many rows of one value of a column are processing at once, over all holders and hosts.

Claims of a limited table queue for one lock, held until they commit, so what one counts no other changes. Rows are
read in claim order without locks; those whose keys have room are claimed by their own keys, every condition repeated.
A model without limits comes nowhere near this module's statements.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from django.db import models
from django.db.models import Q
from django.db.models.sql.where import AND

from django_taskclaim.columns import claim_columns
from django_taskclaim.dialects import ClaimOrder, KeyIn
from django_taskclaim.dialects.inspection import real_name
from django_taskclaim.dialects.statements import Key
from django_taskclaim.fields import AnyField
from django_taskclaim.policy import Policy, policies_over
from django_taskclaim.querysets.counting import KeyCount, KeyLimit
from django_taskclaim.querysets.scope import Desk, Rows
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

Undo: TypeAlias = Callable[[Sequence[Key]], Any]


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


def without_room(desk: Desk) -> Q:
    """Match rows of the claim table whose key has as many rows processing as it may; empty without limits."""
    found = Q()
    for limit in limits_over(desk.model):
        found |= kept_back(limit, desk) if isinstance(limit, InTurn) else _full(limit, desk)
    return found


def _full(limit: KeyLimit, desk: Desk) -> Q:
    running = desk.rows.order_by().filter(
        **{desk.columns.status.name: Status.PROCESSING, f"{limit.name}__isnull": False}
    )
    counts = running.values(limit.name).annotate(n=models.Count("*"))
    full = counts.filter(n__gte=limit.most).values(limit.name)
    return Q(**{f"{limit.name}__in": full})


def line_up(order: ClaimOrder, desk: Desk, options: str) -> bool:
    """Let claims of the table that count wait for each other until they commit; False where there is nothing to take.

    Raises RuntimeError inside a transaction of the caller's that does not see what others commit.
    """
    refuse_old_snapshots(desk, f"claim_batch() counts what others have claimed for {options}")
    # Nothing to take is nothing to queue for; who is the only writer has queued already.
    if not desk.dialect.has_one_writer and not desk.dialect.first(
        order.candidates, desk.table, 1, desk.columns.key
    ):
        return False
    desk.dialect.queue(f"limits:{desk.columns.owner._meta.label_lower}")
    return True


def take_within(
    limits: Sequence[KeyLimit], order: ClaimOrder, due: Rows, desk: Desk, undo: Undo
) -> list[list[Any]]:
    """Claim up to ``order.limit`` rows so that no key exceeds its limit, and return the wanted columns of each.

    ``order.returning`` must name the columns of the limits; *due* are its candidates whatever the switch says. *undo*
    opens rows again that were just claimed. Raises what ``line_up`` raises.
    """
    if not line_up(order, desk, _options(limits)):
        return []
    return _Taking(order, due, desk, [limit.count(desk) for limit in limits], undo).run()


def _options(limits: Sequence[KeyLimit]) -> str:
    names = ["serial_by" if isinstance(limit, InTurn) else "limit_per" for limit in limits]
    return " and ".join(dict.fromkeys(names))


class _Taking:
    """One claim under the lock: looks at rows, and takes those whose keys have room."""

    def __init__(
        self, order: ClaimOrder, due: Rows, desk: Desk, counts: Sequence[KeyCount], undo: Undo
    ) -> None:
        self.order = order
        self.due = due
        self.desk = desk
        self.counts = counts
        self.undo = undo
        self.taken: list[list[Any]] = []
        #: What was chosen, whether it was got or not: nothing is tried twice.
        self._tried: set[Key] = set()
        fields = [count.limit.field for count in counts]
        key = desk.columns.key
        self._fields = [*key, *(field for field in dict.fromkeys(fields) if field not in key)]
        self._seen_at = [self._fields.index(field) for field in fields]
        self._returned_at = [list(order.returning).index(field) for field in fields]

    @property
    def _wanted(self) -> int:
        return self.order.limit - len(self.taken)

    def run(self) -> list[list[Any]]:
        front = max(FRONT, 4 * self.order.limit)
        rows = self._read(self.order.candidates, front)
        self._take(rows)
        self._take_overlooked(rows)
        more, looks = len(rows) >= front, 0
        while self._wanted and more and looks < LOOKS:
            looks += 1
            limited = next((one for one in self.counts if one.full and self._is_indexed(one)), None)
            if limited is not None:
                rows, more = self._key_by_key(limited)
            else:
                rows = self._read(self._with_room(), front)
                more = len(rows) >= front
            self._take(rows)
            self._take_overlooked(rows)
        return self.taken

    def _take_overlooked(self, seen: Sequence[Sequence[Any]]) -> None:
        """Take what goes before rows that were *seen*, but stands elsewhere in claim order."""
        keys = [self.desk.table.key_of(row) for row in seen]
        for count in self.counts:
            first = [key for key in count.overlooked(keys) if key not in self._tried]
            if first and self._wanted:
                self._take(self._read(self._only(self.order.candidates, first), len(first)))

    def _read(self, rows: Rows, most: int) -> list[list[Any]]:
        return self.desk.dialect.first(rows, self.desk.table, most, self._fields)

    # Taking what has room

    def _take(self, rows: Sequence[Sequence[Any]]) -> None:
        # Others may have locked some, so the next ones are tried.
        while self._wanted and (chosen := self._choose(rows)):
            for part in self.desk.dialect.chunks(list(chosen), self.desk.table):
                self._claim({key: chosen[key] for key in part})

    def _choose(self, rows: Sequence[Sequence[Any]]) -> dict[Key, list[Any]]:
        """Return the first of *rows* whose keys have room, each with its values of the limited columns."""
        for count, place in zip(self.counts, self._seen_at, strict=True):
            count.learn(row[place] for row in rows)
        chosen: dict[Key, list[Any]] = {}
        for row in rows:
            key = self.desk.table.key_of(row)
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

    def _claim(self, chosen: dict[Key, list[Any]]) -> None:
        order = replace(
            self.order,
            rows=lambda: self._only(self.order.candidates.order_by(), list(chosen)),
            simple=False,
            limit=len(chosen),
        )
        got = self.desk.dialect.claim(order, self.desk.columns)
        # Some strategies return all that the holder has.
        rows = {self.desk.table.key_of(row): row for row in got}
        for key, values in chosen.items():
            row = rows.get(key)
            if row is not None and [row[place] for place in self._returned_at] == values:
                self.taken.append(row)
                continue
            self._add(values, -1)
            if row is not None:
                # Its key was changed between the look and the claim, and nothing is known of the new one.
                self.undo([key])

    def _add(self, values: Sequence[Any], number: int) -> None:
        for count, value in zip(self.counts, values, strict=True):
            count.add(value, number)

    def _only(self, rows: Rows, keys: Sequence[Key]) -> Rows:
        rows = rows.all()
        # Not by filter(): MySQL is then told "… = TRUE", and finds no index for that.
        rows.query.where.add(KeyIn(self.desk.columns.owner, keys), AND)
        return rows

    # Looking further

    def _with_room(self) -> Rows:
        """Return the candidates without the keys known to be full, and without what was tried."""
        rows = self.order.candidates
        for count in self.counts:
            if full := count.full:
                rows = rows.exclude(**{f"{count.limit.name}__in": full})
        return rows

    def _is_indexed(self, count: KeyCount) -> bool:
        return has_key_index(self.desk, count.limit.field)

    def _key_by_key(self, count: KeyCount) -> tuple[list[list[Any]], bool]:
        """Return the first rows of keys that have room, and whether there may be more such keys."""
        found, more = self._next_keys(count)
        keys = count.first_of_each(self.due, found, self._wanted)
        if count.limit.field.null:
            without = self.due.filter(**{f"{count.limit.name}__isnull": True})
            keys += [self.desk.table.key_of(row) for row in self._read(without, self._wanted)]
        if not keys:
            return [], more
        return self._read(self._only(self.order.candidates, keys), len(keys)), more

    def _next_keys(self, count: KeyCount) -> tuple[list[Any], bool]:
        """Step over the index from key to key, from where the last look ended and round to there again.

        Returns keys that have room, and whether the round was not completed.
        """
        place = _place(self.desk, count.limit.field)
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
        return [row[0] for row in self.desk.dialect.first(rows, self.desk.table, STEP, [field])]


# What is known of a table

_last_keys: dict[tuple[str, str, str], Any] = {}
_indexed: dict[tuple[str, str, str], tuple[float, bool]] = {}


def _place(desk: Desk, field: AnyField) -> tuple[str, str, str]:
    return desk.alias, desk.table.name, field.attname


def has_key_index(desk: Desk, field: AnyField) -> bool:
    """Say whether an index begins with the status and the column, so that the rows of one key can be stepped over."""
    place = _place(desk, field)
    asked, there = _indexed.get(place, (-INDEXES_KNOWN, False))
    if clock() - asked >= INDEXES_KNOWN:
        wanted = [real_name(desk.columns.status.column), real_name(field.column)]
        known = desk.dialect.indexes(desk.table)
        there = any([name for name, _ in one[:2]] == wanted for one in known)
        _indexed[place] = clock(), there
    return there
