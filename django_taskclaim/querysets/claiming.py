"""Taking rows: from the arguments of ``claim_batch`` to instances that carry their claims.

A plain claim of a worker's id is one statement that commits by itself. Any other runs in a transaction: it joins
tables, is asked for what its holder has already, has limits, or a database claims by several statements.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from inspect import getattr_static
from operator import attrgetter
from typing import Any

from django.conf import settings
from django.db import DatabaseError, OperationalError, models
from django.db.models.base import ModelState
from django.db.models.fields.related_descriptors import ForeignKeyDeferredAttribute
from django.db.models.signals import post_init, pre_init

from django_taskclaim.claim import (
    ATTRIBUTE,
    LOADED,
    UNCHANGED,
    Claim,
    attach,
    carried_claims,
    clock,
)
from django_taskclaim.columns import claim_columns, memoized
from django_taskclaim.contention import TROUBLE
from django_taskclaim.db import SwitchIsOn
from django_taskclaim.db.sql import Bound, ClaimedRow, ClaimStatement, Key
from django_taskclaim.fields import QUARANTINED, QUARANTINED_UNSTARTED, is_quarantine_mark
from django_taskclaim.limits import Grant, LimitReached, known, stops_of
from django_taskclaim.limits.key_limits import KeyChooser
from django_taskclaim.policy import policies_over
from django_taskclaim.querysets import isolating, scope, writes
from django_taskclaim.querysets.cursor import (
    EVERYTHING,
    FULL_SCAN_EVERY,
    TURN,
    Cursor,
    Scan,
    next_time,
    quarantined_scans,
)
from django_taskclaim.querysets.instances import claimed_by, like, read_again
from django_taskclaim.querysets.scope import ClaimTarget, Rows, run
from django_taskclaim.signals import rows_claimed, send_after_commit
from django_taskclaim.states import WORKER_MARK, Token
from django_taskclaim.tables import stop_scopes

#: How many claims this process has made, by database and model.
claims_made: Counter[tuple[str, type[models.Model]]] = Counter()


@dataclass(slots=True)
class ClaimCall:
    """One call of ``claim_batch``: what is asked for, and how. TypeError for rows that cannot be claimed."""

    queryset: Rows
    limit: int
    holder: str
    lease: timedelta
    #: When the leases begin at the earliest, by ``clock()``.
    started: float
    include_held: bool = False
    durable: bool = True
    #: Whether the holder notes in the database when it starts a quarantined row; see ``writes.note_start``.
    notes_start: bool = False
    #: Where the holder's last claim ended.
    cursor: Cursor | None = None

    #: The limit that kept the claim from taking more.
    reached: LimitReached | None = None
    target: ClaimTarget = field(init=False)
    #: When the leases end at the earliest, by ``clock()``.
    deadline: float = field(init=False)
    #: Whether the claim statement's own columns make the instances.
    is_plain: bool = field(init=False)
    #: Whether the model has limits, from its handler or stored, …
    is_limited: bool = field(init=False)
    #: … and whether rows that share a value of a column wait for each other.
    counts_by_key: bool = False
    #: Whether each statement commits by itself.
    autocommits: bool = field(init=False)
    #: Set once an error may be of single rows, which are then claimed apart from the others.
    goes_around: bool = False
    #: Rows that cannot be read, as instances with a key and a claim, each with its error.
    unreadable: list[isolating.Bad[models.Model]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.target = target = ClaimTarget.over(self.queryset)
        policies = policies_over(self.queryset.model).values()
        if policies:
            self.queryset = scope.in_policy_order(self.queryset)
        if isolating.remembered:
            self.queryset = isolating.without_refused(self.queryset)
        self.deadline = self.started + self.lease.total_seconds()
        # What is held already is read again once its lease has been extended.
        self.is_plain = not self.include_held and scope.is_plain(self.queryset, target)
        self.is_limited = (target.alias, target.model) in known
        if policies:
            self.is_limited = self.is_limited or any(one.names_limits for one in policies)
            self.counts_by_key = any(one.counts_by_column for one in policies)
        # The holder must be unique: if the answer is lost, or a row cannot be read, the rows are found by the holder.
        self.autocommits = (
            self.is_plain
            and not self.is_limited
            and WORKER_MARK in self.holder
            and target.dialect.returns_updated
            and target.dialect.can_autocommit
        )

    @property
    def switch(self) -> SwitchIsOn:
        """What stops this claim; where it looks at no limits, a stored limit does, too."""
        return SwitchIsOn(stop_scopes(self.queryset.model), unlimited=not self.is_limited)


def claim(call: ClaimCall) -> list[models.Model]:
    """Claim rows and return them, committed, in claim order.

    A row that nobody can read, or write, keeps nobody from the others.
    """
    try:
        rows = _claim(call)
        # A worker learns of stored limits when it reads the switch.
        if not rows and not call.is_limited and call.cursor is None:
            stops_of(call.target.model, using=call.target.alias)
            if (call.target.alias, call.target.model) in known:
                call.is_limited, call.autocommits = True, False
                rows = _claim(call)
    except Exception as error:
        rows = _claim_without_bad_rows(call, error)
    if rows and rows_claimed.receivers:
        send_after_commit(rows_claimed, call.target.model, call.target.alias, rows=rows)
    return rows


def _claim(call: ClaimCall) -> list[models.Model]:
    """Claim, commit and return the instances, each with its claim."""
    try:
        if call.autocommits:
            return _instances(call, take(call, call.limit))
        if call.durable:
            what = "claim_batch() must commit before it returns, unless durable=False"
            scope.refuse_transaction(call.target.dialect.connection, what)
        elif call.include_held or call.is_limited:
            # Before the transaction of our own, which MySQL does not tell from one at the session's level.
            what = "include_held=True and limits depend on what others have committed"
            scope.refuse_old_snapshots(call.target, what)
        return run(call.target, partial(_claim_in_transaction, call))
    except scope.AmbiguousCommit as error:
        return _committed(call, error)


def _claim_in_transaction(call: ClaimCall) -> list[models.Model]:
    """Claim in the transaction that is open, beside what the holder has already, if it asked for that."""
    call.unreadable.clear()
    rows = _read(call, _extend_held(call)) if call.include_held else []
    wanted = call.limit - len(rows)
    if wanted <= 0:
        return rows
    if not call.is_limited:
        return rows + _instances(call, take(call, wanted))
    grant = Grant(call.target)
    allowed = grant.begin(wanted, by_key=call.counts_by_key)
    claimed = take(call, allowed) if allowed else []
    grant.charge(len(claimed), allowed)
    call.reached = grant.reached
    return rows + _instances(call, claimed)


def _extend_held(call: ClaimCall) -> list[Claim]:
    """Return the claims that the holder has in the queryset, each lease extended and none shortened.

    Rows are found without locks and waited for: a row passed over because it is locked would be handed out twice.
    """
    # Calls of one holder wait for each other. A proxy or a child reaches the same rows as the table's owner.
    owner = call.target.columns.owner._meta.label_lower
    call.target.dialect.advisory_lock(f"{owner}:{call.holder}")
    held = _held(call)
    writes.lock_claims(held)
    renewed = set(map(id, writes.renew(writes.Given(held), call.lease).renewed))
    return carried_claims(row for row in held if id(row) in renewed)


def _held(call: ClaimCall) -> list[models.Model]:
    """Return the first rows that the holder has, as many as it asks for at most, with nothing but their claims."""
    # A unique holder has only the rows of this call. Conditions like ``open()`` are no longer true of them.
    is_own = WORKER_MARK in call.holder
    rows = call.target.rows if is_own else call.target.rows_of(call.queryset)
    ordered = call.target.in_claim_order(rows, call.queryset)
    # A column of the user's that cannot be read may be why nobody has got the rows.
    held = claimed_by(ordered.only("pk"), [call.holder])
    for claim in carried_claims(held):
        claim.lease, claim.local_deadline = call.lease, call.deadline
    return held[: call.limit]


# The rows in hand


def _instances(call: ClaimCall, claimed: Sequence[ClaimedRow]) -> list[models.Model]:
    """Return the rows claimed as the queryset asks for them, each with its claim."""
    tokens = {number: Token(call.holder, number) for number in {row.iteration for row in claimed}}
    alias, lease, deadline, claims = call.target.alias, call.lease, call.deadline, []
    for row in claimed:
        token = tokens[row.iteration]
        claim = Claim(token, alias, row.key, lease=lease, attempts=row.attempts)
        claim.local_deadline = deadline
        claims.append(claim)
    if len(claimed) == 1:
        claims[0].quarantined = is_quarantine_mark(claimed[0].not_before)
    if not call.is_plain:
        return _read(call, claims)
    # The claim has returned all columns, so nothing is read.
    model, values = call.queryset.model, [row.values for row in claimed]
    names = [field.attname for field in model._meta.concrete_fields]
    has_listeners = pre_init.has_listeners(model) or post_init.has_listeners(model)
    if _is_laid_out(model) and not has_listeners:
        rows = _laid_out(model, names, values, claims)
    else:
        rows = [model.from_db(alias, names, given) for given in values]
        for instance, claim in zip(rows, claims, strict=True):
            attach(instance, claim)
    models.prefetch_related_objects(rows, *vars(call.queryset)["_prefetch_related_lookups"])
    return rows


def _read(call: ClaimCall, claims: Sequence[Claim]) -> list[models.Model]:
    """Read the rows claimed; after an error, those that cannot be read are put aside."""
    by_key = {one.pk: one for one in claims}
    if call.goes_around:
        read = partial(read_again, call.queryset, call.target)
        for key, error in isolating.find_unreadable(
            [*by_key], read, like(call.queryset, call.target)
        ):
            call.unreadable.append(isolating.Bad(bare(call.queryset.model, by_key.pop(key)), error))
    rows = read_again(call.queryset, call.target, [*by_key])
    for row in rows:
        attach(row, by_key[call.target.columns.key_of(row)])
    return rows


@memoized
def _is_laid_out(model: type[models.Model]) -> bool:
    """Say whether no code but Django's and ours takes part in making an instance, whose values may then be laid out.

    Their constructor sets the values one by one, for the sake of those who override it: a third of what a claim costs.
    """
    ours = ("builtins", "django.db.models.base", "django_taskclaim.querysets.fence")
    making = {"__new__", "__init__", "__setattr__", "from_db"}
    others = [base for base in model.__mro__ if base.__module__ not in ours]
    attributes = [getattr_static(model, field.attname) for field in model._meta.concrete_fields]
    return not any(making.intersection(vars(base)) for base in others) and not any(
        # A foreign key only forgets its loaded row.
        hasattr(one, "__set__") and type(one) is not ForeignKeyDeferredAttribute
        for one in attributes
    )


def _laid_out(
    model: type[models.Model],
    names: list[str],
    values: Iterable[Sequence[object]],
    claims: Iterable[Claim],
) -> list[models.Model]:
    rows = []
    new = object.__new__
    # This loop runs for each row of each claim, so it makes no calls and no checks that can be made outside.
    for given, claim in zip(values, claims, strict=True):
        row = new(model)
        own = row.__dict__
        state = own["_state"] = new(ModelState)
        state.adding = False
        state.db = claim.alias
        own.update(zip(names, given))  # noqa: B905 - as long as each other, and asked for each row
        own[LOADED] = (names, given, UNCHANGED)
        own[ATTRIBUTE] = claim
        rows.append(row)
    return rows


def bare(model: type[models.Model], claim: Claim, key: Any = None) -> models.Model:
    """Return an instance of the row that *claim* is of, which knows its keys and carries the claim.

    No code of the user's takes part in it. *key* is the row's own, and may be left out; for a child of two parents the
    database is then asked for it.
    """
    path, names = claim_columns(model).key_path(model), key_names(model)
    if path == "pk" or names == [path]:
        key = claim.pk
    elif key is None:
        rows: Rows = models.QuerySet(model, using=claim.alias).filter(**{path: claim.pk})
        key = rows.values_list("pk", flat=True).first()
    (row,) = _laid_out(model, names, [key if len(names) > 1 else (key,)], [claim])
    setattr(row, path, claim.pk)
    return row


def loaded_key(row: models.Model) -> Any:
    """Return the key that a claimed row was loaded with; saved as another row, the instance has that one's."""
    own = row.__dict__
    # A from_db() of the user's may keep nothing of it.
    names, values, _ = own.get(LOADED, ((), (), UNCHANGED))
    loaded = dict(zip(names, values, strict=False))
    key = tuple(loaded.get(name, own.get(name)) for name in key_names(type(row)))
    return key if len(key) > 1 else key[0]


@memoized
def key_names(model: type[models.Model]) -> list[str]:
    """Return the attnames of the model's own key."""
    return [field.attname for field in model._meta.pk_fields]


# After an error


def _committed(call: ClaimCall, error: scope.AmbiguousCommit) -> list[models.Model]:
    """Return the rows of a claim whose COMMIT was not answered; OperationalError where it has claimed none.

    Only of a worker's id: another call may have claimed the same rows under the same name.
    """
    if WORKER_MARK not in call.holder:
        raise error
    rows = _read(call, carried_claims(run(call.target, partial(_held, call))))
    if not rows:
        raise OperationalError("The claim was not committed.") from error
    return rows


def _claim_without_bad_rows(call: ClaimCall, error: Exception) -> list[models.Model]:
    """Claim again after *error*, without the rows that it is of; raise it where it is not of single rows."""
    # The first try may have committed: then its rows are what the holder has already.
    may_have_committed = call.autocommits
    call.include_held = call.include_held or may_have_committed
    call.is_plain = call.autocommits = False
    call.goes_around = True

    def nothing() -> None:
        if isinstance(error, DatabaseError):
            isolating.write_nothing(call.target)
        isolating.read_nothing(call.queryset)

    try:
        if not isolating.may_be_of_a_row(call.target.alias, nothing, error):
            raise error
        rows = _claim(call)
        if not rows and not call.unreadable and _met_many(call):
            raise error
    except BaseException:
        if may_have_committed and not isinstance(error, TROUBLE):
            # The rows of the first try go back. If that fails too, they return when their leases end.
            with suppress(Exception):
                writes.release(_held(call))
        raise
    writes.fail_unreadable(call.unreadable)
    return rows


# Where a claim looks


def take(call: ClaimCall, limit: int) -> list[ClaimedRow]:
    """Claim up to *limit* rows and return them in order; a quarantined one is alone."""
    is_sorted = bool(call.queryset.query.order_by)
    cursor = None if is_sorted or call.counts_by_key else call.cursor
    place = call.target.alias, call.target.model
    claims_made[place] += 1
    turn = claims_made[place] % TURN
    looks_aside = turn == 0 and (cursor is None or cursor.may_look_aside(FULL_SCAN_EVERY))
    if looks_aside and (rows := _take_quarantined(call, cursor)):
        return rows
    rows, scan, scans = [], EVERYTHING, [EVERYTHING]
    if cursor is not None:
        scans = cursor.scans(call.target, retried_first=turn == TURN // 2)
    for scan in scans:
        rows += _claim_from(call, scan, limit - len(rows))
        if len(rows) == limit:
            break
    if not is_sorted:
        # Rows in the caller's own order are read again, in that order.
        rows = _in_order(call.target, rows)
    if cursor is not None:
        cursor.advance(rows, scan, full=len(rows) == limit)
    if not rows and not looks_aside and (cursor is None or cursor.may_look_aside()):
        return _take_quarantined(call, cursor)
    return rows


def _take_quarantined(call: ClaimCall, cursor: Cursor | None) -> list[ClaimedRow]:
    """Claim one row that may have killed its worker, so that its next crash is charged to nobody else."""
    began, scans = clock(), quarantined_scans(call.target)
    rows = next(filter(None, (_claim_from(call, scan, 1) for scan in scans)), [])
    if cursor is not None:
        # There may be more where one was.
        cursor.quarantined_at = next_time(began) - (FULL_SCAN_EVERY if rows else 0.0)
    return rows


def _in_order(target: ClaimTarget, rows: list[ClaimedRow]) -> list[ClaimedRow]:
    """Put rows into the model's claim order; RETURNING has none.

    Text is compared by the database alone, which costs one statement.
    """
    if len(rows) < 2:
        return rows
    # Python's sort is stable, so the least important column comes first.
    if target.table.sorts_as_python:
        rows.sort(key=attrgetter("key"))
    else:
        keys = target.dialect.select_keys(target.table, [row.key for row in rows])
        place = {key: number for number, key in enumerate(keys)}
        rows.sort(key=lambda row: place.get(row.key, len(place)))
    if target.columns.not_before is not None:
        rows.sort(key=attrgetter("not_before"))
    if target.columns.priority is not None:
        rows.sort(key=attrgetter("priority"), reverse=True)
    return rows


# The statements of a claim


def _claim_from(call: ClaimCall, scan: Scan, limit: int) -> list[ClaimedRow]:
    """Claim up to *limit* rows that *scan* finds."""
    if call.counts_by_key or call.goes_around:
        return _claim_chosen(call, scan, limit)
    return _send(call, _statement(call, scan), limit, scan)


def _claim_chosen(call: ClaimCall, scan: Scan, limit: int) -> list[ClaimedRow]:
    """Claim rows chosen by key: below ``limit_per`` and ``serial_by``, or beside some that the database refuses."""
    target = call.target
    claimed: list[ClaimedRow] = []
    chooser = KeyChooser(target, candidates(call, scan), limit)
    most = target.dialect.chunk_size(target.table)
    while keys := chooser.choose(min(most, limit - len(claimed))):
        parts = isolating.send_around(target, keys, partial(_claim_keys, call, scan), raises=False)
        rows = [row for part in parts for row in part]
        chooser.forget(set(keys).difference(row.key for row in rows))
        claimed += rows
        if _met_many(call):
            break
    return claimed


def _met_many(call: ClaimCall) -> bool:
    """Say whether the database has refused so many rows of this call that the others are left to the next one."""
    target = call.target
    return len(isolating.refusals(target.model, target.alias, call.started)) >= isolating.MOST_ROWS


def _claim_keys(call: ClaimCall, scan: Scan, keys: Sequence[Key]) -> list[ClaimedRow]:
    """Claim the rows with these keys by one statement, as far as *scan* finds them still."""
    found = candidates(call, scan).order_by().filter(pk__in=keys)
    statement = _prepare(call, scan, found, simple=False)
    return run(call.target, partial(_send, call, statement, len(keys), scan))


def candidates(call: ClaimCall, scan: Scan) -> Rows:
    """Return the rows that may be claimed and that *scan* finds, in claim order."""
    columns = call.target.columns
    rows = call.target.rows_of(call.queryset)
    rows = rows.filter(scope.is_open(columns) & scan.condition(columns), call.switch)
    if scan.which is scope.is_quarantined:
        # The caller's order does not matter: such a row is claimed alone, and the index finds it in this order.
        return rows.order_by(*columns.order)
    return call.target.in_claim_order(rows, call.queryset)


def _statement(call: ClaimCall, scan: Scan) -> ClaimStatement | None:
    """Return the statement that claims what *scan* finds, kept for calls like this; None where that is nothing."""
    query, target = call.queryset.query, call.target
    simple = not query.where and not query.order_by and target.is_owner
    if not simple or ("key" in scan.values and len(target.columns.key) > 1):
        return _prepare(call, scan, candidates(call, scan), simple=simple)
    shape = call.is_plain, call.is_limited, call.notes_start, settings.USE_TZ
    kind = (scan.which, *scan.values, *shape)
    if kind not in target.statements:
        # The values of each claim are bound in it.
        bound = Scan(scan.which, {name: Bound(name) for name in scan.values})
        rows = candidates(call, bound)
        target.statements[kind] = _prepare(call, scan, rows, simple=True)
    return target.statements[kind]


def _prepare(call: ClaimCall, scan: Scan, rows: Rows, *, simple: bool) -> ClaimStatement | None:
    """Return the statement that claims the first of *rows*, which *scan* finds; None where they can be none."""
    target, ours, sets = call.target, EVERYTHING, scope.CLAIMED
    if scan.which is scope.is_quarantined:
        # If the claim expires, the mark says whether the row had been started.
        sets = {"not_before": QUARANTINED_UNSTARTED if call.notes_start else QUARANTINED, **sets}
        ours = Scan(scope.is_quarantined)
    columns = target.columns
    claimable = scope.is_open(columns) & ours.condition(columns)
    rows_of_ours = target.rows.order_by().filter(claimable, call.switch)
    # The claim returns all columns that make the instances, or those with a role.
    roles = (columns.iteration, columns.attempts, columns.not_before, columns.priority)
    some = [*columns.key, *(one for one in roles if one is not None)]
    fields = columns.owner._meta.concrete_fields if call.is_plain else some
    return target.dialect.prepare_claim(
        target.table, rows, rows_of_ours, target.setting(sets), fields, simple=simple
    )


def _send(
    call: ClaimCall, statement: ClaimStatement | None, limit: int, scan: Scan
) -> list[ClaimedRow]:
    """Claim up to *limit* rows by *statement*; outside of a transaction it commits by itself."""
    if statement is None:
        return []
    values = {"limit": limit, "holder": call.holder, "lease": call.lease.total_seconds()}
    values |= scan.values
    if "key" in scan.values:
        # As the driver wants it.
        values["key"] = call.target.table.prepared_keys([scan.values["key"]])[0][0]
    claim = partial(call.target.dialect.claim, statement, values)
    return run(call.target, claim, autocommit=True) if call.autocommits else claim()
