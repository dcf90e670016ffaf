"""The two pages: what a person holds, with a button that fetches more, and one row with its form."""

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.generic.base import TemplateResponseMixin, View
from django.views.generic.edit import ModelFormMixin
from django.views.generic.list import MultipleObjectMixin

from django_taskclaim.claim import carried_claim
from django_taskclaim.columns import claim_columns
from django_taskclaim.contrib.review.holding import HolderMixin, outcome_of
from django_taskclaim.contrib.review.templatetags.taskclaim import claim_column
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.holders import holder_of, name_of
from django_taskclaim.querysets.scope import in_policy_order, in_state, is_running
from django_taskclaim.states import Status

if TYPE_CHECKING:
    _Many = MultipleObjectMixin[Any]
    _Form = ModelFormMixin[Any, Any]
else:
    _Many, _Form = MultipleObjectMixin, ModelFormMixin

#: Put back in one request, where no worker and no cron job does it.
MOST_PUT_BACK = 100

#: Where each row is asked about, a request looks at so many of the first ones to find some that the user may edit.
LOOKED_AT = 200


class MyWorkView(HolderMixin, _Many, TemplateResponseMixin, View):
    """List what the user holds, and top it up to ``batch_size``.

        MyWorkView.as_view(model=Article, row_url_name="article")

    A GET claims and renews nothing: a page that a browser fetches ahead, or opens again in the morning, must not take
    or keep rows that nobody looks at, and who wants to be done for today could never get an empty desk.
    POST ``act=more`` tops up and renews, ``act=ping`` renews: a page sends it as soon as it can be seen.
    """

    template_name = "taskclaim/review/my_work.html"
    #: How many rows a person gets to hold by asking.
    batch_size = 5
    #: The name of the URL of a row's page, which takes its key; or override ``get_row_url``.
    row_url_name = ""
    #: How many rows held by others are listed; 0 for none.
    others_shown = 10
    #: Put lapsed claims back before an answer comes back short. Off where workers or ``release_expired`` do it.
    puts_back_expired = True
    acts = ("more", "ping")

    def get(self, request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        self.object_list = self._editable(self.get_queryset().holdings(self.holder()))
        return self.render_to_response(self.get_context_data())

    def more(self) -> HttpResponse:
        """Claim as many rows as ``batch_size`` leaves room for, and show the page again."""
        if len(self._claim()) < self.batch_size and self._put_back():
            self._claim()
        return HttpResponseRedirect(f"{self.request.path}?asked")

    def _put_back(self) -> int:
        """Put back expired rows, after what is the user's own was renewed, and return how many."""
        rows: Any = self.get_queryset()
        return rows.release_expired(limit=MOST_PUT_BACK) if self.puts_back_expired else 0

    def _claim(self) -> list[Any]:
        rows: list[Any] = self._claimable().claim_batch(
            self.batch_size, claimed_by=self.holder(), include_held=True, lease=self.lease
        )
        return rows

    # Rows that the user may edit

    def _asks_each_row(self) -> bool:
        """Say whether ``may_edit()`` can answer differently for two rows."""
        return type(self).may_edit is not HolderMixin.may_edit

    def _claimable(self) -> Any:
        """Return the rows to claim from, with what the user holds."""
        rows = self.get_queryset()
        if not self._asks_each_row():
            return rows
        due: Any = in_policy_order(rows.due())
        if not due.query.order_by:
            due = due.order_by(*claim_columns(rows.model).order)
        due._for_write = True  # A replica may not have heard of it yet.
        return self._only([*due[:LOOKED_AT], *rows.holdings(self.holder())])

    def _only(self, found: Iterable[Any]) -> Any:
        """Return a queryset of those of the rows that the user may edit."""
        return self.get_queryset().filter(pk__in=[row.pk for row in self._editable(found)])

    def _editable(self, rows: Iterable[Any]) -> list[Any]:
        return [row for row in rows if self.may_edit(self.request.user, row)]

    # What the page shows

    def others(self) -> list[Any]:
        """Return rows that others hold, those first whose lease ends first."""
        columns = claim_columns(self.get_queryset().model)
        rows = self.get_queryset().filter(is_running(columns))
        rows = rows.exclude(**{columns.claimed_by.name: self.holder()})
        return self._editable(rows.order_by(columns.expires_at.name, "pk")[: self.others_shown])

    def get_row_url(self, row: Any) -> str:
        """Return the address of the row's page."""
        return reverse(self.row_url_name, args=[row.pk])

    def get_context_data(self, **kwargs: object) -> dict[str, Any]:
        rows, meta = self.object_list, self.get_queryset().model._meta
        room = max(0, self.batch_size - len(rows))
        asked = "asked" in self.request.GET or not rows
        context = {
            "rows": [{"row": row, "url": self.get_row_url(row)} for row in rows],
            "others": [{"row": row, "url": self.get_row_url(row)} for row in self.others()],
            "name": meta.verbose_name,
            "names": meta.verbose_name_plural,
            "room": room,
            "why": self.why_empty() if room and asked else None,
            "heartbeat": self.heartbeat(),
        }
        return super().get_context_data(**{**context, **kwargs})

    def why_empty(self) -> Any:
        """Say why there is not more, see ``ClaimQuerySet.why_empty``."""
        rows = self.get_queryset()
        if self._asks_each_row():
            to_do = rows.filter(in_state(claim_columns(rows.model), Status.OPEN, Status.PROCESSING))
            rows = self._only(to_do.order_by("pk")[:LOOKED_AT])
        return rows.why_empty(self.holder())


# One row

#: The form fields that are ours.
TOKEN, TO, REASON, SEEN = "taskclaim_token", "taskclaim_to", "taskclaim_reason", "taskclaim_seen"

#: The prefix of the fields that show what is stored.
STORED = "stored"

CONFLICT = 409


class HeldRowView(HolderMixin, _Form, TemplateResponseMixin, View):
    """Edit a row that the user holds. ``get_queryset()``, ``fields`` or ``form_class`` and ``success_url`` are as ever.

    ``get_queryset()`` should find rows in any state, so that a form that came too late can be told what happened.
    A POST is fenced by the token in the form. Where that does not stand, or is not this user's, nothing is written and
    ``conflict_template_name`` is answered with status 409: what became of the row, and what the user wrote.
    """

    template_name = "taskclaim/review/held_row.html"
    conflict_template_name = "taskclaim/review/not_yours.html"
    #: How long a skipped row waits before anybody gets it again.
    skip_delay: timedelta | float | None = timedelta(minutes=10)
    acts = ("finish", "save", "skip", "hand_over", "take", "take_over", "ping")

    @cached_property
    def _now(self) -> Any:
        """The row as it is stored now, without a claim."""
        return self.stored_row(self.kwargs["pk"])

    def _this_row(self) -> Any:
        return self.get_queryset().filter(pk=self.kwargs["pk"])

    # Who may

    def test_func(self) -> bool:
        """Say whether the user may edit the row."""
        return super().test_func() and self.may_edit(self.request.user, self._now)

    def colleagues(self) -> Any:
        """Return the users whom a row can be handed over to: nobody, until you say who."""
        return []

    def may_take_over(self, row: object) -> bool:
        """Say whether the user may take *row* from its holder: an operator's act, which needs an operator's permission.

        That is ``taskclaim_control.operate`` where ``django_taskclaim.control`` is installed.
        """
        user: Any = self.request.user
        operates = not apps.is_installed("django_taskclaim.control") or user.has_perm(
            "taskclaim_control.operate"
        )
        return operates and self.may_edit(user, row)

    # Looking

    def get(self, request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        """Show the form to the holder of the row, and its state to others."""
        if self._now is None:
            raise Http404(_("There is no such row."))
        held = self._this_row().holdings(self.holder())
        if not held:
            return self.not_yours()
        self.object = held[0]
        return self.render_to_response(self.get_context_data())

    def get_context_data(self, **kwargs: object) -> dict[str, Any]:
        mine = {
            "row": self.object,
            "token": str(carried_claim(self.object).token),
            "colleagues": [(user.pk, name_of("", user)) for user in self.colleagues()],
            "heartbeat": self.heartbeat(),
            "back": self.get_success_url(),
            "saved": "saved" in self.request.GET,
        }
        return super().get_context_data(**{**mine, **kwargs})

    def get_success_url(self) -> str:
        return str(self.success_url or self.request.path)

    # What a POST may do

    def post(self, request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        try:
            return super().post(request, *args, **kwargs)
        except ClaimLost:
            # It may have been lost since the row was read.
            self._now = self.stored_row(self.kwargs["pk"])
            return self.not_yours()

    def finish(self) -> HttpResponse:
        """Save and complete, in one transaction."""
        return self._write(lambda row: row.claim.complete())

    def save(self) -> HttpResponse:
        """Save, renew, and go on."""
        return self._write(None)

    def hand_over(self) -> HttpResponse:
        """Save, and let a colleague go on, in one transaction."""
        to = next((u for u in self.colleagues() if str(u.pk) == self.request.POST.get(TO)), None)
        if to is None or not self.may_edit(to, self._now):
            return self._write(None, problem=_("Choose a colleague who may change this."))
        return self._write(lambda row: row.claim.hand_over(holder_of(to), lease=self.lease))

    def skip(self) -> HttpResponse:
        """Give the row back, unchanged, for somebody else and for later."""
        self._posted_row().claim.release(delay=self.skip_delay)
        return HttpResponseRedirect(self.get_success_url())

    def take(self) -> HttpResponse:
        """Claim this row, if it is open and due."""
        self._this_row().claim_batch(1, claimed_by=self.holder(), lease=self.lease)
        return HttpResponseRedirect(self.request.path)

    def take_over(self) -> HttpResponseBase:
        """Take the row from the holder that the page named, with a reason."""
        if self._now is None:
            return self.not_yours()
        if not self.may_take_over(self._now):
            raise PermissionDenied(_("You may not take rows over."))
        reason = self.request.POST.get(REASON, "").strip()
        if not reason:
            return self.not_yours(_("Say why, for the person who loses it."))
        if self.request.POST.get(SEEN) == self._seen():
            iteration = claim_columns(type(self._now)).iteration.name
            as_seen = {iteration: claim_column(self._now, "iteration")}
            self._this_row().filter(**as_seen).take_over(
                by=self.holder(), reason=reason, lease=self.lease
            )
        return HttpResponseRedirect(self.request.path)

    def write(self, form: Any, then: Callable[[Any], None] | None) -> Any:
        """Save the valid *form* and do what ends the claim, and return the row; all of it happens, or ClaimLost.

        To override where more is to be written: all that runs in here is one transaction with the fenced save.
        """
        with transaction.atomic(using=carried_claim(form.instance).alias):
            row = form.save()
            if then is not None:
                then(row)
        return row

    def _write(self, then: Callable[[Any], None] | None, problem: str = "") -> HttpResponse:
        """Write what was sent and do *then*, or renew; or answer with the form and what is wrong with it."""
        self.object = self._posted_row()
        form = self.get_form()
        if problem:
            form.add_error(None, problem)
        if not form.is_valid():
            return self.render_to_response(self.get_context_data(form=form))
        self.object = self.write(form, then)
        if then is not None:
            return HttpResponseRedirect(self.get_success_url())
        self.renew([self.object])
        return HttpResponseRedirect(f"{self.request.path}?saved")

    def _posted_row(self) -> Any:
        """Return the row with the claim in the form; ClaimLost where it does not stand, or is not this user's."""
        row = self.carrying(self.kwargs["pk"], self.request.POST.get(TOKEN, ""))
        if row is None or not row.claim.check():
            raise ClaimLost([self._now])
        return row

    # A row that is not the user's

    def not_yours(self, problem: str = "") -> HttpResponse:
        """Return the page that says what became of the row, with the form that was sent beside what is stored."""
        row, holder = self._now, self.holder()
        was_sent = self.request.POST.get("act") in ("finish", "save", "hand_over")
        status = "" if row is None else claim_column(row, "status")
        is_held = status == Status.PROCESSING and claim_column(row, "claimed_by") != holder
        stored = None
        if row is not None:
            kind = self.get_form_class()
            stored = kind(instance=row, initial=self.get_initial(), prefix=STORED)
        fields = compared(self.get_form(), stored) if was_sent else []
        context = {
            "row": row,
            "outcome": outcome_of(row, holder),
            "was_sent": was_sent,
            "fields": fields,
            "differing": sum(field["differs"] for field in fields),
            "may_take": status == Status.OPEN,
            "may_take_over": is_held and self.may_take_over(row),
            "seen": self._seen(),
            "problem": problem,
            "back": self.success_url or "",
            "view": self,
        }
        template = self.conflict_template_name
        return TemplateResponse(self.request, template, context, status=CONFLICT)

    def _seen(self) -> str:
        """Return which claim the page shows, so that no other is taken over."""
        if self._now is None:
            return ""
        return f"{claim_column(self._now, 'iteration')}:{claim_column(self._now, 'claimed_by')}"


def compared(sent: Any, stored: Any) -> list[dict[str, Any]]:
    """Return each visible field of the bound form *sent* beside that of *stored*, a form of the row as it is, or None.

    They are shown as widgets that nobody can write in.
    """
    fields = []
    for mine in sent.visible_fields():
        theirs = None if stored is None else stored[mine.name]
        differs = bool(mine.data)
        if theirs is not None:
            differs = theirs.field.has_changed(_bare(theirs.initial), _bare(mine.data))
        for one in (mine, theirs):
            if one is not None:
                one.field.required = False
                one.field.widget.attrs |= {"readonly": True, "aria-label": mine.label}
        fields.append({"mine": mine, "theirs": theirs, "differs": differs})
    return fields


def _bare(value: Any) -> Any:
    """Return a text without what a browser and a form change of it by themselves: line ends, and space around it."""
    return value.replace("\r\n", "\n").strip() if isinstance(value, str) else value
