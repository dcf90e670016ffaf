"""What somebody holds already: rows that carry their claims again, and rows that a claim returns beside new ones."""

from collections.abc import Collection, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from django_taskclaim.claim import Claim, attach
from django_taskclaim.columns import claim_columns
from django_taskclaim.db import ClaimedRow
from django_taskclaim.db.claim_statement import rows_by_role
from django_taskclaim.db.sql import WAIT, Change, Key
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets.candidates import ClaimCall, send_parts
from django_taskclaim.querysets.conditions import is_running
from django_taskclaim.querysets.scope import Rows, in_claim_order, in_policy_order, on_claim_table
from django_taskclaim.states import WORKER_MARK, Token


def carrying(row: Any, token: Token, using: str) -> Any:
    """Return *row*, carrying the claim that *token* names, whether that stands or not."""
    columns = claim_columns(type(row))
    attempts = getattr(row, (columns.attempts or columns.iteration).attname)
    lease = policy_for(type(row)).lease
    attach(row, Claim(token, using, columns.key_of(row), lease=lease, attempts=attempts))
    return row


def claimed_by(queryset: Rows, holders: Collection[str], *, whole: bool = False) -> list[Any]:
    """Return the rows of *queryset* that these holders have now, each carrying its claim.

    With *whole* they are as the queryset selects, defers and joins. Else nothing is read but the claim: a column of the
    user's that cannot be read may be why nobody has got the rows.
    """
    columns = claim_columns(queryset.model)
    vars(queryset)["_for_write"] = True
    rows = queryset.filter(is_running(columns), **{f"{columns.claimed_by.name}__in": holders})
    fields = columns.claimed_by.attname, columns.iteration.attname
    ours = {*fields, (columns.attempts or columns.iteration).attname}
    if whole:
        names, are_deferred = rows.query.deferred_loading
        named = names.difference(ours) if are_deferred else names.union(ours)
        rows.query.deferred_loading = named, are_deferred
    else:
        rows = rows.only(*(field.attname for field in columns.key), *ours)
    return [carrying(row, Token(*(getattr(row, f) for f in fields)), rows.db) for row in rows]


def holdings(queryset: Rows, who: str) -> list[Any]:
    """Return the rows that *who* holds; see ``ClaimQuerySet.holdings``."""
    if queryset._fields is not None:  # type: ignore[attr-defined]  # not in django-stubs
        raise TypeError("holdings() returns rows that carry claims; values() has none.")
    ordered = in_policy_order(queryset)
    if not ordered.query.order_by:
        ordered = ordered.order_by(*claim_columns(queryset.model).order)
    return claimed_by(ordered, [who], whole=True)


# For a claim


def rows_of_holder(call: ClaimCall) -> list[ClaimedRow]:
    """Return the first rows that the holder of *call* has, as many as it asks for at most."""
    target, fields = call.target, call.fields
    columns = target.columns
    # What an id of its own has is this call's, also where a condition like ``open()`` is true of it no more.
    is_own = WORKER_MARK in call.request.holder
    rows = target.rows if is_own else on_claim_table(call.queryset, target)
    rows = in_claim_order(rows, call.queryset, target)
    held = rows.filter(is_running(columns), **{columns.claimed_by.name: call.request.holder})
    found = target.dialect.first(held, target.table, call.request.limit, fields)
    return rows_by_role(fields, target.table, found)


def extend_held(call: ClaimCall) -> list[ClaimedRow]:
    """Return what the holder has of the queryset, each lease extended and none shortened.

    Rows are found without locks and waited for: a row passed over because it is locked would be handed out twice.
    """
    call.target.lock_holder(call.request.holder)
    held = rows_of_holder(call)
    extended: set[Key] = set()
    by_token = sorted(held, key=attrgetter("iteration", "key"))
    for iteration, same in groupby(by_token, attrgetter("iteration")):
        extend = partial(_extend, call, Token(call.request.holder, iteration))
        for part in send_parts(call, [row.key for row in same], extend):
            extended.update(part)
    return [row for row in held if row.key in extended]


def _extend(call: ClaimCall, token: Token, keys: Sequence[Key]) -> list[Key]:
    """Wait for the rows that *token* holds, extend their leases, and return their keys."""
    dialect, table = call.target.dialect, call.target.table
    held = dialect.select_keys(table, keys, table.standing(token), WAIT)
    if held:
        extension = Change([dialect.extension(table, call.request.lease)])
        dialect.write(table, held, extension, table.standing(token))
    return held
