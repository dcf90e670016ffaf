"""The one way in which a person acts from a page: a GET asks and changes nothing, a POST acts.

    def pause_view(request):
        return confirm(
            request,
            allowed=may(request, "operate", Photo),
            title=_("Pause photos"),
            sentence=_("No worker claims a photo until somebody resumes. What runs finishes."),
            form=ReasonForm,
            run=lambda answer: redirect_after(pause(Photo, reason=answer["reason"])),
            back=reverse("admin:photos_photo_changelist"),
            site=admin.site,
        )

The view runs again for the POST, so the permission that it hands over as ``allowed`` is asked again. ``admin_view`` of
the site asks for the CSRF token.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import django
from django import forms
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse

Answer = Mapping[str, Any]

#: In a form that was posted before it was shown (an action of the list), says that this POST is the answer.
CONFIRMED = "taskclaim_confirmed"


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
    run: Callable[[Answer], HttpResponseBase],
    site: AdminSite,
    back: str,
    crumbs: Sequence[Crumb] = (),
    warning: str = "",
    facts: Sequence[str] = (),
    form: Callable[..., forms.Form] = forms.Form,
    hidden: Mapping[str, Sequence[str]] | None = None,
) -> HttpResponseBase:
    """Show what is about to happen, or make it happen: *run* is called for a POST whose form is valid, and only then.

    *allowed* is the caller's answer to "may this user do this to that?"; False is PermissionDenied for GET and POST
    alike. Under a *warning* the button is red. *form* asks for more (a reason, "take running rows"), and *run* gets its
    cleaned answers. *hidden* is what the page shows the state of: nothing is done until it comes back unchanged with
    the answer. If it has changed, the page is shown again and says so.
    """
    if not allowed:
        raise PermissionDenied
    shown = hidden or {}
    given = request.method == "POST" and (not shown or CONFIRMED in request.POST)
    answered = given and all(request.POST.getlist(name) == shown[name] for name in shown)
    typed = {"reason": request.POST.get("reason", "")}
    filled = form(request.POST if answered else None, initial=typed)
    if answered and filled.is_valid():
        return run(filled.cleaned_data)
    request.current_app = site.name
    context = {
        **site.each_context(request),
        "title": title,
        "sentence": sentence,
        "warning": warning,
        "changed": given and not answered,
        "facts": facts,
        "form": filled,
        "hidden": {**shown, CONFIRMED: ["yes"]}.items(),
        "back": back,
        "crumbs": [*crumbs, Crumb(title)],
        "crumbs_are_listed": django.VERSION >= (6, 1),
    }
    return TemplateResponse(request, "admin/taskclaim/confirmation.html", context)
