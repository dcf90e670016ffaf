"""The one way in which a person acts from a page: a GET asks and changes nothing, a POST acts.

    def pause_view(request):
        return confirm(
            request,
            allowed=may_operate(request, Photo),
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
from functools import partial
from typing import Any, NamedTuple

import django
from django import forms
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.db import models, router
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from django_taskclaim.admin.control_room.forms import PauseForm, ReasonForm
from django_taskclaim.admin.control_room.snapshot import in_time, pause_sentence
from django_taskclaim.control.audit import turn
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.models import Switch
from django_taskclaim.switch import stops_of
from django_taskclaim.tables import EVERY_MODEL, scope_of

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
    button: str = "",
    warning: str = "",
    danger: bool = False,
    facts: Callable[[], Sequence[str]] = list,
    form: Callable[[Any], forms.Form] = forms.Form,
    hidden: Mapping[str, Sequence[str]] | None = None,
) -> HttpResponseBase:
    """Show what is about to happen, or make it happen: *run* is called for a POST whose form is valid, and only then.

    *allowed* is the caller's answer to "may this user do this to that?"; False is PermissionDenied for GET and POST
    alike. *form* asks for more (a reason, "take running rows too"), and *run* gets its cleaned answers. *facts* are
    read only where the page is shown. *hidden* is what the page shows the state of: nothing is done until it comes
    back unchanged with the answer. If it has changed, the page is shown again and says so.
    """
    if not allowed:
        raise PermissionDenied
    given = request.method == "POST" and (hidden is None or CONFIRMED in request.POST)
    sent = hidden or {}
    answered = given and all(request.POST.getlist(name) == sent[name] for name in sent)
    filled = form(request.POST if answered else None)
    if answered and filled.is_valid():
        return run(filled.cleaned_data)
    request.current_app = site.name
    kept = [(name, value) for name, values in sent.items() for value in values]
    context = {
        **site.each_context(request),
        "title": title,
        "sentence": sentence,
        "warning": warning,
        "changed": given and not answered,
        "facts": facts(),
        "form": filled,
        "hidden": kept if hidden is None else [*kept, (CONFIRMED, "yes")],
        "button": button or title,
        "danger": danger,
        "back": back,
        "crumbs": [*crumbs, Crumb(title)],
        "crumbs_are_listed": django.VERSION >= (6, 1),
    }
    return TemplateResponse(request, "admin/taskclaim/confirmation.html", context)


# The switch of a model, and of all


def describe_pause(switch: Switch) -> str:
    """Say of a pause whose it is, since when and until when, and why."""
    every = switch.scope == EVERY_MODEL
    what = _("paused, as all models are,") if every else _("paused")
    return f"{what} {pause_sentence(switch)}"


def ask_to_turn(
    request: HttpRequest, model: type[models.Model] | None, *, off: bool, **page: Any
) -> HttpResponseBase:
    """Ask, and then pause or resume claims of *model*, or of all models with None. *page* goes to ``confirm``."""
    name = _("all models") if model is None else str(model._meta.verbose_name_plural)
    title = _("Pause claiming: %(name)s") if off else _("Resume claiming: %(name)s")
    resumed = _(
        "Workers will claim again within a few seconds. What was paused by itself, rows or models, stays so."
    )
    paused = _(
        "No worker will claim a row, on any host, until somebody resumes. Running rows finish; no row is changed."
    )
    every = _("This is about all models, also about those that you do not see.")

    def pauses() -> list[str]:
        if off or model is None:
            return []
        # A database that does not answer must not keep the others from claiming again.
        stops = in_time(router.db_for_write(model), partial(stops_of, model))
        own, stays = scope_of(model), _("This one stays: %(pause)s.")
        found = {one.scope: describe_pause(one) for one in (stops.pauses if stops else ())}
        return [text if scope == own else stays % {"pause": text} for scope, text in found.items()]

    def run(answer: Answer) -> HttpResponseBase:
        done = _("%(name)s: claiming is paused. Running rows finish.")
        if not off:
            done = _("%(name)s: the switch is on. Workers notice within a few seconds.")
        try:
            turn(model, off=off, by=str(request.user), user=request.user, **answer)
        except TaskClaimError as error:
            messages.error(request, str(error))
        else:
            messages.success(request, done % {"name": name})
        return HttpResponseRedirect(page["back"])

    return confirm(
        request,
        title=title % {"name": name},
        sentence=paused if off else resumed,
        warning=every if off and model is None else "",
        danger=off and model is None,
        facts=pauses,
        form=PauseForm if off else ReasonForm,
        run=run,
        **page,
    )
