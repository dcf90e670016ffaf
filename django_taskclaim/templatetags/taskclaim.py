"""``{% load taskclaim %}``: claim columns, and numbers, durations and moments as the reader's language writes them."""

from datetime import datetime, timedelta
from typing import Any

from django.forms import BoundField
from django.template import Library
from django.utils import formats, timezone
from django.utils.choices import flatten_choices

from django_taskclaim.columns import claim_columns
from django_taskclaim.control.actions import DONE
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import format_duration
from django_taskclaim.holders import name_of

register = Library()


@register.filter
def number(value: float) -> str:
    """Return a whole number with the locale's separators: ``1,204``."""
    return formats.number_format(round(value), 0, use_l10n=True, force_grouping=True)


@register.filter
def short(value: float) -> str:
    """Return a number with three digits that mean something: ``12,400``; small ones in full."""
    return number(value if value < 10_000 else float(f"{value:.3g}"))


@register.filter
def count(value: int, is_estimate: object) -> str:
    """Return a number of rows in full, an estimate in three digits."""
    return short(value) if is_estimate else number(value)


@register.filter
def rate(per_second: float) -> str:
    """Return rows a second with as many digits as mean something."""
    if per_second >= 100:
        return short(per_second)
    return _decimal(per_second, 1 if per_second >= 0.1 or not per_second else 2)


@register.filter
def percent_of(part: int, whole: int) -> str:
    """Return a part as a percentage, never 100 before all is done."""
    return f"{_decimal(part * 1000 // whole / 10, 1)} %"


def _decimal(value: float, places: int) -> str:
    return formats.number_format(f"{value:.{places}f}", places, use_l10n=True)


@register.filter
def claim_column(row: Any, role: str) -> Any:
    """Return what the row has in its claim column of this role, such as ``expires_at``; None without such a column."""
    field = getattr(claim_columns(type(row)), role)
    return None if field is None else getattr(row, field.attname)


@register.filter
def stored(field: BoundField) -> Any:
    """Return what a form field began with, as people read it: of choices their labels."""
    labels = dict(flatten_choices(getattr(field.field, "choices", ())))
    if not labels:
        return field.initial
    values = field.initial if isinstance(field.initial, list) else [field.initial]
    return ", ".join(str(labels.get(value, value)) for value in values if value is not None)


@register.filter
def clock(value: datetime | None) -> str:
    """Return ``14:02``, with the day where that is not today; "?" for none."""
    return "?" if value is None else _with_day(value, "H:i")


@register.filter
def moment(value: datetime) -> str:
    """Return ``14:02:05``, with the day where that is not today."""
    return _with_day(value, "H:i:s")


def _with_day(value: datetime, shape: str) -> str:
    here = timezone.localtime(as_utc(value))
    time = formats.time_format(here, shape)
    if here.date() == timezone.localtime(as_utc(timezone.now())).date():
        return time
    return f"{formats.date_format(here, 'DATE_FORMAT')} {time}"


@register.filter
def age(value: datetime, now: datetime) -> timedelta:
    """Return how long ago a moment is."""
    return now - as_utc(value)


@register.filter
def short_name(path: str) -> str:
    """Return the name of a class without its module."""
    return path.rpartition(".")[2]


register.filter("duration", format_duration)
register.filter("act_done", lambda act: DONE.get(act, act))
register.filter("holder", name_of)
