"""Numbers, durations and moments as filters for the templates of the control room."""

from django.template import Library

from django_taskclaim.admin import localized
from django_taskclaim.control.actions import what_was_done
from django_taskclaim.formatting import format_duration

register = Library()

for _filter in (
    localized.number,
    localized.short,
    localized.rate,
    localized.percent,
    localized.seconds,
    localized.clock,
    localized.moment,
    localized.ago,
    localized.rows,
):
    register.filter(_filter.__name__, _filter)


@register.filter
def count(value: int, is_estimate: object) -> str:
    """Return a number of rows in full, an estimate in three digits."""
    return localized.short(value) if is_estimate else localized.number(value)


register.filter("duration", format_duration)
register.filter("act_done", what_was_done)
