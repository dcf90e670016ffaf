"""Finishing rows well, each in the way that the policy of its model names; the worker comes here like any caller."""

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from django.db import connections, models, router, transaction

from django_taskclaim.awaitables import refuse_not_run
from django_taskclaim.claim import COMPLETED, carried_claim, carried_claims, end_claims
from django_taskclaim.completion import Archive, Call, Clear, Completion, Delete, Mark, Save
from django_taskclaim.contention import contention_code, server_code
from django_taskclaim.db.sql import Change
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.guard import show
from django_taskclaim.policy import policy_for, refuse_faulty
from django_taskclaim.querysets.assignments import (
    as_new,
    completed,
    done_now,
    due_later,
    open_again,
)
from django_taskclaim.querysets.removing import is_on_many_tables, move_to, remove
from django_taskclaim.querysets.results import (
    Results,
    checked_results,
    inherited,
    own_values,
    write_inherited,
    write_sources,
)
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.querysets.writes import (
    Given,
    HeldRows,
    Rows,
    Write,
    finish,
    keys_of,
    show_state,
    write,
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
) -> int:
    """Finish rows well, each as the policy of its model says, and return how many; see ``ClaimQuerySet.complete``.

    A source of a companion that is to be written *may be gone*, or SourceGone is raised.

    CallRaised where the policy is a function that raised. A database error inside it passes as it is if it says
    something of the database: contention, or a session that broke.
    """
    given = Given.of(rows)
    results = checked_results(model, update_fields, may_be_gone=may_be_gone)
    written: list[Any] = []
    for policy, held in _by_policy(given):
        verb = _VERBS[type(policy)](policy, results, held)
        done = write(held, verb)
        finish(done, COMPLETED, verb.status, verb.unknown, rows_completed)
        written += done
    given.raise_unless_all(written)
    return len(written)


def _by_policy(given: Given) -> list[tuple[Completion, list[HeldRows]]]:
    """Group rows by database and policy and, but for those that are marked, by their model."""
    groups: dict[Any, tuple[Completion, list[HeldRows]]] = {}
    for held in given.held:
        model = held.target.model
        refuse_faulty(model)
        policy = policy_for(model).completion
        place = held.target.alias, Mark if isinstance(policy, Mark) else model
        groups.setdefault(place, (policy, []))[1].append(held)
    return list(groups.values())


class Completing(Write):
    """Marks rows as complete and writes their results."""

    finished: Collection[Status] = (Status.COMPLETE,)
    #: The state that instances show then, and the roles of columns whose new value only the database knows.
    status: ClassVar[Status] = Status.COMPLETE
    unknown: ClassVar[Sequence[str]] = ("completed_at",)

    def __init__(self, policy: Any, results: Results, held: list[HeldRows]) -> None:
        self.policy, self.results = policy, results
        self.per_row = len(results.own)
        self.has_more = bool(results.of_source) or inherited(held, results.own)

    def change(self, target: ClaimTarget, rows: Rows) -> Change | None:
        return Change(completed(target), own_values(target, rows, self.results.own))

    def then(self, target: ClaimTarget, rows: Rows) -> None:
        write_inherited(target, rows, self.results.own)
        write_sources(target, rows, self.results)


class Deleting(Completing):
    """Deletes rows: by the statement itself, or, where they are part of several tables, once they are locked."""

    finished: Collection[Status] = ()
    unknown = ()

    def __init__(self, policy: Delete, results: Results, held: list[HeldRows]) -> None:
        super().__init__(policy, results._replace(own=()), held)
        self.only_locks = policy.cascade or is_on_many_tables(held[0].target.columns.owner)
        self.has_more = self.has_more or self.only_locks

    def change(self, target: ClaimTarget, rows: Rows) -> Change | None:
        return None

    def then(self, target: ClaimTarget, rows: Rows) -> None:
        if self.only_locks:
            remove(target, rows, Status.PROCESSING, cascade=self.policy.cascade)
        super().then(target, rows)


class Archiving(Completing):
    """Moves rows to another table, once they are complete and have their results."""

    # Where its row is gone, nobody can tell whether an unanswered COMMIT moved it.
    finished: Collection[Status] = ()
    unknown = ()

    def __init__(self, policy: Archive, results: Results, held: list[HeldRows]) -> None:
        super().__init__(policy, results, held)
        self.has_more = True

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

    def change(self, target: ClaimTarget, rows: Rows) -> Change | None:
        # Also without a pause: the rows done last stand behind all others that are due.
        due = due_later(target, self.policy.pause)
        shared = [*as_new(target), *due, *done_now(target), *open_again(target)]
        return Change(shared, own_values(target, rows, self.results.own))


class Calling(Completing):
    """Passes rows to a function of the user's, once they are complete."""

    def __init__(self, policy: Call | Save, results: Results, held: list[HeldRows]) -> None:
        super().__init__(policy, results, held)
        self.has_more = True

    def then(self, target: ClaimTarget, rows: Rows) -> None:
        super().then(target, rows)
        # To the function they are ordinary rows that are complete.
        end_claims(carried_claims(rows), COMPLETED)
        show_state(rows, Status.COMPLETE, "completed_at")
        try:
            self._call_in_savepoint(target.alias, list(rows))
        except BaseException:
            show_state(rows, Status.PROCESSING, "completed_at", "expires_at")
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

    def __init__(self, policy: Save, results: Results, held: list[HeldRows]) -> None:
        self.saved_names = results.own
        super().__init__(policy, results._replace(own=()), held)

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
        options: dict[str, Any] = {"update_fields": self.saved_names} if self.saved_names else {}
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
