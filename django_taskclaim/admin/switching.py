"""What the buttons of the list do to a whole model: its switch, its expired rows, its failed rows."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.db import connections, models
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import NoReverseMatch, URLPattern, path
from django.utils.translation import gettext as _

from django_taskclaim.admin import acts, phrases
from django_taskclaim.admin.buttons import (
    address,
    control_address,
    standard_address,
    url_name,
)
from django_taskclaim.admin.confirming import Crumb, confirm, in_no_transaction
from django_taskclaim.admin.control_room.acts import reason_of_pause
from django_taskclaim.admin.control_room.crew import somebody_works
from django_taskclaim.admin.counting import counted_up_to
from django_taskclaim.admin.forms import PauseForm, ReasonForm
from django_taskclaim.admin.permissions import may_view
from django_taskclaim.admin.sweeping import alias_of
from django_taskclaim.columns import claim_columns
from django_taskclaim.control.acts import record_act
from django_taskclaim.fields import as_utc
from django_taskclaim.models import Switch
from django_taskclaim.monitoring.counts import MOST
from django_taskclaim.querysets.conditions import is_expired
from django_taskclaim.states import Status
from django_taskclaim.switch import SwitchError, holds, pause, pauses_over, resume
from django_taskclaim.tables import EVERY_MODEL, scope_of

Answer = Any


def switches_over(model: type[models.Model], alias: str) -> list[Switch]:
    """Return the pauses that stop claims of *model* now, the widest first."""
    return pauses_over(model, using=alias)


def told(switch: Switch) -> str:
    """Say of a pause whose it is, since when and until when, and why."""
    parts = [_("paused")]
    if switch.scope == EVERY_MODEL:
        parts = [_("paused, as all models are,")]
    if switch.by:
        parts.append(_("by %(name)s") % {"name": switch.by})
    if switch.paused_at is not None:
        parts.append(_("since %(moment)s") % {"moment": phrases.moment(as_utc(switch.paused_at))})
    if switch.until is not None:
        parts.append(_("until %(moment)s") % {"moment": phrases.moment(as_utc(switch.until))})
    sentence = " ".join(parts)
    return f"{sentence}: {switch.reason}" if switch.reason else sentence


# The views


def list_urls(admin: Any) -> list[URLPattern]:
    """Return the addresses of the buttons on the list."""
    views: dict[str, Callable[[Any, HttpRequest], HttpResponseBase]] = {
        "pause": pause_view,
        "resume": resume_view,
        "release-expired": release_expired_view,
        "reset-failed": reset_failed_view,
    }
    return [
        path(
            f"claim/{name}/",
            admin.admin_site.admin_view(in_no_transaction(_bound(view, admin))),
            name=url_name(admin, name),
        )
        for name, view in views.items()
    ]


def _bound(
    view: Callable[[Any, HttpRequest], HttpResponseBase], admin: Any
) -> Callable[[HttpRequest], HttpResponseBase]:
    def bound(request: HttpRequest) -> HttpResponseBase:
        return view(admin, request)

    return bound


def _ask(admin: Any, request: HttpRequest, **options: Any) -> HttpResponseBase:
    return confirm(
        request,
        allowed=admin.has_operate_permission(request),
        back=_back(admin, request),
        crumbs=[*admin.crumbs(request), Crumb(options["title"])],
        site=admin.admin_site,
        **options,
    )


def _back(admin: Any, request: HttpRequest) -> str:
    try:
        return standard_address(admin, "change", request.GET["row"])
    except (KeyError, NoReverseMatch):
        return str(admin.list_address(request))


def pause_view(admin: Any, request: HttpRequest) -> HttpResponseBase:
    """Turn the switch of the model off, on every database that holds it."""
    names = {"rows": admin.opts.verbose_name_plural}

    def act(answer: Answer) -> HttpResponseBase:
        by, reason = str(request.user), answer["reason"]
        turn = lambda: pause(admin.model, reason=reason, by=by, until=answer["lasts"])  # noqa: E731
        done = _("Paused: no worker claims %(rows)s until somebody resumes.")
        if answer["lasts"]:
            done = _(
                "Paused: no worker claims %(rows)s for %(time)s, unless somebody resumes before."
            )
        done %= {**names, "time": phrases.lasting(answer["lasts"] or timedelta())}
        recorded = reason_of_pause(reason, answer["lasts"])
        return _turned(admin, request, turn, "pause", recorded, done)

    return _ask(
        admin,
        request,
        title=_("Pause claiming of %(rows)s") % names,
        sentence=_(
            "No worker will claim a row, on any host, until somebody resumes. Running rows finish; no row is changed."
        ),
        fields=PauseForm,
        act=act,
        button=_("Pause claiming of %(rows)s") % names,
    )


def resume_view(admin: Any, request: HttpRequest) -> HttpResponseBase:
    """Turn the switch of the model on again; a pause of everything, or of its parent, stays."""
    names = {"rows": admin.opts.verbose_name_plural}
    standing = switches_over(admin.model, _alias(admin, request))
    others = [told(switch) for switch in standing if switch.scope != scope_of(admin.model)]

    def act(answer: Answer) -> HttpResponseBase:
        done = _("Resumed: workers claim %(rows)s again.")
        if not somebody_works([_alias(admin, request)], admin.model):
            done = _("Resumed, and no worker for %(rows)s is alive.")
        return _turned(
            admin, request, lambda: resume(admin.model), "resume", answer["reason"], done % names
        )

    return _ask(
        admin,
        request,
        title=_("Resume claiming of %(rows)s") % names,
        sentence=_(
            "Workers will claim rows again within a few seconds. Rows that were paused one by one stay so."
        ),
        facts=[told(switch) for switch in standing if switch.scope == scope_of(admin.model)],
        warning=_("This one stays: %(pause)s.") % {"pause": "; ".join(others)} if others else "",
        fields=ReasonForm,
        act=act,
        button=_("Resume claiming of %(rows)s") % names,
    )


def _turned(
    admin: Any, request: HttpRequest, turn: Callable[[], None], name: str, reason: str, done: str
) -> HttpResponseBase:
    try:
        turn()
    except SwitchError as error:
        turned = error.done
        admin.message_user(request, str(error), messages.ERROR)
    else:
        turned = [alias for alias in connections if holds(alias, admin.model)]
        admin.message_user(request, done, messages.SUCCESS)
    if turned:
        record_act(
            admin.model,
            name,
            by=str(request.user),
            reason=reason,
            user=request.user,
            using=turned,
        )
    return HttpResponseRedirect(_back(admin, request))


def release_expired_view(admin: Any, request: HttpRequest) -> HttpResponseBase:
    """Do now what the reaper would do in its turn."""
    rows = admin.get_queryset(request)
    expired = rows.filter(is_expired(claim_columns(admin.model)))
    return _over(
        admin,
        request,
        expired,
        acts.release_expired(),
        title=_("Release expired rows"),
        sentence=_(
            "Rows whose lease has ended are put back at once, as workers do every few seconds."
        ),
    )


def reset_failed_view(admin: Any, request: HttpRequest) -> HttpResponseBase:
    """Reset every failed row that the user's queryset shows, whatever the list is filtered by."""
    rows = admin.get_queryset(request)
    failed = rows.filter(**{claim_columns(admin.model).status.name: Status.FAILED})
    return _over(
        admin,
        request,
        failed,
        acts.reset(),
        title=_("Reset all failed %(rows)s") % {"rows": admin.opts.verbose_name_plural},
        sentence=_(
            "All failed rows, whatever the list shows, will be as good as new: open, with no tries counted."
        ),
    )


def _over(
    admin: Any, request: HttpRequest, rows: Any, act: acts.Act, **words: Any
) -> HttpResponseBase:
    def run(answer: Answer) -> HttpResponseBase:
        made: HttpResponseBase = admin.run_act(
            request, act, rows, reason=answer["reason"], back=_back(admin, request)
        )
        return made

    allowed = admin.has_operate_permission(request)
    facts = [how_many(rows)] if allowed else []
    return _ask(
        admin, request, **words, facts=facts, fields=ReasonForm, act=run, button=words["title"]
    )


def how_many(rows: models.QuerySet[Any]) -> str:
    """Say how many rows there are, as far as that is quickly counted."""
    count = counted_up_to(rows, MOST)
    if count is None:
        return _("More than %(number)s rows") % {"number": phrases.amount(MOST)}
    return phrases.rows(count)


# The buttons


def _alias(admin: Any, request: HttpRequest) -> str:
    return alias_of(admin.get_queryset(request))


def model_buttons(
    admin: Any, request: HttpRequest, standing: list[Switch], row: str = ""
) -> Iterator[Any]:
    """Yield title and path of the buttons of the model; *row* is the quoted key of the page that they stand on."""
    query = f"?row={row}" if row else ""
    if admin.has_operate_permission(request):
        if not row:
            yield {"title": _("Reset failed"), "path": address(admin, "reset-failed")}
            yield {"title": _("Release expired"), "path": address(admin, "release-expired")}
        own = any(switch.scope == scope_of(admin.model) for switch in standing)
        name = "resume" if own else "pause"
        label = _("Resume claiming") if own else _("Pause claiming")
        yield {"title": label, "path": address(admin, name) + query}
    room = control_address(admin)
    if room and may_view(request, admin.model, model_admin=admin):
        yield {"title": _("Control room"), "path": room}
