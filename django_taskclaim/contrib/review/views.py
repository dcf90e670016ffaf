"""The two pages: what a person holds, with a button that fetches more, and one row with its form."""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from django.apps import apps
from django.contrib.auth import get_permission_codename
from django.contrib.auth.mixins import PermissionRequiredMixin
from django.core.exceptions import ObjectDoesNotExist, PermissionDenied, ValidationError
from django.db import models, transaction
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBadRequest,
    HttpResponseRedirect,
    JsonResponse,
)
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect
from django.views.generic.base import TemplateResponseMixin, View
from django.views.generic.edit import ModelFormMixin
from django.views.generic.list import MultipleObjectMixin

from django_taskclaim import conf
from django_taskclaim.claim import carried_claim
from django_taskclaim.columns import claim_columns
from django_taskclaim.connecting import in_no_transaction
from django_taskclaim.contrib.review.templatetags.taskclaim import claim_column, clock_time
from django_taskclaim.control.audit import record_action
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.holders import holder_of, name_of
from django_taskclaim.policy import RENEWALS_PER_LEASE
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.scope import is_running
from django_taskclaim.states import Status, Token

if TYPE_CHECKING:
    _Many = MultipleObjectMixin[Any]
    _Form = ModelFormMixin[Any, Any]
else:
    _Many, _Form = MultipleObjectMixin, ModelFormMixin

#: Put back in one request, where no worker and no cron job does it.
MOST_PUT_BACK = 100

#: Seconds between two pings at least and at most: often enough to tell of a loss while it can still be mended.
PING_AT_LEAST, PING_AT_MOST = 5.0, 60.0

#: Claims that one ping may name.
MOST_PINGED = 200


@method_decorator([never_cache, csrf_protect], name="dispatch")
class HolderMixin(PermissionRequiredMixin, View):
    """For a view on which the user who is logged in holds rows.

    ``get_queryset()`` says which rows there are for them: no other row is shown, claimed or written. The view runs
    outside ATOMIC_REQUESTS, and checks the CSRF token without any middleware.
    """

    #: How long a claim lasts after the last sign of its holder; a number means seconds.
    lease: timedelta | float = timedelta(hours=1)
    #: The methods that a POST may name in ``act``.
    acts: ClassVar[tuple[str, ...]] = ("ping",)

    request: HttpRequest

    if TYPE_CHECKING:

        def get_queryset(self) -> Any: ...

    @classmethod
    def as_view(cls, **initkwargs: object) -> Any:
        return in_no_transaction(super().as_view(**initkwargs))

    def get_permission_required(self) -> Sequence[str]:
        """Return the permissions that the view needs: by default that to change rows of the model."""
        meta = self.get_queryset().model._meta
        named = self.permission_required
        change = f"{meta.app_label}.{get_permission_codename('change', meta)}"
        return [change] if named is None else super().get_permission_required()

    def has_permission(self) -> bool:
        # A stranger has every permission of none, and holds nothing.
        return self.request.user.is_authenticated and super().has_permission()

    def holder(self) -> str:
        """Return the name under which the user holds rows; of your own, if you like, but never from the request."""
        return holder_of(self.request.user)

    def post(self, request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        name = request.POST.get("act", "")
        if name not in self.acts:
            return HttpResponseBadRequest(_("There is no such act."))
        answer: HttpResponseBase = getattr(self, name)()
        return answer

    # The ping

    def heartbeat(self) -> dict[str, Any]:
        """Return what the template needs for the ping: where to, and how many seconds the page waits between two."""
        seconds = self._lease_in_seconds() / RENEWALS_PER_LEASE
        every = round(max(PING_AT_LEAST, min(seconds, PING_AT_MOST)))
        return {"url": self.request.path, "every": every}

    def _lease_in_seconds(self) -> float:
        return conf.DURATION.check(self.lease, "lease").total_seconds()

    def ping(self) -> HttpResponse:
        """Renew the claims that the page shows, and say which are lost and why."""
        posted = self.request.POST
        pairs = zip(posted.getlist("pk"), posted.getlist("token"), strict=False)
        # A row is None where the claim cannot be this user's.
        named = [(pk, self.carrying(pk, token)) for pk, token in list(pairs)[:MOST_PINGED]]
        rows, lost = [row for _pk, row in named if row is not None], list[Any]()
        try:
            ClaimQuerySet(self.get_queryset().model).renew(rows, self.lease)
        except ClaimLost as error:
            lost = error.lost
        held, gone, left = list[Any](), list[Any](), self._lease_in_seconds()
        for pk, row in named:
            if row is None or row in lost:
                why = outcome_of(self.stored_row(pk), self.holder())
                gone.append({"pk": pk, "why": why})
            else:
                held.append({"pk": pk, "left": left})
        return JsonResponse({"held": held, "lost": gone})

    # Rows

    def carrying(self, pk: object, token: str) -> Any:
        """Return the row with the claim that *token* names; None where that is none of this user's, or it is gone.

        Whether the claim stands, the first verb finds out.
        """
        try:
            named = Token.parse(token)
            is_theirs = named.holder == self.holder()
            return self.get_queryset().with_token(pk, named) if is_theirs else None
        except (ObjectDoesNotExist, ValueError, ValidationError):
            return None

    def stored_row(self, pk: object) -> models.Model | None:
        """Return the row as it is now, carrying no claim; None where it is gone, or not in ``get_queryset()``."""
        rows = self.get_queryset()
        rows._for_write = True  # A replica may not have heard of it yet.
        try:
            found: models.Model | None = rows.filter(pk=pk).first()
        except (ValueError, ValidationError):
            return None
        return found


def outcome_of(row: models.Model | None, asked_by: str) -> str:
    """Say to the holder *asked_by* who holds the stored *row*, or what became of it; None is a row that is gone."""
    if row is None:
        return _("It is gone.")
    status, holder = claim_column(row, "status"), claim_column(row, "claimed_by")
    since, ended = claim_column(row, "claimed_at"), claim_column(row, "completed_at")
    if status == Status.PROCESSING and holder == asked_by:
        text = _("You have held it again since %(since)s: open it again.")
    elif status == Status.PROCESSING:
        text = _("%(name)s has held it since %(since)s, and keeps it until %(until)s at least.")
    elif status == Status.COMPLETE:
        text = _("%(name)s finished it at %(ended)s.")
    elif status == Status.OPEN:
        text = _("It was put back, and nobody holds it now.")
    else:
        text = _("It was set aside or given up, and nobody works on it.")
    return text % {
        "name": name_of(holder) or _("Somebody"),
        "since": clock_time(since) or "?",
        "until": clock_time(claim_column(row, "expires_at")) or "?",
        "ended": clock_time(ended or since) or "?",
    }


# What a person holds


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
    acts = ("more", "ping")

    def get(self, request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        self.object_list = self.get_queryset().holdings(self.holder())
        return self.render_to_response(self.get_context_data())

    def more(self) -> HttpResponse:
        """Claim as many rows as ``batch_size`` leaves room for, and show the page again."""
        if len(self._claim()) < self.batch_size:
            # What is the user's own was renewed.
            self.get_queryset().release_expired(limit=MOST_PUT_BACK)
            self._claim()
        return HttpResponseRedirect(f"{self.request.path}?asked")

    def _claim(self) -> list[Any]:
        rows: list[Any] = self.get_queryset().claim_batch(
            self.batch_size, claimed_by=self.holder(), include_held=True, lease=self.lease
        )
        return rows

    def others(self) -> Any:
        """Return rows that others hold, those first whose lease ends first."""
        columns = claim_columns(self.get_queryset().model)
        rows = self.get_queryset().filter(is_running(columns))
        rows = rows.exclude(**{columns.claimed_by.name: self.holder()})
        return rows.order_by(columns.expires_at.name, "pk")[: self.others_shown]

    def get_row_url(self, row: Any) -> str:
        """Return the address of the row's page."""
        return reverse(self.row_url_name, args=[row.pk])

    def get_context_data(self, **kwargs: object) -> dict[str, Any]:
        rows, every = self.object_list, self.get_queryset()
        room = max(0, self.batch_size - len(rows))
        asked = "asked" in self.request.GET or not rows
        context = {
            "rows": [{"row": row, "url": self.get_row_url(row)} for row in rows],
            "others": [{"row": row, "url": self.get_row_url(row)} for row in self.others()],
            "name": every.model._meta.verbose_name,
            "names": every.model._meta.verbose_name_plural,
            "room": room,
            "why": every.why_empty(self.holder()) if room and asked else None,
            "heartbeat": self.heartbeat(),
        }
        return super().get_context_data(**{**context, **kwargs})


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

    def _this_row(self) -> Any:
        return self.get_queryset().filter(pk=self.kwargs["pk"])

    # Who may

    def colleagues(self) -> Any:
        """Return the users whom a row can be handed over to: nobody, until you say who."""
        return []

    def may_take_over(self, row: object) -> bool:
        """Say whether the user may take *row* from its holder: an operator's act, which needs an operator's permission.

        That is ``taskclaim_control.operate`` where ``django_taskclaim.control`` is installed.
        """
        user: Any = self.request.user
        installed = apps.is_installed("django_taskclaim.control")
        return not installed or user.has_perm("taskclaim_control.operate")

    # Looking

    def get(self, request: HttpRequest, *args: object, **kwargs: object) -> HttpResponse:
        """Show the form to the holder of the row, and its state to others."""
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
            return self.not_yours()

    def finish(self) -> HttpResponse:
        """Save and complete, in one transaction."""
        return self._write(lambda row: row.claim.complete())

    def save(self) -> HttpResponse:
        """Save and renew, in one transaction, and go on."""
        go_on = f"{self.request.path}?saved"
        return self._write(lambda row: row.claim.renew(self.lease), go_on)

    def hand_over(self) -> HttpResponse:
        """Save, and let a colleague go on, in one transaction."""
        named, needed = self.request.POST.get(TO), self.get_permission_required()
        to = next((user for user in self.colleagues() if str(user.pk) == named), None)
        if to is None or not to.has_perms(needed):
            problem = _("Choose a colleague who may change this.")
            return self._write(lambda row: None, problem=problem)
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
        row, reason = self.stored_row(self.kwargs["pk"]), self.request.POST.get(REASON, "").strip()
        if row is None:
            return self.not_yours()
        if not self.may_take_over(row):
            raise PermissionDenied(_("You may not take rows over."))
        if not reason:
            return self.not_yours(_("Say why, for the person who loses it."))
        seen = self.request.POST.get(SEEN, "")
        # No two claims of a row have the same iteration.
        if seen == str(claim_column(row, "iteration")):
            as_seen = self._this_row().filter(**{claim_columns(type(row)).iteration.name: seen})
            if as_seen.take_over(by=self.holder(), reason=reason, lease=self.lease):
                key, who = str(row.pk), self.request.user
                facts: dict[str, Any] = {"reason": reason, "using": as_seen.db}
                record_action(type(row), "take over", rows=1, key=key, by=who, **facts)
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
            return self.render_to_response(self.get_context_data(form=form))
        self.write(form, then)
        return HttpResponseRedirect(go_to or self.get_success_url())

    def _posted_row(self) -> Any:
        """Return the row with the claim in the form; ClaimLost where it does not stand, or is not this user's."""
        row = self.carrying(self.kwargs["pk"], self.request.POST.get(TOKEN, ""))
        if row is None or not row.claim.check():
            raise ClaimLost([])
        return row

    # A row that is not the user's

    def not_yours(self, problem: str = "") -> HttpResponse:
        """Return the page that says what became of the row, with the form that was sent beside what is stored."""
        row, holder = self.stored_row(self.kwargs["pk"]), self.holder()
        if row is None and self.request.method != "POST":
            raise Http404(_("There is no such row."))
        was_sent = self.request.POST.get("act") in ("finish", "save", "hand_over")
        self.object = row
        status, held_by, seen = (
            None if row is None else claim_column(row, role)
            for role in ("status", "claimed_by", "iteration")
        )
        fields = list(self._compared()) if was_sent else []
        is_held = status == Status.PROCESSING and held_by != holder
        context = {
            "row": row,
            "outcome": outcome_of(row, holder),
            "was_sent": was_sent,
            "fields": fields,
            "differing": sum(field["differs"] for field in fields),
            "may_take": status == Status.OPEN,
            "may_take_over": is_held and self.may_take_over(row),
            "seen": seen,
            "problem": problem,
            "back": self.success_url or "",
            "view": self,
        }
        template = self.conflict_template_name
        return TemplateResponse(self.request, template, context, status=CONFLICT)

    def _compared(self) -> Iterator[dict[str, Any]]:
        """Yield each visible field of the form that was sent beside that of a form of the row as it is stored.

        They are shown as widgets that nobody can write in.
        """
        sent = self.get_form()
        stored = self.get_form_class()(
            instance=self.object, initial=self.get_initial(), prefix=STORED
        )
        for mine in sent.visible_fields():
            theirs = stored[mine.name]
            for one in (mine, theirs):
                one.field.required = False
                one.field.widget.attrs |= {"readonly": True, "aria-label": mine.label}
            # Browsers write other line ends, and forms cut off space.
            texts = [str(one.value()).split() for one in (mine, theirs)]
            differs = mine.name in sent.changed_data and texts[0] != texts[1]
            shown = None if self.object is None else theirs
            yield {"mine": mine, "theirs": shown, "differs": differs}
