"""The buttons of the list, of each row and of the change page, as django-admin-actions draws them.

That package names its addresses after the bare method and knows integer keys only, so they are made here: one name for
each model and action, any key, and behind each a page that asks first.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from django_taskclaim.admin.actions import confirm_list
from django_taskclaim.admin.confirming import Crumb, confirm, in_no_transaction
from django_taskclaim.admin.forms import ActionForm
from django_taskclaim.admin.permissions import may_view
from django_taskclaim.admin.rows import STATES, RowFacts, facts_of, holder_of
from django_taskclaim.admin.running import claims_of, run_action
from django_taskclaim.columns import claim_columns
from django_taskclaim.control.actions import NAMED, ROW_ACTIONS, Action
from django_taskclaim.models import Switch
from django_taskclaim.tables import scope_of

#: The form field that says which claim of the row the page has shown.
SHOWN = "taskclaim_shown"

ROW_BUTTONS = [action for action in ROW_ACTIONS if action.row_label]
LIST_BUTTONS = [action for action in ROW_ACTIONS if action.of_all]


# Addresses


def urls_of(admin: Any) -> list[URLPattern]:
    """Return the addresses of the buttons; keys are quoted as Django's admin quotes them."""

    def at(route: str, slug: str, view: Callable[..., HttpResponseBase]) -> URLPattern:
        wrapped = site.admin_view(in_no_transaction(view))
        return path(f"{route}claim/{slug}/", wrapped, name=url_name(admin, slug))

    site: AdminSite = admin.admin_site

    return [
        *(at("<path:object_id>/", one.slug, partial(row_view, admin, one)) for one in ROW_BUTTONS),
        *(at("", one.slug, partial(list_view, admin, one)) for one in LIST_BUTTONS),
    ]


def url_name(admin: Any, slug: str) -> str:
    """Return the name of one of our addresses: no two models share it."""
    return f"{admin.opts.app_label}_{admin.opts.model_name}_claim_{slug.replace('-', '_')}"


def address(admin: Any, slug: str, *args: str) -> str:
    """Return where a button leads."""
    return reverse(f"admin:{url_name(admin, slug)}", args=args, current_app=admin.admin_site.name)


def standard_address(admin: Any, page: str, *args: str) -> str:
    """Return the address of one of Django's own pages of the model: ``changelist``, ``change``."""
    name = f"admin:{admin.opts.app_label}_{admin.opts.model_name}_{page}"
    return reverse(name, args=args, current_app=admin.admin_site.name)


# What is drawn


def row_buttons(admin: Any, request: HttpRequest, row: Any, *, page: bool) -> Iterator[object]:
    """Yield title and path of the buttons that a row has, for a user who may act on it."""
    if not admin.has_operate_permission(request, row):
        return
    query = "?from=page" if page else admin.filters_kept(request)
    status = facts_of(row).status
    for action in ROW_BUTTONS:
        in_list = status in action.states and (action.slug == "reset" or not action.confirm)
        if in_list or (page and status in _states(action)):
            yield {
                "title": action.row_label,
                "path": address(admin, action.slug, quote(row.pk)) + query,
            }


def list_buttons(admin: Any, request: HttpRequest) -> Iterator[object]:
    """Yield title and path of the buttons for all rows of the model."""
    if admin.has_operate_permission(request):
        for action in LIST_BUTTONS:
            # What follows "#" is lost: the filters that django-admin-actions adds, neither encoded nor complete.
            query = f"{admin.filters_kept(request)}#"
            yield {"title": action.label, "path": address(admin, action.slug) + query}


def model_buttons(admin: Any, request: HttpRequest, pauses: list[Switch]) -> Iterator[object]:
    """Yield title and path of the buttons that lead to the control room of the model, and to its switch."""
    if admin.has_operate_permission(request):
        own = any(pause.scope == scope_of(admin.model) for pause in pauses)
        label, page = (_("Resume claiming"), "resume") if own else (_("Pause claiming"), "pause")
        yield {"title": label, "path": standard_address(admin, f"control_{page}")}
    if may_view(request, admin.model, model_admin=admin):
        yield {"title": _("Control room"), "path": standard_address(admin, "control")}


def _states(action: Action) -> set[str]:
    """Return the states of rows that have the action on their page."""
    return {*action.states, *(state for state, name in NAMED.items() if name in action.named)}


# What is behind them


def list_view(admin: Any, action: Action, request: HttpRequest) -> HttpResponseBase:
    """Ask, then act on every row that the user's queryset shows, under any filter of the list."""
    rows = action.chosen(claims_of(admin.get_queryset(request)))
    return confirm_list(admin, request, action, rows)


def row_view(admin: Any, action: Action, request: HttpRequest, object_id: str) -> HttpResponseBase:
    """Ask, then act on the one row, if it is among those that the user's queryset shows."""
    # Refused before anybody learns whether the row exists.
    if not admin.has_operate_permission(request):
        raise PermissionDenied
    row = admin.get_object(request, unquote(object_id))
    if row is None:
        raise Http404(_("There is no such row."))
    facts, title = facts_of(row), Truncator(str(row)).chars(60)
    page = standard_address(admin, "change", quote(row.pk))
    back = page if request.GET.get("from") == "page" else admin.list_address(request)
    holder = str(holder_of(facts.holder)) if facts.is_held else ""

    def run(answer: Mapping[str, Any]) -> HttpResponseBase:
        run_action(
            request,
            action,
            claims_of(admin.get_queryset(request)).filter(**_claim_of(row, facts)),
            model_admin=admin,
            keys=[[row.pk]],
            named=[name] if (name := NAMED.get(facts.status, "")) in action.named else [],
            reason=answer["reason"],
            key=str(row.pk),
        )
        return HttpResponseRedirect(back)

    return confirm(
        request,
        allowed=admin.has_operate_permission(request, row),
        title=_("%(action)s: %(row)s") % {"action": action.row_label, "row": title},
        sentence=str(action.sentence),
        warning=_("%(holder)s is working on this row and will lose it.") % {"holder": holder}
        if holder
        else "",
        facts=lambda: [_("The row is %(state)s.") % {"state": STATES[facts.kind]}],
        fields=partial(ActionForm, action=action, holder=holder),
        initial={"reason": request.POST.get("reason", "")},
        hidden={SHOWN: [_shown(request, facts)]},
        run=run,
        button=str(action.row_label),
        danger=bool(holder) or action.stores_reason,
        back=back,
        crumbs=[*admin.crumbs(request), Crumb(title, page), Crumb(str(action.row_label))],
        site=admin.admin_site,
    )


def _claim_of(row: Any, facts: RowFacts) -> dict[str, object]:
    """Match the row as it was read: what changes it after that keeps it from the action."""
    columns = claim_columns(type(row))
    return {columns.status.name: facts.status, columns.iteration.name: facts.iteration}


def _shown(request: HttpRequest, facts: RowFacts) -> str:
    """Return what names the row's present claim, which the answer must have seen."""
    claim = "\n".join([request.path, facts.status, str(facts.iteration), facts.holder])
    return sha256(claim.encode()).hexdigest()
