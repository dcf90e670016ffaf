"""Finishing rows well, each in the way that the policy of its model names; the worker comes here like any caller."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from django.db import connections, models, router, transaction

from django_taskclaim.awaitables import refuse_not_run
from django_taskclaim.claim import COMPLETED, carried_claim, carried_claims, end_claims
from django_taskclaim.completion import Archive, Call, Clear, Delete, Mark, Save
from django_taskclaim.contention import contention_code, server_code
from django_taskclaim.db.sql import SQL, Change
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.guard import show
from django_taskclaim.policy import known_policy
from django_taskclaim.querysets.assignments import (
    as_new,
    completed,
    due_later,
    open_again,
    setting,
)
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
    rows: Any,
    update_fields: Collection[str],
    *,
    may_be_gone: bool = False,
    joins: bool = False,
) -> int:
    """Finish rows well, each as the policy of its model says, and return how many; see ``ClaimQuerySet.complete``.

    A source of a companion that is to be written *may be gone*, or SourceGone is raised. A completion that *joins* the
    transaction that is open takes no savepoint, and its error ends the transaction.

    CallRaised where the policy is a function that raised. A database error inside it passes as it is if it says
    something of the database: contention, or a session that broke.
    """
    given = Given(rows)
    policies = {one: known_policy(one).completion for one in {h.target.model for h in given.held}}
    results = {one: checked_results(one, update_fields) for one in {model, *policies}}
    # Rows that are only marked are written together, whatever their models.
    groups: dict[Any, list[HeldRows]] = {}
    for held in given.held:
        kind = Mark if isinstance(policies[held.target.model], Mark) else held.target.model
        groups.setdefault(kind, []).append(held)
    for same in groups.values():
        of_group = {one.target.model: results[one.target.model] for one in same}
        policy = policies[same[0].target.model]
        verb = _VERBS[type(policy)](policy, of_group, may_be_gone)
        verb.joins = joins
        given.write(same, verb)
    return given.end()


class Completing(Write):
    """Marks rows as complete and writes their results."""

    finished: Collection[Status] = (Status.COMPLETE,)
    how = COMPLETED
    status = Status.COMPLETE
    unknown: tuple[str, ...] = ("completed_at",)
    signal = rows_completed
    #: Whether the statement writes results of the row itself. Where not, those of its source alone are written.
    writes_row = True

    def __init__(
        self, policy: Any, named: Mapping[type[models.Model], Results], may_be_gone: bool
    ) -> None:
        """*named* are the results of each model whose rows are written together."""
        self.policy, self.named, self.may_be_gone = policy, named, may_be_gone
        of_sources = {one: Results(of_source=named[one].of_source) for one in named}
        self.results = named if self.writes_row else of_sources
        self.per_row = max([len(one.own) for one in self.results.values()])
        if any(one.inherited or one.of_source for one in self.results.values()):
            self.has_more = True

    def change(self, target: ClaimTarget, rows: Rows) -> Change | None:
        results = self.results[target.model].own
        return Change(self.shared(target), own_values(target.table, results, rows))

    def shared(self, target: ClaimTarget) -> Sequence[SQL]:
        """Return what the statement sets in all rows alike."""
        return completed(target)

    def then(self, target: ClaimTarget, rows: Rows) -> None:
        results = self.results[target.model]
        write_elsewhere(target, rows, results, may_be_gone=self.may_be_gone)


class Deleting(Completing):
    """Deletes rows: by the statement itself, or once they are locked, where Django deletes."""

    finished: Collection[Status] = ()
    unknown = ()
    writes_row = False

    def __init__(
        self, policy: Delete, named: Mapping[type[models.Model], Results], may_be_gone: bool
    ) -> None:
        super().__init__(policy, named, may_be_gone)
        self.only_locks = policy.cascade or any(map(is_on_many_tables, named))
        self.has_more = self.has_more or self.only_locks

    def change(self, target: ClaimTarget, rows: Rows) -> Change | None:
        return None

    def then(self, target: ClaimTarget, rows: Rows) -> None:
        super().then(target, rows)
        if self.only_locks:
            remove(target, rows, Status.PROCESSING, cascade=True)


class Archiving(Completing):
    """Moves rows to another table, once they are complete and have their results."""

    # Where its row is gone, nobody can tell whether an unanswered COMMIT moved it.
    finished: Collection[Status] = ()
    unknown = ()
    has_more = True

    def then(self, target: ClaimTarget, rows: Rows) -> None:
        super().then(target, rows)
        move_to(self.policy.model, target, rows, cascade=self.policy.cascade)


class Clearing(Completing):
    """Opens rows again, as good as new."""

    finished: Collection[Status] = ()
    status = Status.OPEN
    unknown = (
        "iteration",
        "not_before",
        "completed_at",
        "attempts",
        "last_error",
        "error_class",
    )

    def shared(self, target: ClaimTarget) -> Sequence[SQL]:
        # Also without a pause: the rows done last stand behind all others that are due.
        due = due_later(target, self.policy.pause)
        done = setting(target, completed_at=SQL(target.dialect.now))
        return [*as_new(target), *due, *done, *open_again(target)]


class Calling(Completing):
    """Passes rows to a function of the user's, once they are complete."""

    has_more = True

    def then(self, target: ClaimTarget, rows: Rows) -> None:
        super().then(target, rows)
        # To the function they are ordinary rows that are complete.
        end_claims(carried_claims(rows), COMPLETED)
        show_state(rows, Status.COMPLETE, ("completed_at",))
        try:
            self._call_in_savepoint(target.alias, list(rows))
        except BaseException:
            show_state(rows, Status.PROCESSING, ("completed_at", "expires_at"))
            raise

    def _call_in_savepoint(self, alias: str, rows: list[Any]) -> None:
        """Call the function in a savepoint, which is missing in the end if the function has lost the transaction."""
        returned = False
        try:
            with transaction.atomic(using=alias):
                self.call(rows)
                returned = True
        except BaseException as error:
            # SystemExit included: in a worker it would end the thread that writes for all rows.
            if contention_code(error) is not None or server_code(error) is not None:
                raise
            if returned:
                raise CallRaised(_nothing_was_kept(error)) from error
            if connections[alias].is_usable():
                raise CallRaised(error) from error
            raise

    def call(self, rows: list[Any]) -> None:
        """Call the function with the rows of one database."""
        function = self.policy.function
        refuse_not_run(function(rows), function)


class Saving(Calling):
    """Calls ``save()`` of rows whose claims are checked and locked by the statement before."""

    writes_row = False

    def call(self, rows: list[Any]) -> None:
        """Save the rows; where one raises, all instances are what they were before."""
        before = [dict(row.__dict__) for row in rows]
        _show_completed_at(rows)
        try:
            for row in rows:
                self._save(row)
        except BaseException:
            for row, own in zip(rows, before, strict=True):
                row.__dict__.clear()
                row.__dict__.update(own)
            raise

    def _save(self, row: Any) -> None:
        results = self.named[type(row)]
        names = [field.name for field in (*results.own, *results.inherited)]
        options: dict[str, Any] = {"update_fields": names} if names else {}
        alias = carried_claim(row).alias
        if router.db_for_write(type(row), instance=row) != alias:
            options["using"] = alias
        row.save(**options)


def _show_completed_at(rows: Rows) -> None:
    """Let instances show when they were completed: ``save()`` would leave out a column that it would have to read."""
    target = ClaimTarget.of(type(rows[0]), carried_claim(rows[0]).alias)
    field = target.columns.completed_at
    if field is not None:
        for part in target.dialect.chunks(rows, target.table):
            moments = dict(target.rows.filter(pk__in=keys_of(part)).values_list("pk", field.name))
            for row in part:
                show([row], {field: moments[carried_claim(row).pk]})


def _nothing_was_kept(error: BaseException) -> TaskClaimError:
    return TaskClaimError(
        "The function of the completion swallowed a database error, or ended its transaction, so nothing was kept:"
        f" {error}"
    )


_VERBS: dict[type, type[Completing]] = {
    Mark: Completing,
    Delete: Deleting,
    Archive: Archiving,
    Clear: Clearing,
    Call: Calling,
    Save: Saving,
}
