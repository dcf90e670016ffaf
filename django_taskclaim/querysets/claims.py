"""``ClaimQuerySet`` and ``ClaimManager``: the public face of every verb."""

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from asgiref.sync import sync_to_async
from django.db import models, transaction

from django_taskclaim import conf
from django_taskclaim.columns import claim_columns
from django_taskclaim.dialects import DatabaseNow
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.failures import recorded, told
from django_taskclaim.guard import (
    NEVER_INSERTED,
    claim_on,
    prepare_birth,
    refuse_names,
    remember,
    show,
)
from django_taskclaim.policy import Verdict, policy_for
from django_taskclaim.querysets import claiming, fencing, operating
from django_taskclaim.querysets.assignments import (
    Assignments,
    begin_assignments,
    release_assignments,
    set_apart,
)
from django_taskclaim.querysets.completing import CallRaised, complete, show_state
from django_taskclaim.querysets.everyone import stop_everyone
from django_taskclaim.querysets.losses import raise_lost, raise_unless_all
from django_taskclaim.querysets.people import PeopleVerbs
from django_taskclaim.querysets.progress import Progress
from django_taskclaim.querysets.results import checked_results, write_sources
from django_taskclaim.querysets.scope import Desk
from django_taskclaim.querysets.telling import tell
from django_taskclaim.querysets.waking import call_workers
from django_taskclaim.signals import (
    rows_claimed,
    rows_failed,
    rows_released,
    send_after_commit,
)
from django_taskclaim.states import Status, Token
from django_taskclaim.tokens import Claim, attach, carried_claim, clock, standing_claim

M = TypeVar("M", bound=models.Model)


class ClaimQuerySet(PeopleVerbs[M]):
    """A queryset whose rows can be claimed; to inherit from, or to make a manager of with ``ClaimManager``."""

    # Filters

    def open(self) -> Self:
        """Rows that wait to be claimed, due or not."""
        return self._in_state(Status.OPEN)

    def due(self) -> Self:
        """Open rows whose waiting time is over by the database's clock."""
        waiting = claim_columns(self.model).not_before
        rows = self.open()
        return rows if waiting is None else rows.filter(**{f"{waiting.name}__lte": DatabaseNow()})

    def held_by(self, who: str) -> Self:
        """Rows that *who* holds: the name given to ``claim_batch``, or a worker's id."""
        return self._in_state(Status.PROCESSING).filter(
            **{claim_columns(self.model).claimed_by.name: who}
        )

    def expired(self) -> Self:
        """Rows whose lease has ended and that ``release_expired`` has not yet put back."""
        return self.filter(operating.expired_condition(Desk.of(self.model, self.db)))

    def failed(self) -> Self:
        """Rows that ended badly and wait for a ``reset``."""
        return self._in_state(Status.FAILED)

    def _in_state(self, status: Status) -> Self:
        return self.filter(**{claim_columns(self.model).status.name: status})

    def progress(self) -> Progress:
        """Count the rows in each state, in one statement that reads every matching row."""
        return Progress(**operating.progress_counts(self))

    # Claiming

    def claim_batch(
        self,
        limit: int,
        *,
        claimed_by: str | None = None,
        lease: float | timedelta | None = None,
        include_held: bool = False,
        durable: bool = True,
    ) -> list[M]:
        """Claim up to *limit* open, due rows of this queryset and return them, committed.

        Returns an empty list when nothing is free or the switch is off. *claimed_by* names a person or another
        holder of the caller's (never with ``#``); by default each call has an id of its own. *lease* is how long the
        claim lasts unless renewed (seconds or timedelta; the model's policy by default). With *include_held* the rows
        that *claimed_by* holds already come first, their leases extended and never shortened.

        Raises RuntimeError inside a transaction of the caller's unless *durable* is False; then the claim is
        provisional until that transaction commits. Raises TypeError for a queryset that cannot be claimed from
        (slices, unions, aggregates, ``values()``) and ValueError for a wrong argument.
        """
        request = claiming.checked_request(
            self.model, limit, claimed_by, lease, include_held, durable
        )
        return self._claim(request)

    def _claim(self, request: claiming.Request) -> list[M]:
        self._for_write = True
        rows: list[M] = claiming.claim(self, request)
        if rows:
            send_after_commit(rows_claimed, self.model, self.db, rows=rows)
        return rows

    def with_token(self, pk: Any, token: "Token | tuple[str, int] | str") -> M:
        """Return the row with the key *pk*, carrying the claim that *token* names.

        Whether that claim stands, the first verb finds out. Raises ``DoesNotExist`` for a row that is gone and
        ValueError for a text that is no token. The conditions of a queryset count (``mine.with_token(…)``); a
        manager finds also the rows that its own ``get_queryset`` hides, for a row may be hidden while it is worked on.
        """
        self._for_write = True
        return self._carrying(self.get(pk=pk), Token.parse(token))

    def _claimed_by(self, holders: Collection[str]) -> list[M]:
        """Return the rows that these holders have now, each carrying its claim."""
        columns = claim_columns(self.model)
        self._for_write = True
        rows = self._in_state(Status.PROCESSING).filter(
            **{f"{columns.claimed_by.name}__in": holders}
        )
        fields = columns.claimed_by.attname, columns.iteration.attname
        # Of the user's columns none: one that cannot be read may be why nobody has got the rows.
        ours = {*fields, (columns.attempts or columns.iteration).attname}
        rows = rows.only(*(field.attname for field in columns.key), *ours)
        return [self._carrying(row, Token(*(getattr(row, f) for f in fields))) for row in rows]

    def _carrying(self, row: M, token: Token) -> M:
        columns = claim_columns(self.model)
        attempts = getattr(row, (columns.attempts or columns.iteration).attname)
        lease = policy_for(self.model).lease
        attach(row, Claim(token, self.db, columns.key_of(row), lease=lease, attempts=attempts))
        return row

    # Ending and extending claims

    def complete(self, rows: M | Iterable[M], *, update_fields: Collection[str] = ()) -> int:
        """Finish rows well and return how many.

        *update_fields* names columns of the user's that are written from the instances in the same fenced statement,
        prepared as ``save()`` does, so results and completion are recorded or lost together. Of a companion it may name
        columns of the source, too, which are written in the same transaction; SourceGone, and nothing is written, where
        that row is gone.

        What becomes of them then is their model's policy: marked by default, or deleted, archived, open again.
        Rows whose claim was lost are not written; once the others are, ClaimLost names them (``.lost``,
        ``.written``). The caller's transaction stays usable.
        """
        raised: CallRaised
        try:
            return self._complete(fencing.as_rows(rows), update_fields)
        except CallRaised as caught:
            raised = caught
        raise raised.error

    def _complete(
        self, given: Sequence[M], update_fields: Collection[str], *, may_be_gone: bool = False
    ) -> int:
        """``complete`` of different instances; what a function of the user's raised comes as CallRaised, told apart.

        A source of a companion's that is to be written *may be gone*, or SourceGone is raised.
        """
        names, of_source = checked_results(self.model, update_fields)
        sources = write_sources(of_source, may_be_gone=may_be_gone)
        written = complete(fencing.carrying(given)[0], names, also=sources)
        raise_unless_all(given, written)
        return len(written)

    def fail(self, rows: M | Iterable[M], error: BaseException | str, *, retry: bool = True) -> int:
        """Finish rows badly and return how many; a row with tries left is put back and waits its back-off first.

        *error* is recorded where the model has the columns for it. With ``retry=False``, or once the policy's
        ``max_attempts`` is reached, the row becomes ``failed``. What the policy says of errors of this class goes
        before: ``Permanent`` fails the row at once, and ``RetryLater`` puts it back uncounted, as ``release`` does,
        with nothing recorded; one with *everyone* stops all claims of the model for so long. Raises ClaimLost as
        ``complete`` does.
        """
        given = fencing.as_rows(rows)
        carrying, _ = fencing.carrying(given)
        verdicts = [(row, self._verdict(row, error, retry)) for row in carrying]
        written = self._end_badly([(row, one) for row, one in verdicts if one.counted], error)
        uncounted: dict[timedelta, list[M]] = {}
        for row, verdict in verdicts:
            if not verdict.counted:
                wait = verdict.wait()
                uncounted.setdefault(wait, []).append(row)
                if verdict.everyone:
                    stop_everyone(type(row), self.db, wait, told(error))
        for wait, same in uncounted.items():
            chosen = release_assignments(wait)
            written += self._open_again(same, chosen, ["iteration", "not_before"])
        raise_unless_all(given, written)
        return len(written)

    def _verdict(self, row: M, error: object, retry: bool) -> Verdict:
        claim = standing_claim(row)
        assert claim is not None, "only rows that carry a claim are judged"
        return policy_for(type(row)).judge(error, claim.attempts + 1, retry=retry)

    def _end_badly(self, judged: Sequence[tuple[M, Verdict]], error: object) -> list[M]:
        """Write what a counted failure makes of each row, and return those that were still held."""
        if not judged:
            return []
        told = recorded(error)
        waits = {id(row): None if verdict.final else verdict.wait() for row, verdict in judged}
        written = fencing.write_failed([row for row, _ in judged], waits, told)
        fencing.end(written)
        failed = [row for row in written if waits[id(row)] is None]
        waiting = [row for row in written if waits[id(row)] is not None]
        show_state(failed, Status.FAILED, "attempts", "last_error", "error_class")
        show_state(
            waiting, Status.OPEN, "attempts", "last_error", "error_class", "not_before", "iteration"
        )
        tell(rows_failed, written, error=error)
        return written

    def release(self, rows: M | Iterable[M], *, delay: float | timedelta | None = None) -> int:
        """Give rows back unfinished and uncounted, and return how many.

        With *delay* (seconds or timedelta) they wait that long; without, they keep their place in the order. A model
        without ``not_before`` cannot wait. Raises ClaimLost as ``complete`` does.
        """
        wait = None if delay is None else conf.waiting_time(delay)
        unknown = ["iteration"] if wait is None else ["iteration", "not_before"]
        return self._give_back(rows, release_assignments(wait), unknown)

    def _begin(self, row: M) -> None:
        """Note that a row which may kill its worker begins: from now on its expiry tells that it did.

        It has its whole lease from here, for one that ended before the handler is called would tell the same. Raises
        ClaimLost where the claim stands no more.
        """
        started, claim = clock(), carried_claim(row)
        raise_unless_all([row], fencing.write_held([row], begin_assignments(claim.lease)))
        claim.extend(started)

    def _set_apart(self, rows: M | Iterable[M]) -> int:
        """Give rows back uncounted, each to be claimed alone: one of them held up, or broke, all the others."""
        return self._give_back(rows, set_apart, ["iteration", "not_before"])

    def _give_back(
        self, rows: M | Iterable[M], assignments: Assignments, unknown: Sequence[str]
    ) -> int:
        given = fencing.as_rows(rows)
        carrying, _ = fencing.carrying(given)
        written = self._open_again(carrying, assignments, unknown)
        raise_unless_all(given, written)
        return len(written)

    def _open_again(
        self, rows: Sequence[M], assignments: Assignments, unknown: Sequence[str]
    ) -> list[M]:
        """Put rows back uncounted, and return those that were still held."""
        written = fencing.write_held(rows, assignments)
        fencing.end(written)
        show_state(written, Status.OPEN, *unknown)
        tell(rows_released, written)
        return written

    def renew(self, rows: M | Iterable[M], lease: float | timedelta | None = None) -> int:
        """Extend leases to *lease* from now (by default as long as they were asked for) and return how many.

        Never shortens a lease and never waits: a row that another transaction has locked is left as it is, neither
        renewed nor lost. Raises ClaimLost as ``complete`` does.
        """
        given = fencing.as_rows(rows)
        carrying, without = fencing.carrying(given)
        duration = None if lease is None else conf.positive_duration(lease, "lease")
        outcome = fencing.renew(carrying, duration)
        for row in outcome.renewed:
            show([row], {claim_columns(type(row)).expires_at: models.DEFERRED})
        lost = [*outcome.lost, *without]
        if lost:
            raise_lost(lost, outcome.renewed)
        return len(outcome.renewed)

    # Acting on many rows

    def release_expired(self, limit: int | None = None) -> int:
        """Put back rows whose lease has ended by the database's clock, and return how many.

        A worker's row is charged a try; on its last try it is first put back with the mark *crashed*, to be claimed
        alone, and only if that claim expires too it becomes ``failed``. Rows of holders that a caller named are never
        charged. Rows that another transaction has locked are left for the next call.
        """
        self._for_write = True
        return operating.release_expired(self, limit)

    def reset(
        self,
        *,
        complete: bool = False,
        running: bool = False,
        limit: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Make failed rows as good as new and return how many; complete and running ones only when named.

        The holders of running rows lose them. ``iteration`` goes on counting, so no old token stands again. *limit*
        bounds how many are reset; *progress* is called with the number so far as each chunk is committed.
        """
        self._for_write = True
        states = [
            Status.FAILED,
            *([Status.COMPLETE] if complete else []),
            *([Status.PROCESSING] if running else []),
        ]
        return operating.change(self, "reset", states, operating.reset_assignments, limit, progress)

    def take_back(self) -> int:
        """Put running rows back, uncounted, whoever holds them, and return how many; their holders lose them.

        An operator's act: for rows of a worker that is known to be dead, without waiting for its leases to end.
        """
        self._for_write = True
        return operating.take_back(self)

    def pause_rows(
        self, *, limit: int | None = None, progress: Callable[[int], None] | None = None
    ) -> int:
        """Take open rows out of the queue and return how many; running ones finish. Options as of ``reset``."""
        self._for_write = True
        how = operating.pause_assignments
        return operating.change(self, "paused", [Status.OPEN], how, limit, progress)

    def resume_rows(
        self, *, limit: int | None = None, progress: Callable[[int], None] | None = None
    ) -> int:
        """Open paused rows again and return how many. Options as of ``reset``."""
        self._for_write = True
        how = operating.resume_assignments
        return operating.change(self, "resumed", [Status.PAUSED], how, limit, progress)

    # Django's own writes, with our columns kept out

    def update(self, **kwargs: Any) -> int:
        """Django's ``update``; ClaimColumnError if a claim column is named."""
        refuse_names(self.model, kwargs, "update()")
        return super().update(**kwargs)

    update.alters_data = True  # type: ignore[attr-defined]

    def bulk_update(
        self, objs: Iterable[M], fields: Iterable[str], batch_size: int | None = None
    ) -> int:
        """Django's ``bulk_update``, fenced: where an instance's claim was lost, ClaimLost and nothing written."""
        rows, names = list(objs), list(fields)
        refuse_names(self.model, names, "bulk_update()")
        self._for_write = True
        held = [
            row
            for row in rows
            if (claim := standing_claim(row)) is not None and claim.alias == self.db
        ]
        lost: list[M] = []
        written = 0
        with transaction.atomic(using=self.db, savepoint=False):
            lost = fencing.lock_claims(held)
            if not lost:
                written = super().bulk_update(rows, names, batch_size)
        if lost:
            raise_lost(lost, [])
        return written

    bulk_update.alters_data = True  # type: ignore[attr-defined]

    def bulk_create(
        self,
        objs: Iterable[M],
        batch_size: int | None = None,
        ignore_conflicts: bool = False,
        update_conflicts: bool = False,
        update_fields: Collection[str] | None = None,
        unique_fields: Collection[str] | None = None,
    ) -> list[M]:
        """Django's ``bulk_create``; rows are born as with ``save()``, and an upsert writes no claim column.

        Raises ClaimLost for an instance that was ever claimed under the key that it would insert.
        """
        rows = list(objs)
        refuse_names(self.model, update_fields, "bulk_create(update_fields=…)")
        self._for_write = True
        key_of = claim_columns(self.model).key_of
        claimed = [row for row in rows if claim_on(row, self.db, key_of(row)) is not None]
        if claimed:
            raise ClaimLost(claimed, reason=NEVER_INSERTED)
        for row in rows:
            prepare_birth(row)
        created = super().bulk_create(
            rows, batch_size, ignore_conflicts, update_conflicts, update_fields, unique_fields
        )
        guarded = [field.attname for field in claim_columns(self.model).guarded]
        for row in created:
            remember(row, guarded)
        call_workers(claim_columns(self.model).owner, self.db)
        return created

    bulk_create.alters_data = True  # type: ignore[attr-defined]

    # Async twins

    async def aclaim_batch(self, limit: int, **options: Any) -> list[M]:
        """``claim_batch`` for async code."""
        return await sync_to_async(self.claim_batch)(limit, **options)

    async def awith_token(self, pk: Any, token: "Token | tuple[str, int] | str") -> M:
        """``with_token`` for async code."""
        return await sync_to_async(self.with_token)(pk, token)

    async def acomplete(self, rows: M | Iterable[M], *, update_fields: Collection[str] = ()) -> int:
        """``complete`` for async code."""
        return await sync_to_async(self.complete)(rows, update_fields=update_fields)

    async def afail(
        self, rows: M | Iterable[M], error: BaseException | str, *, retry: bool = True
    ) -> int:
        """``fail`` for async code."""
        return await sync_to_async(self.fail)(rows, error, retry=retry)

    async def arelease(
        self, rows: M | Iterable[M], *, delay: float | timedelta | None = None
    ) -> int:
        """``release`` for async code."""
        return await sync_to_async(self.release)(rows, delay=delay)

    async def arenew(self, rows: M | Iterable[M], lease: float | timedelta | None = None) -> int:
        """``renew`` for async code."""
        return await sync_to_async(self.renew)(rows, lease)

    async def arelease_expired(self, limit: int | None = None) -> int:
        """``release_expired`` for async code."""
        return await sync_to_async(self.release_expired)(limit)

    async def areset(
        self, *, complete: bool = False, running: bool = False, limit: int | None = None
    ) -> int:
        """``reset`` for async code."""
        return await sync_to_async(self.reset)(complete=complete, running=running, limit=limit)

    async def atake_back(self) -> int:
        """``take_back`` for async code."""
        return await sync_to_async(self.take_back)()

    async def apause_rows(self, *, limit: int | None = None) -> int:
        """``pause_rows`` for async code."""
        return await sync_to_async(self.pause_rows)(limit=limit)

    async def aresume_rows(self, *, limit: int | None = None) -> int:
        """``resume_rows`` for async code."""
        return await sync_to_async(self.resume_rows)(limit=limit)

    async def aprogress(self) -> Progress:
        """``progress`` for async code."""
        return await sync_to_async(self.progress)()


if TYPE_CHECKING:
    # What from_queryset() makes, in words that mypy and pyright both understand.
    class _Manager(ClaimQuerySet[M], models.Manager[M]):  # type: ignore[misc]
        pass

else:
    _Manager = models.Manager.from_queryset(ClaimQuerySet)


class ClaimManager(_Manager[M]):
    """The manager that the mixins bring; a custom one inherits from it or from ``ClaimManager.from_queryset(…)``."""

    def with_token(self, pk: Any, token: "Token | tuple[str, int] | str") -> M:
        """Return the row with the key *pk*, hidden or not, carrying the claim; see ``ClaimQuerySet.with_token``."""
        # A manager of related rows (``author.photos``) is a condition of the caller's.
        related = hasattr(self, "_apply_rel_filters")
        rows: Any = self.get_queryset() if related else models.Manager.get_queryset(self)
        return cast("M", rows.with_token(pk, token))

    async def awith_token(self, pk: Any, token: "Token | tuple[str, int] | str") -> M:
        """``with_token`` for async code."""
        return await sync_to_async(self.with_token)(pk, token)
