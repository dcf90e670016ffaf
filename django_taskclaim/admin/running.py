"""An action over any number of rows: a request works for some seconds, commits chunk by chunk, and says what it did."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.contrib import messages
from django.db import Error, connections, models, router
from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_taskclaim import conf
from django_taskclaim.admin.localized import listed, number
from django_taskclaim.admin.permissions import Admin, row_permission
from django_taskclaim.admin.rows import STATES
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


@dataclass(slots=True)
class Result:
    """What one request has done with an action."""

    changed: int = 0
    #: Rows that it should have changed, as far as they were counted, and those of these that the user may not change.
    expected: int = 0
    forbidden: int = 0
    #: Rows in states that the action leaves alone.
    others: Counter[str] = field(default_factory=Counter)
    #: Rows that the database refuses to have written, by its error.
    refused: Counter[str] = field(default_factory=Counter)
    trouble: str = ""
    is_over: bool = True

    def message(self, action: Action) -> str:
        """Say what was done, what was left alone and why, and whether there is more to do."""
        done = action.result(self.changed)
        if self.trouble:
            return f"{done} {_('Then the database refused: %(error)s') % {'error': self.trouble}}"
        if not self.is_over:
            return f"{done} {_('The time was up; press again for the rest.')}"
        refused = _("that the database refuses to have written (%(error)s)")
        missed = self.expected - self.changed - self.forbidden - self.refused.total()
        left = [
            *((n, STATES[state]) for state, n in sorted(self.others.items())),
            (self.forbidden, _("that you may not change")),
            *((n, refused % {"error": error}) for error, n in self.refused.items()),
            (missed, _("that somebody else has locked or changed meanwhile")),
        ]
        reasons = [f"{number(count)} {why}" for count, why in left if count > 0]
        if not reasons:
            return done
        return f"{done} {_('Left alone: %(reasons)s.') % {'reasons': listed(reasons)}}"


def run_action(
    request: HttpRequest,
    action: Action,
    rows: Rows,
    *,
    model_admin: Admin,
    keys: Iterable[list[Any]] | None = None,
    named: Iterable[str] = (),
    reason: str = "",
    key: str = "",
    recorded: str | None = None,
) -> Result:
    """Act on as many of *rows* as a request has time for, record it, and tell the user.

    With *keys* only on those. *named* are the states that the user has named beside the action's own. *recorded* goes
    into the record instead of the reason, *key* where it was one row.
    """
    result, began, before = Result(), clock(), 0
    chosen = action.chosen(rows, named)
    if keys is None and (states := states_of(rows)).total() <= MOST:
        result.others = states - states_of(chosen)

    def progress(total: int) -> None:
        result.changed = before + total
        if clock() - began >= SECONDS:
            raise _TimeIsUp

    try:
        for part in _parts(request, chosen, keys, model_admin, result):
            before = result.changed
            action.run(part, named=named, reason=reason, progress=progress)
            progress(result.changed - before)
    except _TimeIsUp:
        result.is_over = False
    except (Error, TaskClaimError) as error:
        result.trouble = first_line(error)
        if connections[rows.db].needs_rollback:
            # A transaction of the caller's, as with ATOMIC_REQUESTS: it will undo what was done.
            result.changed = 0
    finally:
        # Also where an error of the project's own ends it, out of a permission that it asks for, say.
        record_action(
            rows.model,
            action.name,
            rows=result.changed,
            by=str(request.user),
            user=request.user,
            reason=reason if recorded is None else recorded,
            key=key,
            using=rows.db,
        )
    if refused := {one.key: one.error for one in refusals(rows.model, rows.db, since=began)}:
        # Another request may have met others at the same time.
        ours = _with_keys(rows, list(refused)).values_list("pk", flat=True)
        result.refused.update(refused[key] for key in ours)
    level = messages.SUCCESS if result.changed else messages.WARNING
    level = messages.ERROR if result.trouble else level
    messages.add_message(request, level, result.message(action))
    return result


def _parts(
    request: HttpRequest,
    chosen: Rows,
    keys: Iterable[list[Any]] | None,
    model_admin: Admin,
    result: Result,
) -> Iterator[Rows]:
    """Yield the rows that the user may act on: all at once, or by their keys where SQL does not tell which they are."""
    may = row_permission(request, model_admin)
    if keys is None and may is None and chosen.query.group_by is None:
        result.expected = states_of(chosen).total()
        yield chosen
        return
    for part in _keys_of(chosen) if keys is None else keys:
        allowed = part
        if may is not None:
            found = list(chosen.filter(pk__in=part))
            allowed = [row.pk for row in found if may(row)]
            result.forbidden += len(found) - len(allowed)
        result.expected += len(part)
        yield _with_keys(chosen, allowed)


def _keys_of(rows: Rows) -> Iterator[list[Any]]:
    """Yield the keys of the rows in their order, a chunk at a time."""
    left, size = rows.order_by("pk"), int(conf.setting("CHUNK_SIZE"))
    while part := list(left.values_list("pk", flat=True)[:size]):
        yield part
        left = rows.order_by("pk").filter(pk__gt=part[-1])


def _with_keys(rows: Rows, keys: list[Any]) -> Rows:
    if rows.query.group_by is None:
        return rows.filter(pk__in=keys)
    # No verb reaches rows through an aggregate.
    return ClaimQuerySet[Any](rows.model, using=rows.db).filter(pk__in=keys)


def claims_of(rows: models.QuerySet[models.Model]) -> Rows:
    """Return the user's own queryset as one that has the verbs, on the database where its rows are written."""
    return ClaimQuerySet(rows.model, query=rows.query.chain(), using=alias_of(rows))


def alias_of(rows: models.QuerySet[models.Model]) -> str:
    """Return the database on which *rows* are written: the one they were asked of by name, else the router's."""
    return rows._db or router.db_for_write(rows.model)  # type: ignore[attr-defined]  # not in django-stubs


def states_of(rows: models.QuerySet[models.Model]) -> Counter[str]:
    """Count the states of the rows, of MOST + 1 at most."""
    status = claim_columns(rows.model).status.name
    return Counter(rows.order_by().values_list(status, flat=True)[: MOST + 1])
