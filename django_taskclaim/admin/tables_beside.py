"""Companions and ranges, whose rows point at rows of another table, which may have any number of them."""

from typing import Any

from django.core.exceptions import ObjectDoesNotExist
from django.db import models
from django.utils.translation import gettext as _

from django_taskclaim.columns import has_ranges
from django_taskclaim.formatting import format_number
from django_taskclaim.links import LINK, is_companion, source_key_text


def link_to_type(admin: Any) -> tuple[str, ...]:
    """Return the link to the source where a form would else offer every source there is, to be typed as a key."""
    chosen = {*admin.raw_id_fields, *admin.autocomplete_fields, *admin.radio_fields}
    return (LINK,) if LINK not in chosen and _has_form_field(admin.model) else ()


def fixed_link(model: type[models.Model]) -> tuple[str, ...]:
    """Return the link that a row which is there keeps: with another source, a row would be done that nobody did."""
    return (LINK,) if is_companion(model) else ()


def made_by_hand(model: type[models.Model]) -> bool:
    """Say whether a form can make rows: no range, which only a plan can, and no copy of a source's key."""
    return _has_form_field(model) if is_companion(model) else not has_ranges(model)


def _has_form_field(model: type[models.Model]) -> bool:
    # A wrong link is for ``manage.py check`` to tell.
    links = [field for field in model._meta.fields if is_companion(model) and field.name == LINK]
    return any(isinstance(link, models.ForeignKey) and link.editable for link in links)


# A companion's source


def without_source(row: models.Model) -> bool:
    """Say whether the row is a companion whose source is gone."""
    if not is_companion(type(row)):
        return False
    try:
        getattr(row, LINK)
    except ObjectDoesNotExist:
        return True
    return False


def lost_source(row: models.Model) -> str:
    """Return the key of a source that is gone, and that it is."""
    return _("%(key)s, whose row is gone") % {"key": source_key_text(row)}


# A range, as people read it


def beginning(row: Any) -> str:
    """Return beyond which key the range begins."""
    if row.lower_key is None:
        return _("with the first row")
    return _("behind %(key)s") % {"key": _key_text(row.lower_key)}


def end(row: Any) -> str:
    """Return the last key of the range."""
    return _key_text(row.upper_key)


def done_to(row: Any) -> str:
    """Return the last key that is done; nothing before the first checkpoint."""
    return "" if row.checkpoint_key is None else _key_text(row.checkpoint_key)


def rows_done(row: Any) -> str:
    """Return how many rows are done of how many."""
    return _("%(done)s of about %(planned)s") % {
        "done": format_number(row.rows_done),
        "planned": format_number(row.rows_planned),
    }


def _key_text(key: object) -> str:
    # A key is no count: 4711, not 4,711.
    return ", ".join(str(part) for part in key) if isinstance(key, tuple) else str(key)
