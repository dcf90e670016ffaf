"""The switch of a model, or of all: who has turned it off, and the page that asks before it is turned."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.db import models, router
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _

from django_taskclaim.admin.confirming import Crumb, confirm
from django_taskclaim.admin.control_room.forms import PauseForm, ReasonForm
from django_taskclaim.admin.control_room.snapshot import in_time
from django_taskclaim.admin.control_room.state import pause_sentence
from django_taskclaim.control.switch_changes import turn
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.models import Switch
from django_taskclaim.monitoring.overview import workers
from django_taskclaim.switch import claimable_models, stops_of
from django_taskclaim.tables import EVERY_MODEL, scope_of

Model = type[models.Model] | None


def describe_pause(switch: Switch) -> str:
    """Say of a pause whose it is, since when and until when, and why."""
    every = switch.scope == EVERY_MODEL
    what = _("paused, as all models are,") if every else _("paused")
    return f"{what} {pause_sentence(switch)}"


def ask_to_turn(
    request: HttpRequest,
    model: Model,
    *,
    off: bool,
    allowed: bool,
    back: str,
    crumbs: Sequence[Crumb],
    site: AdminSite,
) -> HttpResponseBase:
    """Ask, and then pause or resume claims of *model*, or of all models with None."""
    name = _("all models") if model is None else str(model._meta.verbose_name_plural)
    names = {"name": name}
    title = _("Pause claiming: %(name)s") if off else _("Resume claiming: %(name)s")
    sentence = _(
        "Workers will claim again within a few seconds. What was paused by itself, rows or models, stays so."
    )
    warning = ""
    if off:
        sentence = _(
            "No worker will claim a row, on any host, until somebody resumes. Running rows finish; no row is changed."
        )
    if off and model is None:
        warning = _("This is about all models, also about those that you do not see.")
    pauses: list[Switch] = []
    if not off and model is not None:
        # A database that does not answer must not keep the others from claiming again.
        stops = in_time(router.db_for_write(model), partial(stops_of, model))
        pauses = stops.pauses if stops else []
    own = EVERY_MODEL if model is None else scope_of(model)
    others = [describe_pause(one) for one in pauses if one.scope != own]
    if others:
        warning = _("This one stays: %(pause)s.") % {"pause": "; ".join(others)}

    def run(answer: Mapping[str, Any]) -> HttpResponseBase:
        try:
            turn(model, off=off, by=str(request.user), user=request.user, **answer)
        except TaskClaimError as error:
            messages.error(request, str(error))
        else:
            messages.success(request, _outcome(model, off=off) % names)
        return HttpResponseRedirect(back)

    return confirm(
        request,
        allowed=allowed,
        title=title % names,
        sentence=sentence,
        warning=warning,
        facts=lambda: [describe_pause(one) for one in pauses if one.scope == own],
        fields=PauseForm if off else ReasonForm,
        run=run,
        button=title % names,
        danger=model is None and off,
        back=back,
        crumbs=[*crumbs, Crumb(title % names)],
        site=site,
    )


def _outcome(model: Model, *, off: bool) -> str:
    """Say what a turn of the switch means now."""
    if off:
        return _("%(name)s: claiming is paused. Running rows finish.")
    if _somebody_works(model):
        return _("%(name)s: workers claim again.")
    return _("%(name)s: the switch is on, and no worker is alive.")


def _somebody_works(model: Model) -> bool:
    """Say whether a worker process of *model*, or with None of any, is alive; True where a database does not tell."""
    for alias in {router.db_for_write(one) for one in ([model] if model else claimable_models())}:
        known = in_time(alias, partial(workers, alias))
        if known is None or any(
            one.alive and (model is None or one.serves(model)) for one in known
        ):
            return True
    return False
