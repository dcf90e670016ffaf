"""Finishing rows well, each in the way that the policy of its model names; the worker comes here like any caller."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from django.db import connections, models, router, transaction

from django_taskclaim.awaitables import refuse_not_run
from django_taskclaim.claim import COMPLETED as ENDED_WELL
from django_taskclaim.claim import carried_claim, carried_claims, end_claims
from django_taskclaim.completion import Archive, Call, Clear, Completion, Delete, Mark, Save
from django_taskclaim.contention import contention_code, server_code
from django_taskclaim.db.sql import OwnValues
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.guard import show
from django_taskclaim.policy import known_policy
from django_taskclaim.querysets.assignments import AS_NEW, COMPLETED, NOW, OPEN_AGAIN
from django_taskclaim.querysets.removing import is_on_many_tables, move_to, remove
from django_taskclaim.querysets.results import (
    Results,
    checked_results,
    own_values,
    write_elsewhere,
)
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.writes import (
    Given,
    HeldRows,
    Rows,
    Write,
    keys_of,
    show_state,
)
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
    given = Given(rows)
    policies = {one: known_policy(one).completion for one in {h.target.model for h in given.held}}
    results = {one: checked_results(one, update_fields) for one in {model, *policies}}
    # Rows that are only marked are written together, also those of several models.
    groups: dict[Any, list[HeldRows]] = {}
    for held in given.held:
        kind = Mark if isinstance(policies[held.target.model], Mark) else held.target.model
        groups.setdefault(kind, []).append(held)
    for same in groups.values():
        of_group = {one.target.model: results[one.target.model] for one in same}
        policy = policies[same[0].target.model]
        verb = Completing(policy, of_group, may_be_gone)
        verb.savepoint = savepoint
        given.write(same, verb)
    return given.end()


class Completing(Write):
    """Does with rows what their policy says, and writes their results."""

    def __init__(
        self,
        policy: Completion,
        named: Mapping[type[models.Model], Results],
        may_be_gone: bool,
    ) -> None:
        """*named* are the results of each model whose rows are written together."""
        sets = COMPLETED
        if isinstance(policy, Clear):
            # Also without a pause: the rows done last stand behind all others that are due.
            sets = {**AS_NEW, "not_before": policy.pause, "completed_at": NOW, **OPEN_AGAIN}
        super().__init__(sets, rows_completed, how=ENDED_WELL)
        self.policy, self.named, self.results, self.may_be_gone = policy, named, named, may_be_gone
        if isinstance(policy, (Delete, Archive)):
            self.shown = {"status": Status.COMPLETE, "expires_at": None}
        if isinstance(policy, Delete):
            self.deletes = True
            self.only_locks = policy.cascade or any(map(is_on_many_tables, named))
        if isinstance(policy, (Delete, Save)):
            # The statement writes no results of the row itself.
            self.results = {one: Results(of_source=named[one].of_source) for one in named}
        results = self.results.values()
        self.per_row = max([len(one.own) for one in results])
        acts = self.only_locks or isinstance(policy, (Archive, Call, Save))
        self.has_more = acts or any(one.inherited or one.of_source for one in results)

    def own_values(self, target: ClaimTarget, rows: Rows) -> Sequence[OwnValues]:
        return own_values(target.table, self.results[target.model].own, rows)

    def then(self, target: ClaimTarget, rows: Rows) -> None:
        write_elsewhere(target, rows, self.results[target.model], may_be_gone=self.may_be_gone)
        match self.policy:
            case Delete() if self.only_locks:
                remove(target, rows, Status.PROCESSING, cascade=True)
            case Archive():
                move_to(self.policy.model, target, rows, cascade=self.policy.cascade)
            case Call(function):
                _call(target.alias, rows, lambda: refuse_not_run(function(list(rows)), function))
            case Save():
                _call(target.alias, rows, partial(_save_all, target, rows, self.named))


def _call(alias: str, rows: Rows, function: Callable[[], object]) -> None:
    """Call code of the user's, to which the rows are ordinary ones that are complete.

    It has a savepoint, which is missing in the end if that code has lost the transaction.
    """
    end_claims(carried_claims(rows), ENDED_WELL)
    show_state(rows, COMPLETED)
    returned = False
    try:
        with transaction.atomic(using=alias):
            function()
            returned = True
    except BaseException as error:
        show_state(rows, {"status": Status.PROCESSING, "completed_at": NOW, "expires_at": NOW})
        # SystemExit included: in a worker it would end the thread that writes for all rows.
        if contention_code(error) is not None or server_code(error) is not None:
            raise
        if returned:
            raise CallRaised(_nothing_was_kept(error)) from error
        if connections[alias].is_usable():
            raise CallRaised(error) from error
        raise


def _save_all(target: ClaimTarget, rows: Rows, named: Mapping[Any, Results]) -> None:
    """Save rows whose claims are locked; where one raises, all instances are what they were before."""
    before = [dict(row.__dict__) for row in rows]
    _show_completed_at(target, rows)
    try:
        for row in rows:
            results = named[type(row)]
            names = [field.name for field in (*results.own, *results.inherited)]
            options: dict[str, Any] = {"update_fields": names} if names else {}
            if router.db_for_write(type(row), instance=row) != target.alias:
                options["using"] = target.alias
            row.save(**options)
    except BaseException:
        for row, own in zip(rows, before, strict=True):
            row.__dict__.clear()
            row.__dict__.update(own)
        raise


def _show_completed_at(target: ClaimTarget, rows: Rows) -> None:
    """Let instances show when they were completed: ``save()`` would leave out a column that it would have to read."""
    if (field := target.columns.completed_at) is None:
        return
    for part in target.dialect.chunks(rows, target.table):
        moments = dict(target.rows.filter(pk__in=keys_of(part)).values_list("pk", field.name))
        for row in part:
            show([row], {field: moments[carried_claim(row).pk]})


def _nothing_was_kept(error: BaseException) -> TaskClaimError:
    return TaskClaimError(
        "The function of the completion swallowed a database error, or ended its transaction, so nothing was kept:"
        f" {error}"
    )
