"""What became of a transaction whose COMMIT was never answered: read back from the rows it would have written."""

import itertools
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from django.db import Error, InterfaceError, InternalError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_taskclaim.claim import COMPLETED, carried_claim, clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.db.sql import NOWAIT
from django_taskclaim.querysets.scope import ClaimTarget, Target
from django_taskclaim.states import Status

R = TypeVar("R")

#: What a server that is away, stopping or no longer the primary answers with.
AWAY = (OperationalError, InterfaceError, InternalError)

#: How many seconds the caller of a verb waits for a database that has just failed to answer a COMMIT.
PATIENCE = 5.0

#: Seconds between two tries.
PAUSE = 0.1


class Judgement(NamedTuple):
    """What a transaction whose COMMIT was not answered has left of each row."""

    #: Finished under the token that the instance carries: the transaction was committed.
    ours_complete: list[Any]
    #: Gone, open again, or claimed anew: whether the transaction was committed, nobody can tell any more.
    undecided: list[Any]
    #: Still processing under the token: the transaction was not committed, and never will be.
    still_held: list[Any]


def judge_after_lost_commit(
    rows: Iterable[Any],
    *,
    patience: float = PATIENCE,
    finished: Collection[Status] = (Status.COMPLETE,),
) -> Judgement:
    """Say what became of *rows* after the COMMIT of a transaction that was to finish them was not answered.

    Every row must have been claimed; the token that its instance carries decides, by what the database to which the
    claim was written says now. A claim that is found finished is ended on the instance, and one that is undecided is
    marked as lost there.

    Waits up to *patience* seconds for a database that is away, or in which the unanswered transaction still has the
    rows locked; then the database's error passes on, nothing is decided, and the call may be repeated. To be called
    outside of any transaction. The thread's connection is replaced if it broke.
    """
    judgement = Judgement([], [], [])
    for target, same in _by_table(rows):
        states = patiently(target, partial(_states, target, same), patience)
        for row in same:
            _part(judgement, row, states.get(carried_claim(row).pk), finished).append(row)
    for row in judgement.ours_complete:
        carried_claim(row).end(COMPLETED)
    for row in judgement.undecided:
        carried_claim(row).lost = carried_claim(row).undecided = True
    for row in itertools.chain(*judgement):
        carried_claim(row).unanswered = False
    return judgement


def _by_table(rows: Iterable[Any]) -> list[tuple[ClaimTarget, list[Any]]]:
    places: dict[Any, tuple[ClaimTarget, list[Any]]] = {}
    for row in rows:
        alias = carried_claim(row).alias
        place = (alias, claim_columns(type(row)).owner)
        places.setdefault(place, (ClaimTarget.of(type(row), alias), []))[1].append(row)
    return list(places.values())


def _states(target: ClaimTarget, rows: list[Any]) -> dict[Any, tuple[Any, ...]]:
    """Return status, holder and iteration of the rows that are there, by key.

    Under a lock: a COMMIT that is on its way only now would otherwise land after it was found missing.
    """
    columns = target.columns
    fields = [*columns.key, columns.status, columns.claimed_by, columns.iteration]
    found: list[list[Any]] = []
    for part in target.dialect.chunks(sorted(carried_claim(row).pk for row in rows), target.table):
        found += target.dialect.select(target.table, fields, target.table.keyed(part), NOWAIT)
    return {target.table.key_of(row): tuple(row[-3:]) for row in found}


def _part(
    judgement: Judgement, row: Any, state: tuple[Any, ...] | None, finished: Collection[Status]
) -> list[Any]:
    if state is None or state[1:] != tuple(carried_claim(row).token):
        return judgement.undecided
    if state[0] == Status.PROCESSING:
        return judgement.still_held
    return judgement.ours_complete if state[0] in finished else judgement.undecided


def patiently(target: Target, look: Callable[[], R], patience: float) -> R:
    """Return what *look* finds in a transaction of its own, as soon as the database lets it."""
    connection = target.dialect.connection
    end = clock() + patience
    while True:
        try:
            with target.dialect.own_transaction():
                return look()
        except AWAY:
            if connection.in_atomic_block:
                raise
            give_up(connection)
            if clock() >= end:
                raise
        time.sleep(PAUSE)


def give_up(connection: BaseDatabaseWrapper) -> None:
    """Close a connection that broke, so that the next statement opens a new one."""
    with suppress(Error):
        connection.close()
