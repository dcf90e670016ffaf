"""Finishing rows well, each in the way that the policy of its model names; the worker comes here like any caller."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from django.db import connections, models, transaction

from django_taskclaim.awaitables import refuse_not_run
from django_taskclaim.claim import COMPLETED as ENDED_WELL
from django_taskclaim.claim import carried_claims, end_claims
from django_taskclaim.completion import Archive, Call, Clear, Completion, Delete
from django_taskclaim.contention import contention_code, server_code
from django_taskclaim.db.sql import OwnValues
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.policy import known_policy
from django_taskclaim.querysets.removing import is_on_many_tables, move_to, remove
from django_taskclaim.querysets.results import (
    Results,
    checked_results,
    own_values,
    write_elsewhere,
)
from django_taskclaim.querysets.scope import AS_NEW, COMPLETED, NOW, OPEN_AGAIN, ClaimTarget
from django_taskclaim.querysets.writes import Given, Rows, Write, show_state
from django_taskclaim.signals import rows_completed
from django_taskclaim.states import Status


class CallRaised(Exception):
    """A function of the user's that belongs to the completion raised *error*; nothing was written."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def complete(
    model: type[models.Model],
    rows: object,
    update_fields: Collection[str],
    *,
    may_be_gone: bool = False,
    savepoint: bool = True,
) -> int:
    """Finish rows well, each as the policy of its model says, and return how many; see ``ClaimQuerySet.complete``.

    A source of a companion that is to be written *may be gone*, or SourceGone is raised. Without a *savepoint* an
    error ends the transaction that is open.

    CallRaised where the policy is a function that raised. A database error inside it passes as it is if it says
    something of the database: contention, or a session that broke.
    """
    checked_results(model, update_fields)
    given = Given(rows)
    # All are made before the first one writes, for each may raise.
    verbs: dict[type[models.Model], Completing] = {}
    for held in given.held:
        kind = held.target.model
        if kind not in verbs:
            policy, results = known_policy(kind).completion, checked_results(kind, update_fields)
            verbs[kind] = Completing(kind, policy, results, may_be_gone)
            verbs[kind].savepoint = savepoint
    for kind, verb in verbs.items():
        given.write([held for held in given.held if held.target.model is kind], verb)
    return given.end()


class Completing(Write):
    """Does with rows of one model what their policy says, and writes their results."""

    def __init__(
        self, model: type[models.Model], policy: Completion, results: Results, may_be_gone: bool
    ) -> None:
        sets = COMPLETED
        if isinstance(policy, Clear):
            # Also without a pause: the rows done last stand behind all others that are due.
            sets = {**AS_NEW, "not_before": policy.pause, "completed_at": NOW, **OPEN_AGAIN}
        super().__init__(sets, rows_completed, how=ENDED_WELL)
        self.policy, self.results, self.may_be_gone = policy, results, may_be_gone
        if isinstance(policy, (Delete, Archive)):
            self.shown = {"status": Status.COMPLETE, "expires_at": None}
        if isinstance(policy, Delete):
            self.deletes = True
            self.only_locks = policy.cascade or is_on_many_tables(model)
            self.results = Results(of_source=results.of_source)
        self.per_row = len(self.results.own)
        acts = self.only_locks or isinstance(policy, (Archive, Call))
        self.has_more = acts or bool(self.results.inherited or self.results.of_source)

    def own_values(self, target: ClaimTarget, rows: Rows) -> Sequence[OwnValues]:
        return own_values(target.table, self.results.own, rows)

    def then(self, target: ClaimTarget, rows: Rows) -> None:
        write_elsewhere(target, rows, self.results, may_be_gone=self.may_be_gone)
        match self.policy:
            case Delete() if self.only_locks:
                remove(target, rows, Status.PROCESSING, cascade=True)
            case Archive():
                move_to(self.policy.model, target, rows, cascade=self.policy.cascade)
            case Call(function):
                _call(target.alias, rows, function)


def _call(alias: str, rows: Rows, function: Callable[[list[Any]], object]) -> None:
    """Call a function of the user's, to which the rows are ordinary ones that are complete.

    It has a savepoint, which is missing in the end if that code has lost the transaction.
    """
    end_claims(carried_claims(rows), ENDED_WELL)
    show_state(rows, COMPLETED)
    returned = False
    try:
        with transaction.atomic(using=alias):
            refuse_not_run(function(list(rows)), function)
            returned = True
    except BaseException as error:
        show_state(rows, {"status": Status.PROCESSING, "completed_at": NOW, "expires_at": NOW})
        # SystemExit included: in a worker it would end the thread that writes for all rows.
        if contention_code(error) is not None or server_code(error) is not None:
            raise
        if returned:
            raise CallRaised(
                TaskClaimError(
                    "The function of the completion swallowed a database error, or ended its transaction, so nothing"
                    f" was kept: {error}"
                )
            ) from error
        if connections[alias].is_usable():
            raise CallRaised(error) from error
        raise
