"""What all pages of the control room share."""

from collections.abc import Sequence

import django
from django.contrib.admin import AdminSite
from django.urls import NoReverseMatch, reverse
from django.views.decorators.http import require_http_methods

from django_taskclaim.admin.confirming import Crumb

TEMPLATES = "admin/taskclaim/control_room"

#: Of a page that asks: a GET shows the question, a POST answers it.
require_question = require_http_methods(["GET", "HEAD", "POST"])


def overview_url(site: AdminSite) -> str:
    """Return the address of the overview; empty on a site that has none."""
    try:
        return reverse(f"{site.name}:taskclaim_control_changelist")
    except NoReverseMatch:
        return ""


def crumbs_context(crumbs: Sequence[Crumb]) -> dict[str, object]:
    """Return what the templates need to show the way from the index to the page."""
    return {"crumbs": crumbs, "crumbs_are_listed": django.VERSION >= (6, 1)}
