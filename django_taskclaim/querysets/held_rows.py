"""What a holder has already, for a claim that returns it, or that has to find out what became of itself."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from django_taskclaim.db import ClaimedRow
from django_taskclaim.db.claim_statement import rows_by_role
from django_taskclaim.db.sql import WAIT, Change
from django_taskclaim.querysets.conditions import is_running
from django_taskclaim.querysets.isolated_claims import send_isolated
from django_taskclaim.querysets.ordering import in_claim_order
from django_taskclaim.querysets.scope import Rows, on_claim_table
from django_taskclaim.states import Token

if TYPE_CHECKING:
    from django_taskclaim.querysets.claiming import ClaimCall


def rows_of_holder(call: "ClaimCall", rows: Rows) -> list[ClaimedRow]:
    """Return the first of *rows* that the holder has, ``limit`` at most."""
    columns, table, fields = call.target.columns, call.target.table, call.fields
    held = rows.filter(is_running(columns), **{columns.claimed_by.name: call.request.holder})
    return rows_by_role(
        fields, table, call.target.dialect.first(held, table, call.request.limit, fields)
    )


def extend_held(call: "ClaimCall") -> list[ClaimedRow]:
    """Return what the holder has of the queryset, ``limit`` rows at most, each lease extended and none shortened.

    Rows are found without locks and waited for: a row passed over because it is locked would be handed out twice.
    """
    queryset, target = call.queryset, call.target
    held = rows_of_holder(call, in_claim_order(on_claim_table(queryset, target), queryset, target))
    extended: set[Any] = set()
    for iteration in sorted({row.iteration for row in held}):
        keys = sorted(row.key for row in held if row.iteration == iteration)
        extend = partial(_extend, call, Token(call.request.holder, iteration))
        for part in send_isolated(call, keys, extend):
            extended.update(part)
    return [row for row in held if row.key in extended]


def _extend(call: "ClaimCall", token: Token, keys: Sequence[Any]) -> list[Any]:
    """Wait for the rows that *token* holds, extend their leases, and return their keys."""
    dialect, table = call.target.dialect, call.target.table
    held = dialect.select_keys(table, keys, table.standing(token), WAIT)
    if held:
        extension = Change([dialect.extension(table, call.request.lease)])
        dialect.write(table, held, extension, table.standing(token))
    return held
