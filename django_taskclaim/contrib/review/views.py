"""The two pages: what a person holds, with a button that fetches more, and one row with its form."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar

from django.contrib.auth import get_permission_codename
from django.contrib.auth.mixins import PermissionRequiredMixin
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import transaction
from django.forms import BoundField
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect
from django.views.generic import ListView, UpdateView, View

from django_taskclaim import conf
from django_taskclaim.claim import carried_claim
from django_taskclaim.connecting import in_no_transaction
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.holders import holder_of, name_of
from django_taskclaim.policy import RENEWALS_PER_LEASE
from django_taskclaim.states import Token

NO_CONTENT, BAD_REQUEST, CONFLICT = 204, 400, 409

#: Put back in one request, where no worker and no cron job does it.
MOST_PUT_BACK = 100


class HolderMixin(PermissionRequiredMixin, View):
    """For a view on which the user who is logged in holds rows.

    ``get_queryset()`` says which rows there are for them: no other row is shown, claimed or written. The view runs
    outside ATOMIC_REQUESTS, and checks the CSRF token without any middleware.
    """

    #: How long a claim lasts after the last sign of its holder; a number means seconds.
    lease: timedelta | float = timedelta(hours=1)
    #: The methods that a POST may name in ``act``.
    acts: ClassVar[tuple[str, ...]] = ()

    get_queryset: Callable[[], Any]

    @classmethod
    def as_view(cls, **initkwargs: object) -> Any:
        return in_no_transaction(never_cache(csrf_protect(super().as_view(**initkwargs))))

    def get_permission_required(self) -> Sequence[str]:
        """Return the permissions that the view needs: by default that to change rows of the model."""
        if self.permission_required is not None:
            return super().get_permission_required()
        meta = self.get_queryset().model._meta
        return [f"{meta.app_label}.{get_permission_codename('change', meta)}"]

    def has_permission(self) -> bool:
        # A stranger has every permission of none, and holds nothing.
        return self.request.user.is_authenticated and super().has_permission()

    def holder(self) -> str:
        """Return the name under which the user holds rows; of your own, if you like, but never from the request."""
        return holder_of(self.request.user)

    def renew_every(self) -> int:
        """Return the seconds between two renewals by a page that can be seen: a quarter of the lease, 60 at most."""
        seconds = conf.DURATION.check(self.lease, "lease").total_seconds()
        return round(max(1, min(seconds / RENEWALS_PER_LEASE, 60)))

    def post(self, request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        name = request.POST.get("act", "")
        if name not in self.acts:
            return HttpResponse(_("There is no such act."), status=BAD_REQUEST)
        answer: HttpResponse = getattr(self, name)()
        return answer


# What a person holds


class MyWorkView(HolderMixin, ListView):  # type: ignore[type-arg]  # not generic when it runs
    """List what the user holds, and top it up to ``batch_size``.

        MyWorkView.as_view(model=Article, row_url_name="article")

    A GET claims and renews nothing: a page that a browser fetches ahead, or opens again in the morning, must not take
    or keep rows that nobody looks at. POST ``act=more`` tops up and renews, ``act=renew`` renews: a page sends it while
    it can be seen.
    """

    template_name = "taskclaim/review/my_work.html"
    #: How many rows a person gets to hold by asking.
    batch_size = 5
    #: The name of the URL of a row's page, which takes its key.
    row_url_name = ""
    acts = ("more", "renew")

    def get(self, request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        self.object_list = self.get_queryset().holdings(self.holder())
        return self.render_to_response(self.get_context_data())

    def more(self) -> HttpResponse:
        """Claim as many rows as ``batch_size`` leaves room for, and show the page again."""
        if self._claim() < self.batch_size:
            # What is the user's own was renewed.
            self.get_queryset().release_expired(limit=MOST_PUT_BACK)
            self._claim()
        return HttpResponseRedirect(f"{self.request.path}?asked")

    def renew(self) -> HttpResponse:
        """Renew all that the user holds."""
        rows = self.get_queryset()
        with suppress(ClaimLost):
            rows.renew(rows.holdings(self.holder()), self.lease)
        return HttpResponse(status=NO_CONTENT)

    def _claim(self) -> int:
        rows = self.get_queryset().claim_batch(
            self.batch_size, claimed_by=self.holder(), include_held=True, lease=self.lease
        )
        return len(rows)

    def get_context_data(self, **kwargs: object) -> dict[str, Any]:
        rows, every = self.object_list, self.get_queryset()
        room = max(0, self.batch_size - len(rows))
        asked = "asked" in self.request.GET or not rows
        context = {
            "rows": rows,
            "name": every.model._meta.verbose_name,
            "names": every.model._meta.verbose_name_plural,
            "room": room,
            "why": every.why_empty(self.holder()) if room and asked else None,
        }
        return super().get_context_data(**{**context, **kwargs})


# One row

#: The form fields that are ours.
TOKEN, TO = "taskclaim_token", "taskclaim_to"


class HeldRowView(HolderMixin, UpdateView):  # type: ignore[type-arg]  # not generic when it runs
    """Edit a row that the user holds. ``get_queryset()``, ``fields`` or ``form_class`` and ``success_url`` are as ever.

    ``get_queryset()`` should find rows in any state, so that a form that came too late can be told what happened.
    A GET renews nothing; the page does while it can be seen, by ``act=renew``. A POST is fenced by the token in the
    form. Where that does not stand, or is not this user's, nothing is written and ``conflict_template_name`` is
    answered with status 409: what became of the row, and what the user wrote.
    """

    template_name = "taskclaim/review/held_row.html"
    conflict_template_name = "taskclaim/review/not_yours.html"
    #: How long a skipped row waits before anybody gets it again.
    skip_delay: timedelta | float | None = timedelta(minutes=10)
    acts = ("finish", "save", "renew", "skip", "hand_over", "take")

    def colleagues(self) -> Any:
        """Return the users whom a row can be handed over to: nobody, until you say who."""
        return []

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            return super().dispatch(request, *args, **kwargs)
        except ClaimLost:
            return self.not_yours()

    def get_object(self, queryset: object = None) -> Any:
        """Return the row as the user holds it."""
        if held := self._this_row().holdings(self.holder()):
            return held[0]
        raise ClaimLost([])

    def get_context_data(self, **kwargs: object) -> dict[str, Any]:
        mine = {
            "row": self.object,
            "token": str(carried_claim(self.object).token),
            "colleagues": [(str(user.pk), name_of("", user)) for user in self.colleagues()],
            "back": self.get_success_url(),
            "saved": "saved" in self.request.GET,
        }
        return super().get_context_data(**{**mine, **kwargs})

    def get_success_url(self) -> str:
        return str(self.success_url or self.request.path)

    # What a POST may do

    def finish(self) -> HttpResponse:
        """Save and complete, in one transaction."""
        return self._write(lambda row: row.claim.complete())

    def save(self) -> HttpResponse:
        """Save and renew, in one transaction, and go on."""
        go_on = f"{self.request.path}?saved"
        return self._write(lambda row: row.claim.renew(self.lease), go_on)

    def renew(self) -> HttpResponse:
        """Renew the claim, and write nothing else."""
        self._posted_row().claim.renew(self.lease)
        return HttpResponse(status=NO_CONTENT)

    def hand_over(self) -> HttpResponse:
        """Save, and let a colleague go on, in one transaction."""
        named, needed = self.request.POST.get(TO), self.get_permission_required()
        to = next((user for user in self.colleagues() if str(user.pk) == named), None)
        may = to is not None and to.has_perms(needed)
        problem = "" if may else _("Choose a colleague who may change this.")
        return self._write(
            lambda row: row.claim.hand_over(holder_of(to), lease=self.lease), problem=problem
        )

    def skip(self) -> HttpResponse:
        """Give the row back, unchanged, for somebody else and for later."""
        self._posted_row().claim.release(delay=self.skip_delay)
        return HttpResponseRedirect(self.get_success_url())

    def take(self) -> HttpResponse:
        """Claim this row, if it is open and due."""
        self._this_row().claim_batch(1, claimed_by=self.holder(), lease=self.lease)
        return HttpResponseRedirect(self.request.path)

    def write(self, form: Any, then: Callable[[Any], object]) -> None:
        """Save the valid *form* and do what ends, or renews, the claim; all of it happens, or ClaimLost.

        To override where more is to be written: all that runs in here is one transaction with the fenced save.
        """
        with transaction.atomic(using=carried_claim(form.instance).alias):
            then(form.save())

    def _write(
        self, then: Callable[[Any], object], go_to: str = "", problem: str = ""
    ) -> HttpResponse:
        """Write what was sent and do *then*; or answer with the form and what is wrong with it."""
        self.object = self._posted_row()
        form = self.get_form()
        if problem:
            form.add_error(None, problem)
        if not form.is_valid():
            return self.form_invalid(form)
        self.write(form, then)
        return HttpResponseRedirect(go_to or self.get_success_url())

    def _this_row(self) -> Any:
        return self.get_queryset().filter(pk=self.kwargs["pk"])

    def _posted_row(self) -> Any:
        """Return the row with the claim in the form; ClaimLost where it does not stand, or is not this user's."""
        try:
            token = Token.parse(self.request.POST.get(TOKEN, ""))
            row = self.get_queryset().with_token(self.kwargs["pk"], token)
        except (ObjectDoesNotExist, ValueError, ValidationError):
            raise ClaimLost([]) from None
        if token.holder != self.holder() or not row.claim.check():
            raise ClaimLost([])
        return row

    # A row that is not the user's

    def not_yours(self) -> HttpResponse:
        """Return the page that says what became of the row, with the form that was sent beside what is stored."""
        rows = self._this_row()
        rows._for_write = True  # A replica may not have heard of it yet.
        row = self.object = rows.first()
        if row is None and self.request.method != "POST":
            raise Http404(_("There is no such row."))
        was_sent = self.request.POST.get("act") in ("finish", "save", "hand_over")
        form = self.get_form() if was_sent else None
        context = {
            "row": row,
            "why": None if row is None else rows.why_empty(self.holder()),
            "form": form,
            "differing": [] if form is None else [one.name for one in form if differs(one)],
            "back": self.success_url or "",
            "view": self,
        }
        self.template_name = self.conflict_template_name
        return self.render_to_response(context, status=CONFLICT)


def differs(field: BoundField) -> bool:
    """Say whether what was sent in a field is not what is stored; browsers write other line ends than programs."""
    return str(field.value() or "").split() != str(field.initial or "").split()
