"""What both views share: who holds, for how long, under which queryset, and the ping that renews."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib.auth import get_permission_codename
from django.contrib.auth.mixins import UserPassesTestMixin
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import models
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect
from django.views.generic import View

from django_taskclaim import conf
from django_taskclaim.connecting import in_no_transaction
from django_taskclaim.contrib.review.templatetags.taskclaim import claim_column, clock_time
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.holders import holder_of, name_of
from django_taskclaim.policy import RENEWALS_PER_LEASE
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.states import Status, Token

#: Seconds between two pings at least and at most: often enough to tell of a loss while it can still be mended.
PING_AT_LEAST, PING_AT_MOST = 5.0, 60.0

#: Claims that one ping may name.
MOST_PINGED = 200


@method_decorator([never_cache, csrf_protect], name="dispatch")
class HolderMixin(UserPassesTestMixin, View):
    """For a view on which the user who is logged in holds rows; ``get_queryset()`` says which rows there are for them.

    Who may work on them, ``may_edit()`` says: a row that the user may not edit is neither shown nor claimed nor
    written. The view runs outside ATOMIC_REQUESTS, and checks the CSRF token without any middleware.
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

    # Who may

    def may_edit(self, user: Any, row: object = None) -> bool:
        """Say whether *user* may hold and change *row*, or with None rows of the view's model at all. To override.

        By default that takes the model's change permission, for every row.
        """
        meta = self.get_queryset().model._meta
        return bool(user.has_perm(f"{meta.app_label}.{get_permission_codename('change', meta)}"))

    def test_func(self) -> bool:
        """Say whether the user may do anything here, asked before each request: if not, the answer is Django's 403."""
        return self.request.user.is_authenticated and self.may_edit(self.request.user)

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
        seconds = self.lease_in_seconds() / RENEWALS_PER_LEASE
        every = round(max(PING_AT_LEAST, min(seconds, PING_AT_MOST)))
        return {"url": self.request.path, "every": every}

    def lease_in_seconds(self) -> float:
        return conf.DURATION.check(self.lease, "lease").total_seconds()

    def ping(self) -> HttpResponse:
        """Renew the claims that the page shows, and say which are lost and why."""
        posted = self.request.POST
        pairs = list(zip(posted.getlist("pk"), posted.getlist("token"), strict=False))
        # A row is None where the claim cannot be this user's.
        named = [(pk, self.carrying(pk, token)) for pk, token in pairs[:MOST_PINGED]]
        lost = self.renew([row for _pk, row in named if row is not None])
        gone = [pk for pk, row in named if row is None or row in lost]
        held = [pk for pk, row in named if row is not None and row not in lost]
        left = self.lease_in_seconds()
        return JsonResponse(
            {
                "held": [{"pk": pk, "left": left} for pk in held],
                "lost": [{"pk": pk, "why": self._why_lost(pk)} for pk in gone],
            }
        )

    def renew(self, rows: list[Any]) -> list[object]:
        """Renew, and return those that were lost."""
        if not rows:
            return []
        try:
            ClaimQuerySet(type(rows[0])).renew(rows, self.lease)
        except ClaimLost as error:
            return error.lost
        return []

    def _why_lost(self, pk: str) -> str:
        row = self.stored_row(pk)
        if row is not None and not self.may_edit(self.request.user, row):
            return _("You may not change it.")
        return outcome_of(row, self.holder())

    # Rows

    def carrying(self, pk: object, token: str) -> Any:
        """Return the row with the claim that *token* names.

        None where that is none of this user's, where they may not edit the row, or where it is gone. Whether the claim
        stands, the first verb finds out.
        """
        try:
            named = Token.parse(token)
            if named.holder != self.holder():
                return None
            row = self.get_queryset().with_token(pk, named)
        except (ObjectDoesNotExist, ValueError, ValidationError):
            return None
        return row if self.may_edit(self.request.user, row) else None

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
    elif status == Status.COMPLETE and holder == asked_by:
        text = _("You finished it at %(ended)s.")
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
