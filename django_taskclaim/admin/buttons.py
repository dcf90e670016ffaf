"""The buttons on the list, on each row and on the change page, as django-admin-actions shows them.

That package names its URLs after the bare method and knows integer keys only, so the addresses are made here: one name
for each model and act, any key, and behind each a page that asks first.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from django import forms
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_taskclaim.admin import acts, phrases
from django_taskclaim.admin.acts import Act
from django_taskclaim.admin.confirming import Crumb, confirm, in_no_transaction
from django_taskclaim.admin.forms import FailForm, ReasonForm, taking
from django_taskclaim.admin.rows import EXPIRED, WAITING, RowFacts, facts_of
from django_taskclaim.admin.sweeping import FIELD
from django_taskclaim.columns import claim_columns
from django_taskclaim.states import Status

Text = str | Promise

#: The form field that says which claim of the row the page has shown.
SHOWN = "taskclaim_shown"


@dataclass(frozen=True, slots=True)
class RowButton:
    """A button of one row: in which states it is offered, what it asks, what it does."""

    name: str
    label: Text
    sentence: Text
    #: Given the cleaned answers and the row as it is, the act.
    act: Callable[[dict[str, Any], RowFacts], Act]
    #: Kinds of rows that have it in the list, and on the change page.
    in_list: frozenset[str]
    on_page: frozenset[str]
    form: type[forms.Form] = ReasonForm
    danger: bool = False


def _kinds(*kinds: str) -> frozenset[str]:
    return frozenset(str(kind) for kind in kinds)


RUNNING = _kinds(Status.PROCESSING.value, EXPIRED)
IN_QUEUE = _kinds(Status.OPEN.value, WAITING)

ROW_BUTTONS: tuple[RowButton, ...] = (
    RowButton(
        "reset",
        gettext_lazy("Reset row"),
        gettext_lazy("The row will be as good as new: open, with no tries counted and no error."),
        lambda answer, facts: acts.reset(
            complete=facts.kind == Status.COMPLETE, running=bool(answer.get("running"))
        ),
        in_list=_kinds(Status.FAILED.value),
        on_page=_kinds(Status.FAILED.value, Status.COMPLETE.value),
    ),
    RowButton(
        "pause-row",
        gettext_lazy("Pause row"),
        gettext_lazy(
            "The row is set aside: no worker will claim it until somebody resumes it. Others go on."
        ),
        lambda answer, facts: acts.pause_rows(),
        in_list=IN_QUEUE,
        on_page=IN_QUEUE,
    ),
    RowButton(
        "resume-row",
        gettext_lazy("Resume row"),
        gettext_lazy("The row will be open again, to be claimed by the next free worker."),
        lambda answer, facts: acts.resume_rows(),
        in_list=_kinds(Status.PAUSED.value),
        on_page=_kinds(Status.PAUSED.value),
    ),
    RowButton(
        "take-back",
        gettext_lazy("Take row back"),
        gettext_lazy("The row will be open again, and no try will be counted."),
        lambda answer, facts: acts.take_back(),
        in_list=frozenset(),
        on_page=RUNNING,
        danger=True,
    ),
    RowButton(
        "fail",
        gettext_lazy("Fail row"),
        gettext_lazy("The row will be failed, and stay so until somebody resets it."),
        lambda answer, facts: acts.fail(
            answer["reason"],
            complete=facts.kind == Status.COMPLETE,
            running=bool(answer.get("running")),
        ),
        in_list=frozenset(),
        on_page=_kinds(Status.PAUSED.value, *IN_QUEUE, *RUNNING),
        form=FailForm,
        danger=True,
    ),
)


def url_name(admin: Any, name: str) -> str:
    """Return the name of one of our addresses: no two models share it."""
    meta = admin.opts
    return f"{meta.app_label}_{meta.model_name}_claim_{name.replace('-', '_')}"


def address(admin: Any, name: str, *args: str) -> str:
    """Return where a button leads."""
    return reverse(f"admin:{url_name(admin, name)}", args=args, current_app=admin.admin_site.name)


def standard_address(admin: Any, page: str, *args: str) -> str:
    """Return the address of one of Django's own pages of the model: ``changelist``, ``change``."""
    name = f"admin:{admin.opts.app_label}_{admin.opts.model_name}_{page}"
    return reverse(name, args=args, current_app=admin.admin_site.name)


def control_address(admin: Any) -> str:
    """Return the address of the model's control room; nothing where there is none."""
    try:
        return standard_address(admin, "control")
    except NoReverseMatch:
        return ""


def row_urls(admin: Any) -> list[URLPattern]:
    """Return the addresses of the row buttons; keys are quoted as Django's admin quotes them."""
    return [
        path(
            f"<path:object_id>/claim/{button.name}/",
            admin.admin_site.admin_view(in_no_transaction(_view_of(admin, button))),
            name=url_name(admin, button.name),
        )
        for button in ROW_BUTTONS
    ]


def _view_of(admin: Any, button: RowButton) -> Callable[..., HttpResponseBase]:
    def view(request: HttpRequest, object_id: str) -> HttpResponseBase:
        return row_view(admin, request, object_id, button)

    return view


def row_view(
    admin: Any, request: HttpRequest, object_id: str, button: RowButton
) -> HttpResponseBase:
    """Ask, then act on the one row, if it is among those that the user's queryset shows."""
    row = _permitted_row(admin, request, object_id)
    facts = facts_of(row)
    page = standard_address(admin, "change", quote(row.pk))
    back = page if request.GET.get("from") == "page" else admin.list_address(request)

    def act(answer: Any) -> HttpResponseBase:
        chosen = admin.get_queryset(request).filter(pk=row.pk)
        why = {"reason": answer.get("reason", ""), "key": str(row.pk)}
        made: HttpResponseBase = admin.run_act(
            request, _as_shown(button.act(answer, facts), row, facts), chosen, **why, back=back
        )
        return made

    return confirm(
        request,
        allowed=admin.has_operate_permission(request, row),
        title=_("%(act)s: %(row)s") % {"act": button.label, "row": _short(row)},
        sentence=str(button.sentence),
        warning=_warning(facts),
        facts=[_("The row is %(state)s.") % {"state": phrases.STATES[facts.kind]}],
        fields=_form_for(button, facts),
        initial={"reason": request.POST.get("reason", "")},
        hidden={SHOWN: _shown_in(request, facts)},
        act=act,
        button=str(button.label),
        danger=button.danger or facts.is_held,
        back=back,
        crumbs=[*admin.crumbs(request), Crumb(_short(row), page), Crumb(str(button.label))],
        site=admin.admin_site,
    )


def _shown_in(request: HttpRequest, facts: RowFacts) -> list[str]:
    """Return the claim that an answer must have seen: the present one; a sweep that goes on has been answered."""
    if FIELD in request.POST:
        return request.POST.getlist(SHOWN)
    claim = "\n".join([request.path, facts.status, str(facts.iteration), facts.holder])
    return [sha256(claim.encode()).hexdigest()]


def _as_shown(act: Act, row: Any, facts: RowFacts) -> Act:
    """Return the act for the row as it was read; what changes it after that keeps it from the act."""
    columns = claim_columns(type(row))
    same = {columns.status.name: facts.status, columns.iteration.name: facts.iteration}
    return replace(act, verb=lambda rows: act.verb(rows.filter(**same)))


def _permitted_row(admin: Any, request: HttpRequest, object_id: str) -> Any:
    """Return the row; PermissionDenied before anybody learns whether it exists, then 404."""
    if not admin.has_operate_permission(request):
        raise PermissionDenied
    row = admin.get_object(request, unquote(object_id))
    if row is None:
        raise Http404(_("There is no such row."))
    return row


def _form_for(button: RowButton, facts: RowFacts) -> type[forms.Form]:
    if not facts.is_held:
        return button.form
    return taking(button.form, str(phrases.holder_of(facts.holder)))


def _short(row: Any) -> str:
    text = str(row)
    return text if len(text) <= 60 else text[:59] + "…"


def _warning(facts: RowFacts) -> str:
    if not facts.is_held:
        return ""
    words = {"holder": phrases.holder_of(facts.holder)}
    return _("%(holder)s is working on this row and will lose it.") % words


def row_buttons(admin: Any, request: HttpRequest, row: Any, *, page: bool) -> Iterator[Any]:
    """Yield title and path of the buttons that a row has, for a user who may act on it."""
    if not admin.has_operate_permission(request, row):
        return
    kind = facts_of(row).kind
    query = "?from=page" if page else admin.filters_kept(request)
    for button in ROW_BUTTONS:
        if kind in (button.on_page if page else button.in_list):
            path_ = address(admin, button.name, quote(row.pk)) + query
            yield {"title": button.label, "path": path_}
