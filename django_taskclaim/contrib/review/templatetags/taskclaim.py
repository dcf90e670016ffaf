"""``{% load taskclaim %}``: the claim columns of a row, and its moments and holders as people read them."""

from datetime import datetime
from typing import Any

from django import template

from django_taskclaim.columns import claim_columns
from django_taskclaim.formatting import format_clock_time
from django_taskclaim.holders import name_of

register = template.Library()


@register.filter
def claim_column(row: Any, role: str) -> Any:
    """Return what the row has in its claim column of this role, such as ``expires_at``; None without such a column."""
    field = getattr(claim_columns(type(row)), role)
    return None if field is None else getattr(row, field.attname)


@register.filter
def clock_time(moment: datetime | None) -> str:
    """Return a moment as ``14:20``, with the date where it is not today; "" for None."""
    return "" if moment is None else format_clock_time(moment)


register.filter("holder_name", name_of)
