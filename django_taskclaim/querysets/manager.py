"""``ClaimQuerySet`` and ``ClaimManager``: the public face of every verb."""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from django.db import models

from django_taskclaim import conf
from django_taskclaim.awaitables import async_twin
from django_taskclaim.claim import checked_name, clock, new_holder
from django_taskclaim.columns import claim_columns
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets import completing, instances, operating, writes
from django_taskclaim.querysets.claiming import ClaimCall, claim
from django_taskclaim.querysets.fence import FencedQuerySet
from django_taskclaim.querysets.operating import Lease, Progressed
from django_taskclaim.querysets.scope import in_state, is_due, is_expired, is_open, is_running
from django_taskclaim.querysets.why_empty import Progress, WhyEmpty, progress_of
from django_taskclaim.querysets.why_empty import why_empty as explain_empty
from django_taskclaim.states import Status, Token

M = TypeVar("M", bound=models.Model)


class ClaimQuerySet(FencedQuerySet[M]):
    """A queryset whose rows can be claimed; to inherit from, or to make a manager of with ``ClaimManager``."""

    # Filters

    def open(self) -> Self:
        """Rows that wait to be claimed, due or not."""
        return self.filter(is_open(claim_columns(self.model)))

    def due(self) -> Self:
        """Open rows whose waiting time is over by the database's clock."""
        return self.open().filter(is_due(claim_columns(self.model)))

    def held_by(self, who: str) -> Self:
        """Rows that *who* holds: the name given to ``claim_batch``, or a worker's id."""
        columns = claim_columns(self.model)
        return self.filter(is_running(columns), **{columns.claimed_by.name: who})

    def expired(self) -> Self:
        """Rows whose lease has ended and that ``release_expired`` has not yet put back."""
        return self.filter(is_expired(claim_columns(self.model)))

    def failed(self) -> Self:
        """Rows that ended badly and wait for a ``reset``."""
        return self.filter(in_state(claim_columns(self.model), Status.FAILED))

    def progress(self) -> Progress:
        """Count the rows in each state, in one statement that reads every matching row."""
        return progress_of(self)

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
        if include_held and claimed_by is None:
            raise ValueError(
                "include_held=True returns what claimed_by holds, so claimed_by must be given."
            )
        holder = new_holder() if claimed_by is None else checked_name(claimed_by)
        duration = policy_for(self.model).lease
        if lease is not None:
            duration = conf.DURATION.check(lease, "lease")
        conf.BATCH_SIZE.check(limit, "limit")
        call = ClaimCall(self, limit, holder, duration, clock(), include_held, durable)
        return cast("list[M]", claim(call))

    def with_token(self, pk: Any, token: "Token | tuple[str, int] | str") -> M:
        """Return the row with the key *pk*, carrying the claim that *token* names.

        Whether that claim stands, the first verb finds out. Raises ``DoesNotExist`` for a row that is gone and
        ValueError for a text that is no token. The conditions of a queryset count (``mine.with_token(…)``); a
        manager finds also the rows that its own ``get_queryset`` hides, for a row may be hidden while it is worked on.
        """
        self._for_write = True
        return cast("M", instances.carrying(self.get(pk=pk), Token.parse(token), self.db))

    # Ending and extending claims

    def complete(self, rows: M | Iterable[M], *, update_fields: Collection[str] = ()) -> int:
        """Finish rows well and return how many.

        *update_fields* names columns of the user's that are written from the instances in the same fenced statement,
        prepared as ``save()`` does, so results and completion are recorded or lost together. Of a companion it may name
        columns of the source, too, which are written in the same transaction; SourceGone, and nothing is written, where
        that row is gone.

        What becomes of them then is their model's policy: marked by default, or deleted, archived, open again.
        Rows whose claim was lost are not written; once the others are, ClaimLost names them (``.lost``,
        ``.written``). The caller's transaction stays usable. Rows of several models or databases are written one after
        the other: an error of one leaves those before it written, and their claims ended.
        """
        return completing.complete(self.model, rows, update_fields)

    def fail(self, rows: M | Iterable[M], error: BaseException | str, *, retry: bool = True) -> int:
        """Finish rows badly and return how many; a row with tries left is put back and waits its back-off first.

        *error* is recorded where the model has the columns for it. With ``retry=False``, or once the policy's
        ``max_attempts`` is reached, the row becomes ``failed``. What the policy says of errors of this class goes
        before: ``Permanent`` fails the row at once, and ``RetryLater`` puts it back uncounted, as ``release`` does,
        with nothing recorded; one with *everyone* stops all claims of the model for so long. Raises ClaimLost as
        ``complete`` does.
        """
        return writes.fail(rows, error, retry=retry)

    def release(self, rows: M | Iterable[M], *, delay: float | timedelta | None = None) -> int:
        """Give rows back unfinished and uncounted, and return how many.

        With *delay* (seconds or timedelta) they wait that long; without, they keep their place in the order. A model
        without ``not_before`` cannot wait. Raises ClaimLost as ``complete`` does.
        """
        return writes.release(rows, None if delay is None else conf.waiting_time(delay))

    def renew(self, rows: M | Iterable[M], lease: float | timedelta | None = None) -> int:
        """Extend leases to *lease* from now (by default as long as they were asked for) and return how many.

        Never shortens a lease and never waits: a row that another transaction has locked is left as it is, neither
        renewed nor lost, and so is, with an ERROR in the log, one that the database refuses to have written. Raises
        ClaimLost as ``complete`` does.
        """
        duration = None if lease is None else conf.DURATION.check(lease, "lease")
        return writes.renew_all(rows, duration)

    # Acting on many rows

    def release_expired(
        self, limit: int | None = None, *, progress: Progressed | None = None
    ) -> int:
        """Put back rows whose lease has ended by the database's clock, and return how many.

        A worker's row is charged a try. On its last try it is first quarantined: put back with a mark, to be claimed
        alone, and only if that claim expires too it becomes ``failed``. Rows of holders that a caller named are never
        charged. Rows that another transaction has locked are left for the next call, and those that the database
        refuses to have written stay as they are, each with an ERROR in the log. Options as of ``reset``.
        """
        return operating.in_chunks(self, operating.ReleaseExpired(), limit, progress)

    def reset(
        self,
        *,
        complete: bool = False,
        running: bool = False,
        limit: int | None = None,
        progress: Progressed | None = None,
    ) -> int:
        """Make failed rows as good as new and return how many; complete and running ones only when named.

        The holders of running rows lose them. ``iteration`` goes on counting, so no old token stands again. *limit*
        bounds how many are reset; *progress* is called with the number so far as each chunk is committed.
        """
        verb = operating.reset(complete=complete, running=running)
        return operating.in_chunks(self, verb, limit, progress)

    def take_back(self, *, limit: int | None = None, progress: Progressed | None = None) -> int:
        """Put running rows of all holders back, uncounted, and return how many; their holders lose them.

        An operator's act: for rows of a worker that is known to be dead, without waiting for its leases to end.
        Options as of ``reset``.
        """
        return operating.in_chunks(self, operating.TAKE_BACK, limit, progress)

    def pause_rows(self, *, limit: int | None = None, progress: Progressed | None = None) -> int:
        """Take open rows out of the queue and return how many; running ones finish. Options as of ``reset``."""
        return operating.in_chunks(self, operating.PAUSE, limit, progress)

    def resume_rows(self, *, limit: int | None = None, progress: Progressed | None = None) -> int:
        """Open paused rows again and return how many. Options as of ``reset``."""
        return operating.in_chunks(self, operating.RESUME, limit, progress)

    def run_at(self, at: datetime | None = None, *, limit: int | None = None) -> int:
        """Make open rows that wait due at a moment, or now, and return how many; *limit* bounds it."""
        return operating.in_chunks(self, operating.run_at(at), limit)

    def fail_rows(
        self,
        error: BaseException | str,
        *,
        running: bool = False,
        complete: bool = False,
        limit: int | None = None,
        progress: Progressed | None = None,
    ) -> int:
        """End open and paused rows badly and return how many; running and complete ones only when named.

        *error* is recorded where the model has the columns for it. No try is charged, and none is left: the rows wait
        for a ``reset``. The holders of running rows lose them. *limit* and *progress* as of ``reset``.
        """
        verb = operating.fail_rows(error, complete=complete, running=running)
        return operating.in_chunks(self, verb, limit, progress)

    def prune(
        self,
        *,
        older_than: float | timedelta,
        limit: int | None = None,
        progress: Progressed | None = None,
    ) -> int:
        """Delete rows that were completed longer ago than *older_than*, by the database's clock, and return how many.

        Cascades are followed and signals sent as by ``delete()``. A row that was opened again meanwhile stays, and so
        does one that another transaction has locked. *limit* bounds the rows, *progress* is called with their number
        as each chunk is committed. Raises TypeError for a model without ``completed_at``, and what Django raises where
        a protected row refers to one of these; the chunks before are gone then.
        """
        age = conf.DURATION.check(older_than, "older_than")
        return operating.in_chunks(self, operating.Delete(age), limit, progress)

    def delete_failed(self, *, limit: int | None = None, progress: Progressed | None = None) -> int:
        """Delete failed rows of any age, as ``prune`` deletes complete ones, and return how many."""
        return operating.in_chunks(self, operating.Delete(), limit, progress)

    # Holders that are people

    def holdings(self, who: str) -> list[M]:
        """Return the rows that *who* holds, in the order of claims, each carrying its claim; none is claimed.

        What this queryset selects, defers, joins and annotates is kept; TypeError for ``values()``.
        """
        return cast("list[M]", instances.holdings(self, who))

    def hand_over(self, rows: M | Iterable[M], *, to: str, lease: Lease = None) -> int:
        """Let *to* hold rows from now on, and return how many; the claims that the instances carry are ended.

        *to* is a name as for ``claim_batch(claimed_by=…)``. The rows have *lease* ahead of them at least (by default
        the policy's), or what was left of the old one. Raises ClaimLost as ``complete`` does.
        """
        return writes.write_all(rows, operating.hand_over(self.model, to, lease))

    def take_over(self, *, by: str, reason: str, lease: Lease = None) -> int:
        """Let *by* hold the rows of this queryset that others hold, and return how many; those lose them.

        An operator's act, which needs no token; the history of the rows and ``rows_acted_on`` have its *reason*. Rows
        that *by* holds already stay as they are, open and finished ones too; a row that somebody has locked is left
        alone. ``holdings(by)`` then returns them with their claims. *lease* is as for ``hand_over``.
        """
        return operating.in_chunks(self, operating.take_over(self.model, by, reason, lease))

    def why_empty(self, who: str = "") -> WhyEmpty:
        """Say why *who* gets no rows of this queryset; for an answer that was empty, since it counts rows.

        ``str()`` of it reads ``3 held by others, next free 14:20``.
        """
        return explain_empty(self, who)

    # Async twins

    aclaim_batch = async_twin(claim_batch)
    awith_token = async_twin(with_token)
    aholdings = async_twin(holdings)
    acomplete = async_twin(complete)
    afail = async_twin(fail)
    arelease = async_twin(release)
    arenew = async_twin(renew)
    ahand_over = async_twin(hand_over)
    atake_over = async_twin(take_over)
    atake_back = async_twin(take_back)
    arelease_expired = async_twin(release_expired)
    areset = async_twin(reset)
    apause_rows = async_twin(pause_rows)
    aresume_rows = async_twin(resume_rows)
    arun_at = async_twin(run_at)
    afail_rows = async_twin(fail_rows)
    aprune = async_twin(prune)
    adelete_failed = async_twin(delete_failed)
    aprogress = async_twin(progress)
    awhy_empty = async_twin(why_empty)


if TYPE_CHECKING:
    # from_queryset() makes this class. mypy and pyright both understand it when it is written so.
    class _Manager(ClaimQuerySet[M], models.Manager[M]):  # type: ignore[misc]  # a manager and a queryset in one
        pass

else:
    _Manager = models.Manager.from_queryset(ClaimQuerySet)


class ClaimManager(_Manager[M]):
    """The manager that the mixins bring; a custom one inherits from it or from ``ClaimManager.from_queryset(…)``."""

    def with_token(self, pk: Any, token: "Token | tuple[str, int] | str") -> M:
        """Return the row with the key *pk*, hidden or not, carrying the claim; see ``ClaimQuerySet.with_token``."""
        # A manager of related rows (``author.photos``) keeps its condition.
        related = hasattr(self, "_apply_rel_filters")
        rows: Any = self.get_queryset() if related else models.Manager.get_queryset(self)
        return cast("M", rows.with_token(pk, token))

    awith_token = async_twin(with_token)  # type: ignore[arg-type]  # of this class, not of the queryset
