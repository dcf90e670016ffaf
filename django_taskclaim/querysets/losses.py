"""Claims that stand no more, and claims whose COMMIT was not answered: found out, logged, and raised to the caller."""

import itertools
import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

from django.db import DEFAULT_DB_ALIAS, models

from django_taskclaim.claim import COMPLETED, carried_claim, claim_of, standing_claim
from django_taskclaim.columns import claim_columns
from django_taskclaim.db.sql import NOWAIT
from django_taskclaim.error_text import redact
from django_taskclaim.exceptions import ClaimLost, CommitUndecided
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.transactions import PATIENCE, wait_for_answer
from django_taskclaim.signals import claim_lost, send_after_commit
from django_taskclaim.states import Status

logger = logging.getLogger("django_taskclaim")


def raise_unless_all(rows: Sequence[Any], written: Sequence[Any]) -> None:
    """Raise ClaimLost naming those of *rows* that were not written."""
    done = {id(row) for row in written}
    lost = [row for row in rows if id(row) not in done]
    if lost:
        raise_lost(lost, written)


def raise_lost(lost: Sequence[Any], written: Sequence[Any]) -> NoReturn:
    """Log, send as a signal and raise which claims stand no more; CommitUndecided where a COMMIT is ambiguous."""
    claims = [claim for row in lost if (claim := claim_of(row)) is not None]
    for claim in claims:
        claim.lost = True
    reason = _why_none_is_carried(lost)
    ambiguous = [row for row in lost if (one := claim_of(row)) is not None and one.ambiguous]
    error = (
        CommitUndecided(lost, written, ambiguous, reason=reason)
        if ambiguous
        else ClaimLost(lost, written, reason=reason)
    )
    _log([row for row in lost if not _is_logged(row)], error)
    by_sender: dict[tuple[type[models.Model], str], list[Any]] = {}
    for row in lost:
        held = claim_of(row)
        alias = held.alias if held is not None else row._state.db or DEFAULT_DB_ALIAS
        by_sender.setdefault((type(row), alias), []).append(row)
    for (model, alias), same in by_sender.items():
        send_after_commit(claim_lost, model, alias, rows=same)
    raise error


def _is_logged(row: Any) -> bool:
    """Say whether the loss of the row's claim is in the log, or will be once its worker hears of it."""
    claim = standing_claim(row)
    return claim is not None and (claim.watched or claim.loss_logged)


def _log(rows: Sequence[Any], error: ClaimLost) -> None:
    if not rows:
        return
    described = error if len(rows) == len(error.lost) else ClaimLost(rows, reason=error.reason)
    logger.warning(
        "%s",
        redact(str(described)),
        extra={
            "event": "lost",
            "model": rows[0]._meta.label,
            "keys": [str(row.pk) for row in rows],
            "rows": len(rows),
        },
    )
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
    finished: Collection[Status] = (Status.COMPLETE,),
) -> Judgement:
    """Say what became of *rows* after the COMMIT of a transaction that was to finish them was not answered.

    Every row must have been claimed. The token that its instance carries decides, by what the database to which the
    claim was written says now: a claim that is found in one of the states *finished* is ended on the instance, and an
    ambiguous one is marked as lost there.

    Waits up to *patience* seconds for a database that is away, or in which the unanswered transaction still has the
    rows locked; then the database's error passes on, nothing is decided, and the call may be repeated. To be called
    outside of any transaction. The thread's connection is replaced if it broke.
    """
    judgement = Judgement([], [], [])
    by_table: dict[Any, list[Any]] = {}
    for row in rows:
        by_table.setdefault((carried_claim(row).alias, claim_columns(type(row)).owner), []).append(
            row
        )
    for (alias, _), same in by_table.items():
        target = ClaimTarget.of(type(same[0]), alias)
        keys = sorted(carried_claim(row).pk for row in same)
        states = wait_for_answer(target, _states, patience, target, keys)
        for row in same:
            claim = carried_claim(row)
            status, *token = states.get(claim.pk, ("", None, None))
            if tuple(token) == tuple(claim.token) and status == Status.PROCESSING:
                judgement.still_held.append(row)
            elif tuple(token) == tuple(claim.token) and status in finished:
                judgement.committed.append(row)
            else:
                judgement.ambiguous.append(row)
    for row in judgement.committed:
        carried_claim(row).end(COMPLETED)
    for row in judgement.ambiguous:
        carried_claim(row).lost = carried_claim(row).ambiguous = True
    for row in itertools.chain(*judgement):
        carried_claim(row).unanswered = False
    return judgement


def _states(target: ClaimTarget, keys: Sequence[Any]) -> dict[Any, tuple[Any, ...]]:
    """Return status, holder and iteration of the rows that are there, by key.

    Under a lock: a COMMIT that is on its way only now would otherwise land after it was found missing.
    """
    columns = target.columns
    fields = [*columns.key, columns.status, columns.claimed_by, columns.iteration]
    found: list[list[Any]] = []
    for part in target.dialect.chunks(keys, target.table):
        found += target.dialect.select(target.table, fields, target.table.keyed(part), NOWAIT)
    return {target.table.key_of(row): tuple(row[-3:]) for row in found}
