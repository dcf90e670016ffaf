"""What both views share: who holds, for how long, under which queryset, and the ping that renews."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from django.apps import apps
from django.contrib.auth import get_backends, get_permission_codename
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

from django_taskclaim.claim import carried_claim
from django_taskclaim.columns import claim_columns
from django_taskclaim.connecting import in_no_transaction
from django_taskclaim.contrib.review.outcomes import outcome_of
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.fields import as_utc
from django_taskclaim.holders import holder_of
from django_taskclaim.monitoring.overview import database_time
from django_taskclaim.policy import RENEWALS_PER_LEASE
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.states import Token

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

    #: How long a claim lasts after the last sign of its holder.
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

    def may_edit(self, user: object, row: object = None) -> bool:
        """Say whether *user* may hold and change *row*, or with None rows of the view's model at all. To override.

        By default that takes the model's change permission. Where a backend in ``AUTHENTICATION_BACKENDS`` answers for
        single rows, it takes that for the row as well.
        """
        return may_change(user, self.get_queryset().model, row)

    def test_func(self) -> bool:
        """Say whether the user may do anything here, asked before each request: if not, the answer is Django's 403."""
        return self.request.user.is_authenticated and self.may_edit(self.request.user)

    def asks_each_row(self) -> bool:
        """Say whether ``may_edit()`` can answer differently for two rows."""
        return type(self).may_edit is not HolderMixin.may_edit or backends_know_rows()

    def holder(self) -> str:
        """Return the name under which the user holds rows; of your own, if you like, but never from the request."""
        return holder_of(self.request.user)

    def get_lease(self) -> timedelta:
        """Return how long a claim lasts that is taken or renewed now."""
        lease = self.lease
        return lease if isinstance(lease, timedelta) else timedelta(seconds=lease)

    def ping_every(self) -> int:
        """Return how many seconds the page waits between two pings."""
        seconds = self.get_lease().total_seconds() / RENEWALS_PER_LEASE
        return round(max(PING_AT_LEAST, min(seconds, PING_AT_MOST)))

    def post(self, request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
        name = request.POST.get("act", "")
        if name not in self.acts:
            return HttpResponseBadRequest(_("There is no such act."))
        answer: HttpResponseBase = getattr(self, name)()
        return answer

    # The ping

    def ping(self) -> HttpResponse:
        """Renew the claims that the page shows, and say which are lost and why."""
        named = list(self._named_claims())
        lost = self._renewed([row for _pk, row in named if row is not None])
        held = [(pk, row) for pk, row in named if row is not None and row not in lost]
        gone = [pk for pk, row in named if row is None or row in lost]
        now = database_time(carried_claim(held[0][1]).alias) if held else None
        return JsonResponse(
            {
                "held": [{"pk": pk, "left": _seconds_left(row, now)} for pk, row in held],
                "lost": [{"pk": pk, "why": self._why_lost(pk)} for pk in gone],
            }
        )

    def _named_claims(self) -> Iterator[tuple[str, Any]]:
        """Yield each key that was posted with the row carrying the claim; None where it cannot be this user's."""
        posted = self.request.POST
        pairs = zip(posted.getlist("pk"), posted.getlist("token"), strict=False)
        for _number, (pk, token) in zip(range(MOST_PINGED), pairs, strict=False):
            yield pk, self.carrying(pk, token)

    def _renewed(self, rows: list[Any]) -> list[object]:
        """Renew, and return those that were lost."""
        if not rows:
            return []
        try:
            ClaimQuerySet(type(rows[0])).renew(rows, self.get_lease())
        except ClaimLost as error:
            return error.lost
        return []

    def _why_lost(self, pk: str) -> str:
        row = self.stored_row(pk)
        if row is not None and not self.may_edit(self.request.user, row):
            return _("You may not change it.")
        return outcome_of(row, self.holder()).sentence

    # Rows

    def carrying(self, pk: object, token: str) -> Any:
        """Return the row with the claim that *token* names.

        None where that is none of this user's, where they may not edit the row, or where it is gone. Whether the claim
        stands, the first verb finds out.
        """
        try:
            named = Token.parse(token)
            row = (
                self.get_queryset().with_token(pk, named) if named.holder == self.holder() else None
            )
        except (ObjectDoesNotExist, ValueError, ValidationError):
            return None
        return row if row is not None and self.may_edit(self.request.user, row) else None

    def stored_row(self, pk: object) -> models.Model | None:
        """Return the row as it is now, carrying no claim; None where it is gone, or not in ``get_queryset()``."""
        rows = self.get_queryset()
        rows._for_write = True  # A replica may not have heard of it yet.
        try:
            found: models.Model | None = rows.filter(pk=pk).first()
        except (ValueError, ValidationError):
            return None
        return found

    def heartbeat(self) -> dict[str, Any]:
        """Return what the template needs for the ping."""
        return {
            "url": self.request.path,
            "every": self.ping_every(),
        }


def _seconds_left(row: models.Model, now: datetime | None) -> float | None:
    try:
        expiry = getattr(row, claim_columns(type(row)).expires_at.attname)
    except ObjectDoesNotExist:
        # Deleted since; the next ping tells.
        expiry = None
    if expiry is None or now is None:
        return None
    return round((as_utc(expiry) - now).total_seconds(), 1)


# What is asked of Django's permissions

#: By these methods a backend answers for a single row. Django's own backends have no such answer.
_ANSWERS = ("has_perm", "get_all_permissions", "get_user_permissions", "get_group_permissions")


def may_change(user: Any, model: Any, row: Any = None) -> bool:
    """Say whether *user* has the change permission of *model*, and that of *row* where a backend knows single rows."""
    meta = model._meta
    permission = f"{meta.app_label}.{get_permission_codename('change', meta)}"
    if not user.has_perm(permission):
        return False
    return row is None or not backends_know_rows() or bool(user.has_perm(permission, row))


def may_operate(user: Any) -> bool:
    """Say whether *user* may take rows from others: with ``taskclaim_control.operate``, where that app is installed."""
    with_control = apps.is_installed("django_taskclaim.control")
    return not with_control or bool(user.has_perm("taskclaim_control.operate"))


def backends_know_rows() -> bool:
    """Say whether one of ``AUTHENTICATION_BACKENDS`` may have an answer for a single row."""
    return any(
        getattr(backend, name).__module__ != "django.contrib.auth.backends"
        for backend in get_backends()
        for name in _ANSWERS
        if hasattr(backend, name)
    )
