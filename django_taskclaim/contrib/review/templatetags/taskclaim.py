"""``{% load taskclaim %}``: who holds a row, until when, and how long that is, by the database's clock."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django import template
from django.db import DEFAULT_DB_ALIAS
from django.template import Context
from django.utils.translation import gettext as _

from django_taskclaim.columns import claim_columns
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import format_clock_time, format_duration
from django_taskclaim.holders import holder_of, name_of
from django_taskclaim.monitoring.overview import database_time

register = template.Library()

_MINUTE = timedelta(minutes=1)


@register.filter
def claim_column(row: Any, role: str) -> Any:
    """Return what the row has in its claim column of this role, such as ``expires_at``; None without such a column."""
    field = getattr(claim_columns(type(row)), role)
    return None if field is None else getattr(row, field.attname)


@register.filter
def clock_time(moment: datetime | None) -> str:
    """Return a moment as ``14:20``, with the date where it is not today; "" for None."""
    return "" if moment is None else format_clock_time(moment)


@register.simple_tag(takes_context=True)
def time_left(context: Context, row: Any) -> str:
    """Return how long the lease lasts in words, ``41 min``; "" for a row that nobody holds."""
    moment = claim_column(row, "expires_at")
    if moment is None:
        return ""
    alias = row._state.db or DEFAULT_DB_ALIAS
    left = as_utc(moment) - _once(context, ("now", alias), lambda: database_time(alias))
    if left.total_seconds() <= 0:
        return _("no time")
    # Seconds are wrong as soon as they are read, unless there are only seconds left.
    return format_duration(left if left < _MINUTE else left - left % _MINUTE)


@register.simple_tag(takes_context=True)
def who_holds(context: Context, row: Any) -> str:
    """Return who holds or has finished the row, "you" for who looks; "" for nobody."""
    holder = claim_column(row, "claimed_by")
    if not holder:
        return ""
    user = getattr(context.get("request"), "user", None)
    if getattr(user, "pk", None) is not None and holder == holder_of(user):
        return _("you")
    return str(_once(context, ("name", holder), lambda: name_of(holder)))


def _once(context: Context, key: object, ask: Callable[[], Any]) -> Any:
    """Return what the page has asked once, in included templates too."""
    known: dict[object, Any] = context.dicts[0].setdefault("_taskclaim", {})
    if key not in known:
        known[key] = ask()
    return known[key]
