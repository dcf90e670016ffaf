"""Claims that stand no more, and claims whose COMMIT was not answered: found out, logged, and raised to the caller."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

from django_taskclaim.claim import COMPLETED, carried_claim, claim_of, standing_claim
from django_taskclaim.columns import claim_columns
from django_taskclaim.db.sql import NOWAIT
from django_taskclaim.error_text import redact
from django_taskclaim.exceptions import ClaimLost, CommitUnknown
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.transactions import PATIENCE, wait_for_answer
from django_taskclaim.signals import claim_lost, send_of_rows
from django_taskclaim.states import Status, Token

logger = logging.getLogger("django_taskclaim")


def raise_lost(lost: Sequence[Any], written: Sequence[Any]) -> NoReturn:
    """Log, send as a signal and raise which claims stand no more; CommitUnknown where a COMMIT is ambiguous."""
    ambiguous: list[Any] = []
    for row in lost:
        if (claim := claim_of(row)) is not None:
            claim.lost = True
            ambiguous += [row] if claim.ambiguous else []
    reason = _why_none_is_carried(lost)
    error = ClaimLost(lost, written, reason=reason)
    if ambiguous:
        error = CommitUnknown(lost, written, ambiguous, reason=reason)
    _log(error)
    send_of_rows(claim_lost, lost)
    raise error


def _log(error: ClaimLost) -> None:
    """Log the losses that are not in the log yet, and will not be once their worker learns of them."""
    rows = [
        row
        for row in error.lost
        if (claim := standing_claim(row)) is None or not (claim.watched or claim.loss_logged)
    ]
    if not rows:
        return
    described = error if len(rows) == len(error.lost) else ClaimLost(rows, reason=error.reason)
    facts = {"model": rows[0]._meta.label, "keys": [str(row.pk) for row in rows], "rows": len(rows)}
    logger.warning("%s", redact(str(described)), extra={"event": "lost", **facts})
    for row in rows:
        if (claim := claim_of(row)) is not None:
            claim.loss_logged = True


def _why_none_is_carried(lost: Sequence[Any]) -> str:
    without = [row for row in lost if standing_claim(row) is None]
    if without and all(claim_of(row) is not None for row in without):
        return "it carries no claim any more: a verb of its own has ended it"
    if len(without) == len(lost):
        return "it carries no claim; only rows that claim_batch() or with_token() returned do, until a verb ends them"
    return ""


# Commits that were not answered


class Judgement(NamedTuple):
    """What a transaction whose COMMIT was not answered has left of each row."""

    #: Finished under the token that the instance carries: the transaction was committed.
    committed: list[Any]
    #: Gone, open again, or claimed once more: whether the transaction was committed, nobody can tell any more.
    ambiguous: list[Any]
    #: Still processing under the token: the transaction was not committed, and never will be.
    still_held: list[Any]


def judge_ambiguous_commit(
    rows: Iterable[Any],
    *,
    patience: float = PATIENCE,
    finished: Status | None = Status.COMPLETE,
) -> Judgement:
    """Say what became of *rows* after the COMMIT of a transaction that was to finish them was not answered.

    Every row must have been claimed. The token that its instance carries decides, by what the database to which the
    claim was written says now: a claim that is found in the state *finished* is ended on the instance, and an ambiguous
    one is marked as lost there.

    Waits up to *patience* seconds for a database that is away, or in which the unanswered transaction still has the
    rows locked; then the database's error passes on, nothing is decided, and the call may be repeated. To be called
    outside of any transaction. The thread's connection is replaced if it broke.
    """
    rows = list(rows)
    by_table: dict[Any, list[Any]] = {}
    for row in rows:
        table = carried_claim(row).alias, claim_columns(type(row)).owner
        by_table.setdefault(table, []).append(row)
    stored: dict[int, tuple[str, Token] | None] = {}
    for (alias, _), same in by_table.items():
        target = ClaimTarget.of(type(same[0]), alias)
        keys = sorted(carried_claim(row).pk for row in same)
        states = wait_for_answer(target, _states, patience, target, keys)
        stored |= {id(row): states.get(carried_claim(row).pk) for row in same}
    # Nothing is noted before all have been asked.
    judgement = Judgement([], [], [])
    for row in rows:
        claim = carried_claim(row)
        status, token = stored[id(row)] or (None, None)
        claim.unanswered = False
        if token == claim.token and status == Status.PROCESSING:
            judgement.still_held.append(row)
        elif token == claim.token and status == finished:
            judgement.committed.append(row)
            claim.end(COMPLETED)
        else:
            judgement.ambiguous.append(row)
            claim.lost = claim.ambiguous = True
    return judgement


def _states(target: ClaimTarget, keys: Sequence[object]) -> dict[Any, tuple[str, Token]]:
    """Return status and token of the rows that are there, by key.

    Under a lock: a COMMIT that is on its way only now would otherwise land after it was found missing.
    """
    columns = target.columns
    fields = [*columns.key, columns.status, columns.claimed_by, columns.iteration]
    found: list[list[Any]] = []
    for part in target.dialect.chunks(keys, target.table):
        found += target.dialect.select(target.table, fields, target.table.keyed(part), NOWAIT)
    return {target.table.key_of(row): (row[-3], Token(*row[-2:])) for row in found}
