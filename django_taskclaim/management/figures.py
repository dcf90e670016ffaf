"""What ``claimstatus`` has seen, in figures: the names that ``--fail-if`` and ``--format json`` share.

The names are part of the interface: new ones may come, none goes, none changes its meaning.
"""

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import Error, connections, models
from django.db.models import Min
from django.utils import timezone

from django_taskclaim.columns import claim_columns
from django_taskclaim.fields import NEVER_WAITED, as_utc
from django_taskclaim.formatting import first_line
from django_taskclaim.handlers import handler_for
from django_taskclaim.management.base import lacking_tables
from django_taskclaim.monitoring.overview import (
    Failure,
    Overview,
    Worker,
    last_errors,
    overview,
    workers,
)
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.querysets import ClaimQuerySet

#: How long the questions about one model may take, and those about workers, where they are asked again and again.
AGAIN = timedelta(seconds=2)

#: Of each model so many errors are known at a time.
ERRORS = 5

#: A number of rows or workers, a duration, or None where there is none of it.
Figure = int | timedelta | None


@dataclass(slots=True)
class Look:
    """One look at several models: what was seen, who works there, and what could not be read."""

    seen: list[Overview] = field(default_factory=list)
    #: By database.
    workers: dict[str, list[Worker]] = field(default_factory=dict)
    #: Of each model what went wrong lately, the latest last, where that was asked for.
    errors: list[tuple[type[models.Model], Failure]] = field(default_factory=list)
    #: Model, database, and what the database said.
    refused: list[tuple[type[models.Model], str, str]] = field(default_factory=list)

    @property
    def refusals(self) -> list[str]:
        """What could not be read, a sentence each."""
        found: dict[str, None] = {}
        for model, alias, said in self.refused:
            lacking: list[str] = []
            with suppress(Error):
                lacking = lacking_tables(model, alias)
            usual = f"{model._meta.label} on {alias!r} cannot be read: {said}"
            found.update(dict.fromkeys(lacking or [usual]))
        return list(found)


def look_at(where: Sequence[tuple[Any, str]], *, exact: bool = True) -> Look:
    """Look at models, each on its database; one that cannot be read keeps no other from being seen.

    Where it need not be *exact* the questions may not take long, and the last errors are among them.
    """
    look = Look()
    for model, alias in where:
        try:
            limit = server_for(connections[alias]).time_limit(AGAIN)
            with nullcontext() if exact else limit:
                if alias not in look.workers:
                    look.workers[alias] = workers(alias)
                seen = overview(model, alias, exact=exact)
                look.seen.append(seen)
                if not exact:
                    look.errors += [(model, one) for one in last_errors(seen, ERRORS)]
        except Error as error:
            look.refused.append((model, alias, first_line(error)))
    return look


def figures_of(seen: Overview, known: Sequence[Worker]) -> dict[str, Figure]:
    """Return everything that there is a number for."""
    progress = seen.progress
    return {
        "open": progress.open,
        "due": seen.due,
        "waiting": seen.waiting,
        "processing": progress.processing,
        "complete": progress.complete,
        "failed": progress.failed,
        "paused": progress.paused,
        "total": progress.total,
        "unfinished": progress.total - progress.finished,
        "expired": seen.expired,
        "throttles": len(seen.throttles),
        "workers": sum(worker.alive and worker.serves(seen.model) for worker in known),
        "oldest_due": oldest_due(seen),
        "oldest_expired": _since(seen, seen.expired_since),
        "paused_for": _since(seen, seen.pause and as_utc_or_none(seen.pause.paused_at)),
    }


def wants_workers(model: type[models.Model]) -> bool:
    """Say whether workers have something to do for *model*; rows that people claim need none."""
    return handler_for(model) is not None


# Since when


def oldest_due(seen: Overview) -> timedelta | None:
    """Return how long the row has been due that is so for longest; None where none is, or none tells.

    A row that had to wait is due since ``not_before``. Of one that never had to, only a column of the user's with
    ``auto_now_add`` tells when it was made.
    """
    if not seen.due:
        return None
    ages = (_since(seen, seen.due_since), _since(seen, _first_born(seen)))
    return max((age for age in ages if age is not None), default=None)


def ages_are_known(model: type[models.Model]) -> bool:
    """Say whether a column tells since when a row is due that never had to wait."""
    return _born_at(model) is not None


def _born_at(model: type[models.Model]) -> Any:
    """Return the first column of the claim table that keeps when a row was made."""
    fields = claim_columns(model).owner._meta.local_concrete_fields
    return next(
        (
            one
            for one in fields
            if isinstance(one, models.DateTimeField) and getattr(one, "auto_now_add", False)
        ),
        None,
    )


def _first_born(seen: Overview) -> Any:
    """Return when the oldest open row was made that never had to wait."""
    columns, born = claim_columns(seen.model), _born_at(seen.model)
    if born is None:
        return None
    rows: Any = ClaimQuerySet(columns.owner, using=seen.alias).open()
    if columns.not_before is not None:
        rows = rows.filter(**{columns.not_before.name: NEVER_WAITED})
    first = rows.aggregate(first=Min(born.name))["first"]
    # A column of the user's: without time zones it has the project's time.
    return timezone.make_aware(first) if first is not None and timezone.is_naive(first) else first


def as_utc_or_none(moment: Any) -> Any:
    """Return a moment of ours in UTC, where there is one."""
    return None if moment is None else as_utc(moment)


def _since(seen: Overview, moment: Any) -> timedelta | None:
    return None if moment is None else max(seen.now - moment, timedelta(0))
