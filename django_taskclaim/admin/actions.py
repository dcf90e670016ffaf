"""The actions of the list: on rows that are ticked, or on all that the filters match."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _

from django_taskclaim.admin.confirming import CONFIRMED, Crumb, confirm
from django_taskclaim.admin.forms import ActionForm
from django_taskclaim.admin.localized import listed, number
from django_taskclaim.admin.rows import STATES
from django_taskclaim.admin.running import Rows, claims_of, run_action, states_of
from django_taskclaim.control.actions import NAMED, Action
from django_taskclaim.monitoring.counts import MOST

#: What the form of the list sends: which action, and on which rows.
SENT = ("action", "index", "select_across", ACTION_CHECKBOX_NAME)


def admin_action(action: Action) -> Callable[..., HttpResponseBase]:
    """Return the action as a method of a ModelAdmin."""
    label: Any = action.label

    @admin.action(permissions=[action.permission], description=label)
    def run(model_admin: object, request: HttpRequest, queryset: Any) -> HttpResponseBase:
        rows = claims_of(queryset)
        asks = action.confirm or request.POST.get("select_across") == "1"
        if CONFIRMED not in request.POST and not asks:
            return run_on_list(model_admin, request, action, rows, {})
        hidden = {name: list(request.POST.getlist(name)) for name in SENT}
        return confirm_list(model_admin, request, action, rows, hidden=hidden)

    run.__name__ = f"claim_{action.slug.replace('-', '_')}"
    return run


def confirm_list(
    model_admin: Any, request: HttpRequest, action: Action, rows: Rows, **options: Any
) -> HttpResponseBase:
    """Show what is chosen, and go on once the page is answered."""
    title = str(action.label).rstrip("…")
    return confirm(
        request,
        allowed=model_admin.has_operate_permission(request),
        title=title,
        sentence=str(action.sentence),
        warning=str(action.warning),
        facts=lambda: [facts_of_list(rows)],
        fields=partial(ActionForm, action=action),
        run=lambda answer: run_on_list(model_admin, request, action, rows, answer),
        button=title,
        danger=action.confirm,
        back=model_admin.list_address(request),
        crumbs=[*model_admin.crumbs(request), Crumb(title)],
        site=model_admin.admin_site,
        **options,
    )


def run_on_list(
    model_admin: Any, request: HttpRequest, action: Action, rows: Rows, answer: Mapping[str, object]
) -> HttpResponseBase:
    """Act on as many rows as a request has time for; where there are more, the same page follows."""
    named = [name for name in NAMED.values() if answer.get(name)]
    facts: dict[str, Any] = {"model_admin": model_admin, "reason": answer.get("reason", "")}
    result = run_action(request, action, rows, named=named, **facts)
    back = model_admin.list_address(request) if result.is_over else request.get_full_path()
    return HttpResponseRedirect(back)


def facts_of_list(rows: Rows) -> str:
    """Say how many rows there are, and in which states where that is quickly counted."""
    states = states_of(rows)
    if states.total() > MOST:
        return _("More than %(number)s rows") % {"number": number(MOST)}
    return listed(
        [
            _("%(number)s %(state)s") % {"number": number(states[state]), "state": text}
            for state, text in STATES.items()
            if states[state]
        ]
    )
