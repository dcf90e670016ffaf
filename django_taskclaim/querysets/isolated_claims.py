"""A claim that failed because of single rows, made again without those: nobody can read them, or write them."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar

from django_taskclaim.claim import Claim, claims_of
from django_taskclaim.db import ClaimedRow
from django_taskclaim.querysets.failing import release
from django_taskclaim.querysets.instances import bare, like
from django_taskclaim.querysets.isolating import (
    RefusedRows,
    UnreadableRows,
    fail_unreadable,
    isolate_unreadable,
)
from django_taskclaim.querysets.transactions import in_transaction

if TYPE_CHECKING:
    from django_taskclaim.querysets.claiming import ClaimCall
    from django_taskclaim.querysets.cursor import Scan

R = TypeVar("R")

#: How many rows are looked at for each one wanted, while some refuse to be claimed; others may have locked them.
LOOK_AHEAD = 4


def claim_again(call: "ClaimCall", error: Exception) -> list[Any]:
    """Claim again after *error*, without the rows that it is of; raise it where it is not of single rows."""
    refused: RefusedRows[Any] = RefusedRows(call.target)
    is_of_writing = refused.is_of_a_row(error)
    if not is_of_writing and not UnreadableRows(call.queryset).is_of_a_row(error):
        raise error
    may_have_committed, call.refused = call.autocommits, refused
    call.autocommits = call.plain = False
    try:
        if may_have_committed:
            # Rows that could not be read.
            call.committed += call.claimed()
        rows = call.run()
        if is_of_writing:
            refused.end(error, rows or call.unreadable)
    except BaseException:
        _give_back(call)
        raise
    fail_unreadable(call.unreadable)
    return rows


def _give_back(call: "ClaimCall") -> None:
    """Give rows back that are committed and that the caller will not get, for the call ends in an error."""
    if call.committed:
        request, alias = call.request, call.target.alias
        claims = claims_of(call.committed, request.holder, alias, request.lease, call.started)
        # If this fails, too, they return with the end of their lease.
        with suppress(Exception):
            release([bare(call.queryset.model, claim) for claim in claims], None)


def claim_isolated(call: "ClaimCall", scan: "Scan", limit: int) -> list[ClaimedRow]:
    """Claim the first rows that *scan* finds by their keys, without those that are refused."""
    dialect, table = call.target.dialect, call.target.table
    found = dialect.first(call.rows(scan), table, LOOK_AHEAD * limit, call.target.columns.key)
    claimed: list[ClaimedRow] = []

    def claim_part(part: Sequence[Any]) -> list[ClaimedRow]:
        one = copy(call)
        one.refused, one.known = None, set(call.known)
        one.queryset = call.queryset.filter(pk__in=part)
        return one.claim_from(scan, limit - len(claimed))

    for rows in send_isolated(call, list(dict.fromkeys(table.keys_of(found))), claim_part):
        claimed += rows
        call.known.update(row.key for row in rows)
        if len(claimed) >= limit:
            break
    return claimed


def send_isolated(
    call: "ClaimCall", keys: Sequence[Any], send: Callable[[Sequence[Any]], list[R]]
) -> Iterable[list[R]]:
    """Yield what *send* returns of *keys*, chunk by chunk; of smaller parts while some rows are refused."""

    def attempt(part: Sequence[Any]) -> list[R]:
        return in_transaction(call.target, send, part)

    for part in call.target.dialect.chunks(keys, call.target.table):
        if call.refused is None:
            yield send(part)
        else:
            yield from call.refused.send(part, attempt)


def read_isolated(call: "ClaimCall", claims: dict[Any, Claim]) -> list[Any]:
    """Read the rows with these keys; those that cannot be read are noted instead."""
    all_rows = like(call.queryset, call.target)
    found = isolate_unreadable([*claims], call.read_keys, all_rows)
    call.unreadable += [(bare(call.queryset.model, claims[key]), error) for key, error in found]
    unreadable = {key for key, _ in found}
    return call.read_keys([key for key in claims if key not in unreadable])
