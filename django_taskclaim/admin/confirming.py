"""The one way in which a person acts from a page: a GET asks and changes nothing, a POST with CSRF acts.

    def pause_view(request):
        return confirm(
            request,
            allowed=may_operate(request, Photo),
            title=_("Pause photos"),
            sentence=_("No worker claims a photo until somebody resumes. What runs finishes."),
            fields=ReasonForm,
            run=lambda answer: redirect_after(pause(Photo, reason=answer["reason"])),
            back=reverse("admin:photos_photo_changelist"),
        )

The view runs again for the POST, so the permission that it hands over as ``allowed`` is asked again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import django
from django import forms
from django.contrib import admin
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.db import connections
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_http_methods

View = TypeVar("View", bound=Callable[..., HttpResponseBase])

TEMPLATE = "admin/taskclaim/confirmation.html"

#: In a form that was posted before it was shown (an action of the list), says that this POST is the answer.
CONFIRMED = "taskclaim_confirmed"

#: Given the cleaned answers of the form, does it, and returns where to go on.
Run = Callable[[Mapping[str, Any]], HttpResponseBase]


class Crumb(NamedTuple):
    """One step of the way from the index to this page; the last has no address."""

    title: str
    url: str = ""


def confirm(
    request: HttpRequest,
    *,
    allowed: bool,
    title: str,
    sentence: str,
    run: Run,
    warning: str = "",
    facts: Callable[[], Sequence[str]] = list,
    fields: Callable[..., forms.Form] = forms.Form,
    initial: dict[str, Any] | None = None,
    hidden: Mapping[str, Sequence[str]] | None = None,
    button: str = "",
    danger: bool = False,
    back: str = "",
    crumbs: Sequence[Crumb] = (),
    site: AdminSite | None = None,
) -> HttpResponseBase:
    """Show what is about to happen, or make it happen: *run* is called for a POST whose form is valid, and only then.

    *allowed* is the caller's answer to "may this user do this to that?"; False is PermissionDenied for GET and POST
    alike. *fields* makes the form that asks for more (a reason, "take running rows too"); its cleaned answers go to
    *run*. *warning* stands out, *facts* are asked for and listed where the page is shown. *hidden* is what the page
    stands on (what was chosen, what a row was like): names and values are sent along, and nothing is done until they
    come back with the answer, the same as they are by then; where they are not, the page is shown again, as it is now,
    and says so. *back* is the address of "No, take me back".
    """
    if not allowed:
        raise PermissionDenied
    site = site or admin.site

    def respond(request: HttpRequest) -> HttpResponseBase:
        given = request.method == "POST" and (hidden is None or CONFIRMED in request.POST)
        answered = given and _same(hidden or {}, request)
        form = fields(request.POST if answered else None, initial=initial)
        if answered and form.is_valid():
            return run(form.cleaned_data)
        context = {
            **site.each_context(request),
            "title": title,
            "sentence": sentence,
            "warning": warning,
            "changed": given and not answered,
            "facts": facts(),
            "form": form,
            "hidden": _pairs(hidden),
            "button": button or _("Yes, do it"),
            "danger": danger,
            "back": back,
            "crumbs": crumbs or [Crumb(title)],
            "crumbs_are_listed": django.VERSION >= (6, 1),
        }
        return TemplateResponse(request, TEMPLATE, context)

    request.current_app = site.name
    return require_http_methods(["GET", "HEAD", "POST"])(csrf_protect(never_cache(respond)))(
        request
    )


def in_no_transaction(view: View) -> View:
    """Mark a view that acts: ``ATOMIC_REQUESTS`` shall not undo, on any database, what it commits and tells of."""
    for alias in connections:
        view = non_atomic_requests(alias)(view)
    return view


def _same(hidden: Mapping[str, Sequence[str]], request: HttpRequest) -> bool:
    return all(request.POST.getlist(name) == list(values) for name, values in hidden.items())


def _pairs(hidden: Mapping[str, Sequence[str]] | None) -> list[tuple[str, str]]:
    if hidden is None:
        return []
    pairs = [(name, value) for name, values in hidden.items() for value in values]
    return [*pairs, (CONFIRMED, "yes")]
