"""An action over any number of rows: a request works for some seconds, commits chunk by chunk, and says what it did."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from django.contrib import messages
from django.db import Error, connections, models, router
from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_taskclaim import conf
from django_taskclaim.admin import phrases
from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.control.actions import Action
from django_taskclaim.control.audit import record_action
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import first_line
from django_taskclaim.monitoring.counts import MOST
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.isolating import refusals

Rows = ClaimQuerySet[Any]

#: A request works for so many seconds, then answers; proxies give up on those that take long.
SECONDS = 20.0


class _TimeIsUp(Exception):
    """Ends an action between two chunks."""


class Run:
    """What one request does with an action, and what has come of it."""

    def __init__(self, action: Action, rows: Rows, named: Iterable[str] = ()) -> None:
        """*named* are the states that the user has named beside the action's own: ``running``, ``complete``."""
        self.action, self.rows, self.named = action, rows, tuple(named)
        self.changed = self.forbidden = 0
        #: Rows in states that it does not change, and how many of the others it was given, as far as they were counted.
        self.others, self.expected = Counter[str](), 0
        self.trouble, self.is_over = "", True
        self._began = clock()

    def count_others(self) -> None:
        """Count the rows that will be left alone, before anything changes, where they are few."""
        everything = states_of(self.rows)
        if everything.total() <= MOST:
            self.others = everything - states_of(self.chosen)

    @property
    def chosen(self) -> Rows:
        """The rows that the action would change."""
        return self.action.chosen(self.rows, self.named)

    def go(self, parts: Iterable[Rows], reason: str) -> None:
        """Act on *parts* of the rows until they end, the time is up, or the database refuses."""
        try:
            for part in parts:
                self._act(part, reason)
                self._look_at_the_clock()
        except _TimeIsUp:
            self.is_over = False
        except (Error, TaskClaimError) as error:
            self.trouble = first_line(error)
            if connections[self.rows.db].needs_rollback:
                # A transaction of the caller's, as with ATOMIC_REQUESTS: it will undo what was done.
                self.changed = 0

    def _act(self, rows: Rows, reason: str) -> None:
        before = self.changed

        def progress(total: int) -> None:
            self.changed = before + total
            self._look_at_the_clock()

        self.action.run(rows, named=self.named, reason=reason, progress=progress)

    def _look_at_the_clock(self) -> None:
        if clock() - self._began >= SECONDS:
            raise _TimeIsUp

    def permitted(self, rows: Rows, may: Callable[[Any], bool] | None) -> Iterator[Rows]:
        """Yield those of *rows* that the user may act on, in parts where each row has to be asked about."""
        if may is None and rows.query.group_by is None:
            self.expected += states_of(rows).total()
            yield rows
            return
        for found in _chunks(rows):
            keys = [row.pk for row in found if may is None or may(row)]
            self.expected += len(found)
            self.forbidden += len(found) - len(keys)
            yield with_keys(rows, keys)

    def message(self) -> str:
        """Say what was done, what was left alone and why, and whether there is more to do."""
        parts = [self.action.result(self.changed)]
        if self.trouble:
            parts.append(_("Then the database refused: %(error)s") % {"error": self.trouble})
        elif not self.is_over:
            parts.append(_("The time was up; press again for the rest."))
        elif left := [(count, why) for why, count in self._left_alone().items() if count > 0]:
            reasons = [f"{phrases.amount(count)} {why}" for count, why in left]
            parts.append(_("Left alone: %(reasons)s.") % {"reasons": phrases.listed(reasons)})
        return " ".join(parts)

    def _left_alone(self) -> dict[str, int]:
        refused = Counter(
            _("that the database refuses to have written (%(error)s)") % {"error": one.error}
            for one in refusals(self.rows.model, self.rows.db, since=self._began)
        )
        missed = self.expected - self.changed - self.forbidden - refused.total()
        return {
            **{str(phrases.STATES[state]): n for state, n in sorted(self.others.items())},
            _("that you may not change"): self.forbidden,
            **refused,
            _("that somebody else has locked or changed meanwhile"): missed,
        }


def perform(
    request: HttpRequest,
    run: Run,
    parts: Iterable[Rows],
    *,
    reason: str = "",
    key: str = "",
    recorded: str | None = None,
) -> None:
    """Act on *parts* of the rows of *run*, record it with the reason or with *recorded*, and tell the user."""
    try:
        run.go(parts, reason)
    finally:
        # Also where an error of the project's own ends it, out of a permission that it asks for, say.
        record_action(
            run.rows.model,
            run.action.name,
            rows=run.changed,
            by=str(request.user),
            user=request.user,
            reason=reason if recorded is None else recorded,
            key=key,
            using=run.rows.db,
        )
    level = messages.SUCCESS if run.changed else messages.WARNING
    messages.add_message(request, messages.ERROR if run.trouble else level, run.message())


def claims_of(rows: models.QuerySet[Any]) -> Rows:
    """Return the user's own queryset as one that has the verbs, on the database where its rows are written."""
    return ClaimQuerySet(rows.model, query=rows.query.chain(), using=alias_of(rows))


def with_keys(rows: models.QuerySet[Any], keys: list[Any]) -> Rows:
    """Return the rows that have these keys."""
    return ClaimQuerySet[Any](rows.model, using=alias_of(rows)).filter(pk__in=keys)


def alias_of(rows: models.QuerySet[Any]) -> str:
    """Return the database on which *rows* are written: the one they were asked of by name, else the router's."""
    return rows._db or router.db_for_write(rows.model)  # type: ignore[attr-defined]


def states_of(rows: models.QuerySet[Any]) -> Counter[str]:
    """Count the states of the rows, of MOST + 1 at most."""
    status = claim_columns(rows.model).status.name
    return Counter(rows.order_by().values_list(status, flat=True)[: MOST + 1])


def _chunks(rows: Rows) -> Iterator[list[Any]]:
    """Yield the rows in the order of their keys, a chunk at a time."""
    left, size = rows.order_by("pk"), int(conf.setting("CHUNK_SIZE"))
    while found := list(left[:size]):
        yield found
        left = rows.order_by("pk").filter(pk__gt=found[-1].pk)
