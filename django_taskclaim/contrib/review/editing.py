"""The page of one row that a person holds: a form, and what else one may do with a row."""

from collections.abc import Callable
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from django.views.generic.base import TemplateResponseMixin, View
from django.views.generic.edit import ModelFormMixin

from django_taskclaim.claim import carried_claim
from django_taskclaim.columns import claim_columns
from django_taskclaim.contrib.review.holding import HolderMixin, may_operate
from django_taskclaim.contrib.review.outcomes import outcome_of, written
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.holders import holder_of, name_of
from django_taskclaim.states import Status

if TYPE_CHECKING:
    _Form = ModelFormMixin[Any, Any]
else:
    _Form = ModelFormMixin

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
            "pk": self.object.pk,
            "colleagues": [(user.pk, name_of("", user)) for user in self.colleagues()],
            "heartbeat": self.heartbeat(),
            "back": self.get_success_url(),
            "saved": "saved" in self.request.GET,
        }
        return super().get_context_data(**{**mine, **kwargs})

    # What a POST may do

    def finish(self) -> HttpResponse:
        """Save and complete, in one transaction."""
        return self._written(lambda row: row.claim.complete())

    def save(self) -> HttpResponse:
        """Save, renew, and go on."""
        return self._written(None, stay=True)

    def hand_over(self) -> HttpResponse:
        """Save, and let a colleague go on, in one transaction."""
        to = next((u for u in self.colleagues() if str(u.pk) == self.request.POST.get(TO)), None)
        if to is None:
            return self._written(None, problem=_("Choose a colleague to hand this over to."))
        if not self.may_edit(to, self.stored_row(self.kwargs["pk"])):
            problem = _("%(name)s may not change this. Choose another colleague.")
            return self._written(None, problem=problem % {"name": name_of("", to)})
        return self._written(lambda row: row.claim.hand_over(holder_of(to), lease=self.get_lease()))

    def skip(self) -> HttpResponse:
        """Give the row back, unchanged, for somebody else and for later."""
        row = self._posted_row()
        try:
            if row is None:
                return self.not_yours()
            row.claim.release(delay=self.skip_delay)
        except ClaimLost:
            return self.not_yours()
        return self._done()

    def take(self) -> HttpResponse:
        """Claim this row, if it is open and due."""
        self._this_row().claim_batch(1, claimed_by=self.holder(), lease=self.get_lease())
        return HttpResponseRedirect(self.request.path)

    def take_over(self) -> HttpResponseBase:
        """Take the row from the holder that the page named, with a reason."""
        if self._now is None:
            return self.not_yours()
        if not self.may_take_over(self._now):
            raise PermissionDenied(_("You may not take rows over."))
        reason = self.request.POST.get(REASON, "").strip()
        if not reason:
            return self.not_yours(problem=_("Say why, for the person who loses it."))
        if self.request.POST.get(SEEN) == self._seen():
            columns = claim_columns(type(self._now))
            as_seen = {columns.iteration.name: getattr(self._now, columns.iteration.attname)}
            self._this_row().filter(**as_seen).take_over(
                by=self.holder(), reason=reason, lease=self.get_lease()
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

    def _written(
        self, then: Callable[[Any], None] | None, *, stay: bool = False, problem: str = ""
    ) -> HttpResponse:
        row = self._posted_row()
        self.object = row
        try:
            if row is None or not row.claim.check():
                return self.not_yours(self.get_form())
            form = self.get_form()
            if problem:
                form.add_error(None, problem)
            if not form.is_valid():
                return self.render_to_response(self.get_context_data(form=form))
            self.object = self.write(form, then)
        except ClaimLost:
            return self.not_yours(self.get_form())
        if not stay:
            return self._done()
        self._renewed([self.object])
        return HttpResponseRedirect(f"{self.request.path}?saved")

    def _done(self) -> HttpResponse:
        return HttpResponseRedirect(str(self.get_success_url()))

    def get_success_url(self) -> str:
        return str(self.success_url or self.request.path)

    # Who may

    def colleagues(self) -> Any:
        """Return the users whom a row can be handed over to: nobody, until you say who."""
        return []

    def test_func(self) -> bool:
        """Say whether the user may edit the row."""
        if not super().test_func():
            return False
        return self.may_edit(self.request.user, self.stored_row(self.kwargs["pk"]))

    def may_take_over(self, row: object) -> bool:
        """Say whether the user may take *row* from its holder: an operator's act, which needs an operator's permission.

        That is ``taskclaim_control.operate`` where ``django_taskclaim.control`` is installed.
        """
        user = self.request.user
        return self.may_edit(user, row) and may_operate(user)

    # A row that is not the user's

    def not_yours(self, form: object = None, *, problem: str = "") -> HttpResponse:
        """Return the page that says what became of the row, and what of *form* would have been written."""
        row = self._now
        outcome = outcome_of(row, self.holder())
        sent = [] if form is None else written(form, self._form_of(row))
        context = {
            "row": row,
            "outcome": outcome,
            "was_sent": form is not None,
            "other_person": self._is_anothers_token(),
            "fields": sent,
            "differing": sum(field.differs for field in sent),
            "may_take": outcome.status == Status.OPEN,
            "may_take_over": (
                outcome.status == Status.PROCESSING
                and not outcome.is_own
                and self.may_take_over(row)
            ),
            "seen": self._seen(),
            "problem": problem,
            "back": self.success_url or "",
            "view": self,
        }
        template = self.conflict_template_name
        return TemplateResponse(self.request, template, context, status=CONFLICT)

    @cached_property
    def _now(self) -> Any:
        """The row as it is stored now, without a claim."""
        return self.stored_row(self.kwargs["pk"])

    def _seen(self) -> str:
        """Return which claim the page shows, so that no other is taken over."""
        if self._now is None:
            return ""
        columns = claim_columns(type(self._now))
        holder = getattr(self._now, columns.claimed_by.attname)
        return f"{getattr(self._now, columns.iteration.attname)}:{holder}"

    def _form_of(self, row: object) -> Any:
        """Return the form of the stored row, to compare with; None where it is gone."""
        if row is None:
            return None
        return self.get_form_class()(instance=row, initial=self.get_initial(), prefix=STORED)

    def _is_anothers_token(self) -> bool:
        _iteration, _colon, holder = self.request.POST.get(TOKEN, "").partition(":")
        return bool(holder) and holder != self.holder()

    def _this_row(self) -> Any:
        return self.get_queryset().filter(pk=self.kwargs["pk"])

    def _posted_row(self) -> Any:
        token = self.request.POST.get(TOKEN, "")
        return self.carrying(self.kwargs["pk"], token)
