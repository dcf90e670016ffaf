"""The actions of the list: on rows that are ticked, or on all that the filters match."""

from collections.abc import Callable, Mapping
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_taskclaim.admin import acts, phrases
from django_taskclaim.admin.acts import Act
from django_taskclaim.admin.confirming import CONFIRMED, Crumb, confirm
from django_taskclaim.admin.counting import counted_up_to
from django_taskclaim.admin.forms import FailManyForm, ReasonForm, ResetForm
from django_taskclaim.admin.switching import how_many
from django_taskclaim.columns import claim_columns
from django_taskclaim.monitoring.counts import MOST

#: Given the cleaned answers, the act.
Maker = Callable[[Mapping[str, Any]], Act]


class ClaimActions:
    """The actions, each with the permission that it needs."""

    @admin.action(permissions=["operate"], description=gettext_lazy("Reset failed rows"))
    def claim_reset_failed(self, request: HttpRequest, queryset: Any) -> HttpResponseBase:
        return straight(
            self,
            request,
            queryset,
            acts.reset(),
            title=_("Reset failed rows"),
            sentence=_(
                "Failed rows will be as good as new: open, with no tries counted and no error."
            ),
        )

    @admin.action(permissions=["operate"], description=gettext_lazy("Reset rows…"))
    def claim_reset(self, request: HttpRequest, queryset: Any) -> HttpResponseBase:
        return asked(
            self,
            request,
            queryset,
            lambda answer: acts.reset(running=answer["running"], complete=answer["complete"]),
            title=_("Reset rows"),
            sentence=_(
                "Failed rows will be as good as new: open, with no tries counted and no error. Others are left alone,"
                " unless you say so."
            ),
            fields=ResetForm,
        )

    @admin.action(permissions=["operate"], description=gettext_lazy("Pause selected rows"))
    def claim_pause_rows(self, request: HttpRequest, queryset: Any) -> HttpResponseBase:
        return straight(
            self,
            request,
            queryset,
            acts.pause_rows(),
            title=_("Pause selected rows"),
            sentence=_(
                "These rows are set aside: no worker will claim them until somebody resumes them. Others go on."
            ),
        )

    @admin.action(permissions=["operate"], description=gettext_lazy("Resume selected rows"))
    def claim_resume_rows(self, request: HttpRequest, queryset: Any) -> HttpResponseBase:
        return straight(
            self,
            request,
            queryset,
            acts.resume_rows(),
            title=_("Resume selected rows"),
            sentence=_("Paused rows will be open again, to be claimed by the next free worker."),
        )

    @admin.action(permissions=["operate"], description=gettext_lazy("Release expired rows"))
    def claim_release_expired(self, request: HttpRequest, queryset: Any) -> HttpResponseBase:
        return straight(
            self,
            request,
            queryset,
            acts.release_expired(),
            title=_("Release expired rows"),
            sentence=_("Rows whose lease has ended are put back."),
        )

    @admin.action(permissions=["operate"], description=gettext_lazy("Take running rows back…"))
    def claim_take_back(self, request: HttpRequest, queryset: Any) -> HttpResponseBase:
        return asked(
            self,
            request,
            queryset,
            lambda answer: acts.take_back(),
            title=_("Take running rows back"),
            sentence=_("Running rows will be open again, and no try will be counted."),
            warning=_("Their holders will lose them, and what they write afterwards is refused."),
            fields=ReasonForm,
            danger=True,
        )

    @admin.action(permissions=["operate"], description=gettext_lazy("Fail rows…"))
    def claim_fail(self, request: HttpRequest, queryset: Any) -> HttpResponseBase:
        return asked(
            self,
            request,
            queryset,
            lambda answer: acts.fail(
                answer["reason"], running=answer["running"], complete=answer["complete"]
            ),
            title=_("Fail rows"),
            sentence=_(
                "Open and paused rows will be failed, and stay so until somebody resets them. Others are left alone,"
                " unless you say so."
            ),
            fields=FailManyForm,
            danger=True,
        )


ACTIONS = (
    "claim_reset_failed",
    "claim_reset",
    "claim_pause_rows",
    "claim_resume_rows",
    "claim_release_expired",
    "claim_take_back",
    "claim_fail",
)


def straight(
    self: Any, request: HttpRequest, rows: Any, act: Act, **words: Any
) -> HttpResponseBase:
    """Act at once on what takes nothing from anybody; on more rows than are quickly counted only when asked."""
    if CONFIRMED not in request.POST and counted_up_to(rows, MOST) is None:
        return asked(self, request, rows, lambda answer: act, **words)
    made: HttpResponseBase = self.run_act(
        request,
        act,
        rows,
        reason=request.POST.get("reason", "")[:500],
        back=request.get_full_path(),
    )
    return made


def asked(
    self: Any,
    request: HttpRequest,
    rows: Any,
    maker: Maker,
    *,
    title: str,
    fields: type[forms.Form] = ReasonForm,
    **options: Any,
) -> HttpResponseBase:
    """Show what is chosen, and act once the page is answered; the choice travels in the page."""

    def act(answer: Mapping[str, Any]) -> HttpResponseBase:
        made: HttpResponseBase = self.run_act(
            request, maker(answer), rows, reason=answer["reason"], back=request.get_full_path()
        )
        return made

    return confirm(
        request,
        allowed=self.has_operate_permission(request),
        title=title,
        facts=_chosen(rows),
        fields=fields,
        hidden=kept(request),
        act=act,
        button=title,
        back=request.get_full_path(),
        crumbs=[*self.crumbs(request), Crumb(title)],
        site=self.admin_site,
        **options,
    )


def kept(request: HttpRequest) -> dict[str, list[str]]:
    """Return the fields of the list's form: which action, and on which rows."""
    names = ("action", "index", "select_across", ACTION_CHECKBOX_NAME)
    return {name: list(request.POST.getlist(name)) for name in names}


def _chosen(rows: Any) -> list[str]:
    """Say how many rows are chosen, and in which states where that is quickly counted."""
    if counted_up_to(rows, MOST) is None:
        return [_("%(rows)s, all that the filters match") % {"rows": how_many(rows)}]
    status = claim_columns(rows.model).status.name
    states = list(rows.order_by().values_list(status, flat=True))
    return [
        _("%(number)s %(state)s")
        % {"number": phrases.amount(states.count(state)), "state": phrases.STATES[state]}
        for state in phrases.STATES
        if state in states
    ]
