"""Telling that claims stand no more: to the log, to the signal's receivers, and to the caller."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from django.db import DEFAULT_DB_ALIAS, models

from django_taskclaim.claim import claim_of, standing_claim
from django_taskclaim.error_text import redact
from django_taskclaim.exceptions import ClaimLost, CommitUndecided
from django_taskclaim.signals import claim_lost, send_after_commit

logger = logging.getLogger("django_taskclaim")


def raise_unless_all(rows: Sequence[Any], written: Sequence[Any]) -> None:
    """Raise ClaimLost naming those of *rows* that were not written."""
    if len(written) == len(rows):
        return
    done = {id(row) for row in written}
    lost = [row for row in rows if id(row) not in done]
    if lost:
        undecided = [row for row in lost if (one := claim_of(row)) is not None and one.undecided]
        raise_lost(lost, written, undecided)


def raise_lost(
    lost: Sequence[Any], written: Sequence[Any], undecided: Sequence[Any] = ()
) -> NoReturn:
    """Tell the log, the signal and the caller which claims stand no more."""
    for row in lost:
        claim = claim_of(row)
        if claim is not None:
            claim.lost = True
    reason = _why_none_is_carried(lost)
    error = (
        CommitUndecided(lost, written, undecided, reason=reason)
        if undecided
        else ClaimLost(lost, written, reason=reason)
    )
    _log_lost([row for row in lost if not _is_told(row)], error)
    tell_lost(lost)
    raise error


def _is_told(row: Any) -> bool:
    """Say whether the loss of the row's claim is in the log, or will be once its worker hears of it."""
    claim = standing_claim(row)
    return claim is not None and (claim.watched or claim.told)


def _log_lost(rows: Sequence[Any], error: ClaimLost) -> None:
    if not rows:
        return
    said = error if len(rows) == len(error.lost) else ClaimLost(rows, reason=error.reason)
    logger.warning(
        "%s",
        redact(str(said)),
        extra={
            "event": "lost",
            "model": rows[0]._meta.label,
            "keys": [str(row.pk) for row in rows],
            "rows": len(rows),
        },
    )
    for row in rows:
        if (claim := claim_of(row)) is not None:
            claim.told = True


def _why_none_is_carried(lost: Sequence[Any]) -> str:
    without = [row for row in lost if standing_claim(row) is None]
    if without and all(claim_of(row) is not None for row in without):
        return "it carries no claim any more: a verb of its own has ended it"
    if len(without) == len(lost):
        return "it carries no claim; only rows that claim_batch() or with_token() returned do, until a verb ends them"
    return ""


def tell_lost(rows: Iterable[Any]) -> None:
    """Send ``claim_lost`` for rows whose claims were found to stand no more."""
    by_sender: dict[tuple[type[models.Model], str], list[Any]] = {}
    for row in rows:
        claim = claim_of(row)
        alias = claim.alias if claim is not None else row._state.db or DEFAULT_DB_ALIAS
        by_sender.setdefault((type(row), alias), []).append(row)
    for (model, alias), same in by_sender.items():
        send_after_commit(claim_lost, model, alias, rows=same)
