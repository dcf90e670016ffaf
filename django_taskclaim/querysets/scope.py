"""What a verb works on, and how its statements are sent.

It works on the table that holds the claims of a queryset's rows, and on those rows as its own queryset. It sends its
statements in a transaction of their own, and again when the database is contended. Where a COMMIT was not answered,
``run`` raises ``AmbiguousCommit``, and the caller asks the rows by ``writes.finished_rows``.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from typing import Any, Final, TypeVar, cast

from django.db import DatabaseError, Error, OperationalError, connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Q
from django.db.models.expressions import Col
from django.db.models.query import ModelIterable

from django_taskclaim.columns import ClaimColumns, KeyColumns, claim_columns, memoized
from django_taskclaim.connecting import drop_broken
from django_taskclaim.contention import WAITS_ONCE, is_contention, is_refusal, retry_on_contention
from django_taskclaim.db import DatabaseNow, dialect_for
from django_taskclaim.db.base import Dialect
from django_taskclaim.db.sql import SQL, Bound, ClaimStatement, KeyTable, Table, sql, value
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.fields import NEVER_WAITED, QUARANTINED
from django_taskclaim.policy import policy_for
from django_taskclaim.states import Status

R = TypeVar("R")

Rows = models.QuerySet[Any]

#: A connection keeps the claim targets of models under this name. A global map would keep the connection alive.
TARGETS = "_taskclaim_targets"


# What the verbs set in the claim columns, by the roles of these


class Computed(Enum):
    """What only the database knows: its clock, the end of a lease that begins now, and the number stored plus one."""

    NOW, LEASE_END, ONE_MORE = range(3)


Columns = Mapping[str, Any]

NOW: Final = Computed.NOW
ONE_MORE: Final = Computed.ONE_MORE

#: A claim binds its holder, and its lease in seconds, in the cached statement.
CLAIMED: Columns = {
    "status": Status.PROCESSING,
    "claimed_at": NOW,
    "expires_at": Computed.LEASE_END,
    "claimed_by": Bound("holder"),
}

COMPLETED: Columns = {"status": Status.COMPLETE, "completed_at": NOW, "expires_at": None}

FAILED: Columns = {"status": Status.FAILED, "expires_at": None}

#: Open and held by nobody. No token was ever issued for the iteration.
OPEN_AGAIN: Columns = {
    "status": Status.OPEN,
    "claimed_at": None,
    "expires_at": None,
    "iteration": ONE_MORE,
    "claimed_by": None,
}

#: As if the row had never failed.
AS_NEW: Columns = {"attempts": 0, "last_error": "", "error_class": ""}


# What a verb works on


@dataclass(frozen=True, slots=True)
class Target:
    """Where the rows of one model are locked: the key, the table and the database's dialect."""

    model: type[models.Model]
    alias: str
    columns: KeyColumns
    dialect: Dialect
    table: KeyTable

    @classmethod
    def of_rows(cls, model: type[models.Model], alias: str) -> "Target":
        """Return the target of *model*, which needs no claim columns, on the database *alias*.

        Rows of an inherited table are locked on its topmost one, which all its heirs share.
        """
        owner: type[models.Model] = model._meta.concrete_model or model
        while above := [one for one, link in owner._meta.parents.items() if link is not None]:
            owner = above[0]
        columns, dialect = KeyColumns(owner), dialect_for(connections[alias])
        return Target(model, alias, columns, dialect, KeyTable(columns, dialect.connection))

    @property
    def rows(self) -> Rows:
        """Every row of the table, those that managers hide too."""
        return models.QuerySet(self.columns.owner, using=self.alias)

    def rows_of(self, queryset: Rows) -> Rows:
        """Return the rows of *queryset* as a queryset over this table alone, unordered.

        Filters over joins or inheritance become ``pk IN (subquery)``; a plain filter is carried over as it is.
        """
        rows, where = self.rows.order_by(), queryset.query.where
        path = self.columns.key_path(queryset.model)
        if path != "pk" or (where and not is_of_one_table(queryset)):
            keys = queryset.order_by().select_related(None).values(path)
            return rows.filter(pk__in=keys)
        rows.query.get_initial_alias()
        rows.query.where = where.clone()
        return rows

    def in_claim_order(self, rows: Rows, queryset: Rows) -> Rows:
        """Order *rows* as *queryset* asks, or as the model's claims are ordered; ``Meta.ordering`` is ignored."""
        asked = queryset.query.order_by
        if not asked:
            return rows.order_by(*self.columns.order)
        ordered = rows.order_by(*(_from_owner(item, queryset.model, self) for item in asked))
        return ordered if queryset.query.standard_ordering else ordered.reverse()


@dataclass(frozen=True, slots=True)
class ClaimTarget(Target):
    """Where the claims of one model are written: the target has the claim columns."""

    columns: ClaimColumns
    table: Table
    #: Whether the model's own table has the claim columns.
    is_owner: bool
    #: The cached statements of plain claims.
    statements: dict[Hashable, ClaimStatement | None] = field(default_factory=dict)

    @classmethod
    def of(cls, model: type[models.Model], alias: str) -> "ClaimTarget":
        """Return the claim target of *model* on the database *alias*."""
        connection = connections[alias]
        known: dict[Any, ClaimTarget] = vars(connection).setdefault(TARGETS, {})
        target = known.get(model)
        if target is None or target.alias != alias:
            columns, dialect = claim_columns(model), dialect_for(connection)
            table, is_owner = Table(columns, connection), columns.owned_by(model)
            target = known[model] = cls(model, alias, columns, dialect, table, is_owner)
        return target

    @classmethod
    def over(cls, queryset: Rows) -> "ClaimTarget":
        """Return the claim target of *queryset*, which from now on is sent where rows are written.

        TypeError where no row can be claimed or changed through it.
        """
        refuse_unclaimable(queryset)
        vars(queryset)["_for_write"] = True
        return cls.of(queryset.model, queryset.db)

    def setting(self, columns: Columns) -> list[SQL]:
        """Return the SET of claim columns, which are named by their roles; those that the model lacks are left out.

        A timedelta is the moment so long from now by the database's clock; for ``expires_at`` it shortens no lease.
        """
        table, found = self.table, []
        for role, to in columns.items():
            column = getattr(self.columns, role)
            if column is None:
                continue
            name = table.column(column)
            match to:
                case None:
                    stored = SQL("NULL")
                case Status():
                    stored = SQL(f"'{to.value}'")
                case timedelta() if role == "expires_at":
                    found.append(self.dialect.extension(table, to))
                    continue
                case timedelta():
                    stored = self.dialect.later(to)
                case Computed.NOW:
                    stored = SQL(self.dialect.now)
                case Computed.LEASE_END:
                    stored = sql(self.dialect.moment_after, value(Bound("lease")))
                case Computed.ONE_MORE:
                    stored = SQL(f"{name} + 1")
                case datetime():
                    stored = value(column.get_db_prep_save(to, self.dialect.connection))
                case _:
                    stored = value(to)
            found.append(SQL(f"{name} = {stored.text}", stored.params))
        return found

    def is_writable(self) -> bool:
        """Say whether the database takes writes of the table now; asks it to write no row."""
        try:
            self.dialect.wait_to_write(self.table)
        except DatabaseError:
            return False
        return True


def refuse_unclaimable(queryset: Rows) -> None:
    """Raise TypeError for a queryset that no row can be claimed or changed through."""
    query = queryset.query
    selects = vars(queryset)["_fields"] is not None or query.values_select or query.select
    reasons = {
        f"a {query.combinator}()": query.combinator,
        "a slice; give the number of rows to the verb instead": query.is_sliced,
        "an aggregate": query.group_by is not None,
        "distinct() on fields": query.distinct_fields,
        "values()": selects,
        "a condition on a window function": query.where.contains_over_clause,
    }
    if found := [reason for reason, holds in reasons.items() if holds]:
        raise TypeError(
            f"The rows of {queryset.model.__name__} cannot be reached through {found[0]}."
        )


def is_of_one_table(queryset: Rows) -> bool:
    """Say whether no join of the queryset's conditions can show a row twice, or leave it out."""
    query = queryset.query
    used = {alias for alias, count in query.alias_refcount.items() if count}
    joined = used - {queryset.model._meta.db_table}
    return not (joined or query.distinct or query.extra_tables)


#: The usual way in which a row fetches what it lacks; None before Django 6.1.
FETCH_ONE = getattr(models, "FETCH_ONE", None)


def is_plain(queryset: Rows, target: ClaimTarget) -> bool:
    """Say whether the claim statement's own columns make the instances, so that no second read is needed."""
    query = queryset.query
    return (
        target.is_owner
        and not target.columns.owner._meta.parents
        and reads_plain_columns(target.columns.owner)
        and queryset._iterable_class is ModelIterable
        and not query.select_related
        and not query.annotations
        and not query.extra
        and query.deferred_loading == (frozenset(), True)
        and not query.order_by
        # Django 6.1 sets the fetch mode on the rows that it reads.
        and getattr(queryset, "_fetch_mode", FETCH_ONE) is FETCH_ONE
    )


@memoized
def reads_plain_columns(model: type[models.Model]) -> bool:
    """Say whether Django reads the columns of *model* as they are; some of GeoDjango's it reads by an expression."""
    fields = model._meta.concrete_fields
    columns: list[Any] = [field.get_col(model._meta.db_table) for field in fields]
    as_it_is = models.Field.select_format
    return all(type(c) is Col and type(c.output_field).select_format is as_it_is for c in columns)


# How statements are sent

#: How many seconds a verb waits at a time for a transaction whose COMMIT was not answered.
COMMIT_WAIT = 2.0


class AmbiguousCommit(OperationalError):
    """A COMMIT was sent, and an error of the connection came instead of an answer: the rows alone tell its outcome.

    To a caller who does not look at them it is the error of the connection, which is its cause.
    """


def run(
    target: ClaimTarget,
    statements: Callable[[], R],
    *,
    autocommit: bool = False,
    savepoint: bool = True,
    lock_wait: float = 0.0,
) -> R:
    """Run *statements* in one transaction, or in a savepoint of the caller's, and again after contention.

    With *autocommit* it is one statement outside of any transaction, which commits by itself; see ``can_autocommit``.
    Without *savepoint* it is part of the caller's transaction. With *lock_wait* it waits that many seconds for a lock.
    """
    if not savepoint and target.dialect.connection.in_atomic_block:
        # An error ends that transaction, so nothing is sent again.
        return statements()
    failed: list[Error] = []
    if autocommit:
        try:
            # This is enough in nearly all cases.
            return statements()
        except Error as error:
            failed.append(error)
    own = partial(target.dialect.own_transaction, lock_wait=lock_wait)
    block = nullcontext if autocommit else own

    def once() -> R:
        with detecting_lost_commit(target, block(), is_commit=autocommit):
            if failed:
                raise failed.pop()
            return statements()

    # It is asked here: a receiver of the user's that is called meanwhile waits for locks as it always does.
    waits_once = WAITS_ONCE in vars(target.dialect.connection)
    retry = retry_on_contention(using=target.alias, atomic=False, lock_timeouts=not waits_once)
    return retry.call(once)


@contextmanager
def detecting_lost_commit(
    target: Target, block: AbstractContextManager[None], *, is_commit: bool = False
) -> Iterator[None]:
    """Run the inside of *block*; AmbiguousCommit where the COMMIT was not answered.

    Where the statement inside *is a commit*, too, it is in no transaction.
    """
    outermost = is_commit or no_transaction(target.dialect.connection)
    committing = is_commit
    try:
        with block:
            yield
            committing = outermost
    except Exception as error:
        # After any other error the statement, or the COMMIT, may have been carried out all the same.
        if not committing or is_contention(error) or is_refusal(error):
            raise
        drop_broken(target.alias)
        raise AmbiguousCommit(*error.args) from error


# Transactions of the caller's


def belongs_to_the_caller(connection: BaseDatabaseWrapper) -> bool:
    """Say whether a transaction is open that is not ``TestCase``'s, so that nothing sent now is committed."""
    blocks = connection.atomic_blocks
    if connection.in_atomic_block:
        return not (blocks and getattr(blocks[-1], "_from_testcase", False))
    return not connection.get_autocommit()


def refuse_transaction(connection: BaseDatabaseWrapper, what: str) -> None:
    """Raise RuntimeError if a transaction of the caller's is open; *what* says why none may be."""
    if belongs_to_the_caller(connection):
        raise RuntimeError(
            f"{what}, but a transaction is open here (atomic(), ATOMIC_REQUESTS, or autocommit switched off). Call it"
            f" outside, for example in a view with @transaction.non_atomic_requests."
        )


def refuse_old_snapshots(target: ClaimTarget, what: str) -> None:
    """Raise RuntimeError if the caller's transaction does not see what others commit; *what* needs to see it."""
    dialect = target.dialect
    if belongs_to_the_caller(dialect.connection) and not dialect.sees_new_commits():
        raise RuntimeError(
            f"{what}, and the open transaction does not see what they commit: call it outside of the transaction, or"
            " let that run at READ COMMITTED."
        )


def no_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Say whether the next transaction will be of our own making."""
    return not connection.in_atomic_block and connection.get_autocommit()


@contextmanager
def unbroken_transaction(using: str, complaint: str) -> Iterator[None]:
    """Raise TaskClaimError with *complaint* if what the block wrote is gone although it ended well.

    A deadlock rolls back the whole transaction on MySQL and MariaDB, DDL commits it, and a block that catches the
    error, or meets none, would be taken for done all the same.
    """
    connection = connections[using]
    returned = False
    try:
        with dialect_for(connection).detecting_rollback():
            yield
            returned = True
            if connection.needs_rollback:
                # An error has passed through an inner atomic(savepoint=False), so Django would roll back.
                raise TaskClaimError(complaint)
    except DatabaseError as error:
        if not returned:
            raise
        raise TaskClaimError(f"{complaint}: {error}") from error


# In which order claims take the rows: the queryset's own, its policy's, or that of the claim index


def in_policy_order(queryset: Rows) -> Rows:
    """Return *queryset* in its own order, or else in the order that the policy of its model names."""
    order = policy_for(queryset.model).order_by
    return queryset.order_by(*order) if order and not queryset.query.order_by else queryset


def _from_owner(item: Any, model: type[models.Model], target: Target) -> Any:
    """Spell an ordering of a multi-table child as seen from the parent that holds the claim columns."""
    if target.columns.owned_by(model) or item == "?":
        return item
    if isinstance(item, str):
        sign = "-" if item.startswith("-") else ""
        return sign + _name_from_owner(item.removeprefix("-"), model, target)
    if isinstance(item, models.F):
        return models.F(_name_from_owner(cast("Any", item).name, model, target))
    if isinstance(item, tuple):
        name, value = item
        if hasattr(value, "resolve_expression"):
            value = _from_owner(value, model, target)
        return _name_from_owner(name, model, target), value
    if isinstance(item, Q):
        found = [_from_owner(part, model, target) for part in item.children]
        return Q(*found, _connector=item.connector, _negated=item.negated)
    if not hasattr(item, "get_source_expressions"):
        return item
    moved = item.copy()
    parts = (part and _from_owner(part, model, target) for part in item.get_source_expressions())
    moved.set_source_expressions(list(parts))
    return moved


def _name_from_owner(name: str, model: type[models.Model], target: Target) -> str:
    first = name.split("__")[0]
    if first == "pk" or first in {field.name for field in target.columns.owner._meta.get_fields()}:
        return name
    steps = cast("Any", model._meta).get_path_from_parent(target.columns.owner)
    return "__".join([*(step.join_field.name for step in steps), name])


# What the state of a row means to claims: open, due, waiting, quarantined, running, expired


def in_state(columns: ClaimColumns, *states: Status) -> Q:
    """Match rows in one of these states."""
    status = columns.status.name
    return Q(**{status: states[0]}) if len(states) == 1 else Q(**{f"{status}__in": states})


def is_open(columns: ClaimColumns) -> Q:
    """Match rows that wait to be claimed, due or not."""
    return in_state(columns, Status.OPEN)


def is_running(columns: ClaimColumns) -> Q:
    """Match rows that somebody holds, expired or not."""
    return in_state(columns, Status.PROCESSING)


def is_expired(columns: ClaimColumns, cutoff: datetime | None = None) -> Q:
    """Match rows whose lease has ended by the database's clock; a running row without expiry counts as expired.

    With *cutoff*, those whose lease had ended by then.
    """
    expiry = columns.expires_at.name
    ended = Q(**{f"{expiry}__lte": cutoff or DatabaseNow()})
    return is_running(columns) & (Q(**{f"{expiry}__isnull": True}) | ended)


def _by_wait(columns: ClaimColumns, without: Q, **lookups: object) -> Q:
    """Match rows by the end of their waiting time, or *without* that, where the model has none."""
    if columns.not_before is None:
        return without
    return Q(**{f"{columns.not_before.name}__{name}": value for name, value in lookups.items()})


#: Conditions that hold for all rows, and for none.
ALL, NONE = Q(), Q(pk__in=[])


def has_waited(columns: ClaimColumns, now: datetime | None = None) -> Q:
    """Match rows whose waiting time is over: all, where the model has none. *now* is the database's clock by default.

    The mark of a quarantined row lies in the far future, so ordinary claims leave such rows out by the index.
    """
    return _by_wait(columns, ALL, lte=now or DatabaseNow())


def never_waited(columns: ClaimColumns) -> Q:
    """Match rows that never had to wait: all, where the model has no waiting time. They are due.

    A condition that says so as well would make the database choose another index.
    """
    return _by_wait(columns, ALL, exact=NEVER_WAITED)


def was_retried(columns: ClaimColumns) -> Q:
    """Match rows that had to wait, and whose waiting time is over; none, where the model has none."""
    return _by_wait(columns, NONE, gt=NEVER_WAITED, lte=DatabaseNow())


def is_quarantined(columns: ClaimColumns) -> Q:
    """Match rows that are marked because their worker may have died of them; none, where the model has no mark."""
    return _by_wait(columns, NONE, gte=QUARANTINED)


def is_due(columns: ClaimColumns, now: datetime | None = None) -> Q:
    """Match rows that some claim takes if they are open: their waiting time is over, or they are quarantined."""
    found = has_waited(columns, now)
    return found | is_quarantined(columns) if found else found


def is_waiting(columns: ClaimColumns) -> Q:
    """Match rows whose waiting time is not over; none, where the model has none."""
    return _by_wait(columns, NONE, gt=DatabaseNow(), lt=QUARANTINED)
