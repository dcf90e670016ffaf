"""The control room: one page for each model that can be claimed, and one of all, inside Django's admin.

``mounting`` says where the pages are, ``views`` what they answer and what a person can do there. ``snapshot`` reads all
that a page shows in one transaction; the other modules add what the templates need beside it.
"""

from typing import Any

from django.contrib.admin import ModelAdmin
from django.urls import URLPattern


def urls_for(model_admin: "ModelAdmin[Any]") -> list[URLPattern]:
    """Return the patterns of the model's own page, to stand before those of its ModelAdmin."""
    # Imported late: this package is imported while the apps are loading.
    from django_taskclaim.admin.control_room.mounting import page_urls

    return page_urls(model_admin)
