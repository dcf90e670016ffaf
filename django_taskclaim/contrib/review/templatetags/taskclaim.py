"""``{% load taskclaim %}``: who holds a row, until when, and how long that is, by the database's clock."""

from datetime import datetime, timedelta
from typing import Any

from django import template
from django.db import DEFAULT_DB_ALIAS
from django.template import Context
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_taskclaim.columns import claim_columns
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import format_clock_time, format_duration
from django_taskclaim.holders import holder_of, name_of
from django_taskclaim.monitoring.overview import database_time

register = template.Library()

_MINUTE = timedelta(minutes=1)

#: Where a page keeps what it has asked once.
_CLOCKS, _NAMES = "_taskclaim_clocks", "_taskclaim_names"


@register.filter
def held_until(row: Any) -> datetime | None:
    """Return when the row's lease ends; None for a row that nobody holds."""
    found: datetime | None = getattr(row, claim_columns(type(row)).expires_at.attname)
    return found


@register.simple_tag
def held_until_told(row: object) -> SafeString | str:
    """Return ``14:20`` as a ``<time>`` element; "" for a row that nobody holds."""
    moment = held_until(row)
    if moment is None:
        return ""
    shown = format_clock_time(moment)
    return format_html(
        '<time datetime="{}" data-taskclaim-until>{}</time>', as_utc(moment).isoformat(), shown
    )


@register.simple_tag
def when(moment: datetime | None) -> str:
    """Return a moment as ``14:20``, with the date where it is not today; "" for None."""
    return "" if moment is None else format_clock_time(moment)


@register.simple_tag(takes_context=True)
def time_left(context: Context, row: Any) -> str:
    """Return how long the lease lasts in words, ``41 min``; "" for a row that nobody holds."""
    moment = held_until(row)
    if moment is None:
        return ""
    left = as_utc(moment) - _now(context, row._state.db or DEFAULT_DB_ALIAS)
    if left.total_seconds() <= 0:
        return _("no time")
    # Seconds are wrong as soon as they are read, unless there are only seconds left.
    return format_duration(left if left < _MINUTE else left - left % _MINUTE)


@register.simple_tag(takes_context=True)
def who_holds(context: Context, row: Any) -> str:
    """Return who holds or has finished the row, "you" for who looks; "" for nobody."""
    holder = getattr(row, claim_columns(type(row)).claimed_by.attname)
    if not holder:
        return ""
    user = getattr(context.get("request"), "user", None)
    if getattr(user, "pk", None) is not None and holder == holder_of(user):
        return _("you")
    names = _kept(context, _NAMES)
    if holder not in names:
        names[holder] = name_of(holder)
    return str(names[holder])


def _now(context: Context, alias: str) -> datetime:
    clocks = _kept(context, _CLOCKS)
    if alias not in clocks:
        clocks[alias] = database_time(alias)
    found: datetime = clocks[alias]
    return found


def _kept(context: Context, name: str) -> dict[str, Any]:
    """Return what the page keeps under *name*, in included templates too."""
    kept: dict[str, Any] = context.dicts[0].setdefault(name, {})
    return kept
