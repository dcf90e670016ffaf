"""The stop that ends by itself and holds for everyone who claims a model, on every host: ``RetryLater(everyone=True)``.

It stands in the table of the switch, under a scope of its own that every claim statement looks for.
"""

from datetime import timedelta

from django.db import models
from django.db.models import Case, F, Q, When

from django_taskclaim.contention import retry_on_contention
from django_taskclaim.db import DatabaseLater, DatabaseNow
from django_taskclaim.tables import Switch, own_scopes, scope_of, throttle_scope


def stop_everyone(
    model: type[models.Model], using: str, lasting: timedelta, reason: str, by: str = ""
) -> None:
    """Let nobody claim rows of *model* for so long, unless a longer stop holds already; committed on return.

    Inside a caller's transaction it holds once that commits.
    """
    retry_on_contention(using=using).call(
        _store, throttle_scope(scope_of(model)), using, lasting, reason[:500], by[:200]
    )


def _store(scope: str, using: str, lasting: timedelta, reason: str, by: str) -> None:
    end, holds = DatabaseLater(lasting), Q(until__gt=DatabaseNow(), paused_at__isnull=False)
    row = Switch.objects.using(using).row(scope)
    row.filter(Q(until=None) | Q(until__lt=end)).update(
        paused_at=Case(When(holds, then=F("paused_at")), default=DatabaseNow()),
        until=end,
        reason=reason,
        by=by,
    )


def everyones_stop(model: type[models.Model], using: str) -> Switch | None:
    """Return the row of the stop that keeps claims of *model* back now, the longest; None where there is none."""
    scopes = [throttle_scope(scope) for scope in own_scopes(model)]
    held = Switch.objects.using(using).filter(
        scope__in=scopes, paused_at__isnull=False, until__gt=DatabaseNow()
    )
    return held.order_by("-until").first()
