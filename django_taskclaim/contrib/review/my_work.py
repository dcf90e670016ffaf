"""The page "my work": what a person holds, and a button that fetches more."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.generic.base import TemplateResponseMixin, View
from django.views.generic.list import MultipleObjectMixin

from django_taskclaim.columns import claim_columns
from django_taskclaim.contrib.review.holding import HolderMixin
from django_taskclaim.querysets.scope import in_policy_order, in_state, is_running
from django_taskclaim.states import Status

if TYPE_CHECKING:
    _Many = MultipleObjectMixin[Any]
else:
    _Many = MultipleObjectMixin

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
        self.object_list = self.held()
        return self.render_to_response(self.get_context_data())

    def more(self) -> HttpResponse:
        """Claim what is missing, and show the page again."""
        self.top_up()
        return HttpResponseRedirect(f"{self.request.path}?asked")

    def held(self) -> list[Any]:
        """Return what the user holds and may edit; more than ``batch_size`` where rows were handed over."""
        return self._editable(self.get_queryset().holdings(self.holder()))

    def top_up(self) -> None:
        """Claim as many rows as ``batch_size`` leaves room for."""
        if len(self._asked_for()) >= self.batch_size or not self.puts_back_expired:
            return
        # After what is the user's own was renewed, and only where there is not enough without.
        if self.get_queryset().release_expired(limit=MOST_PUT_BACK):
            self._asked_for()

    def _asked_for(self) -> list[Any]:
        rows: list[Any] = self._claimable().claim_batch(
            self.batch_size, claimed_by=self.holder(), include_held=True, lease=self.get_lease()
        )
        return rows

    # Rows that the user may edit

    def _claimable(self) -> Any:
        """Return the rows to claim from, with what the user holds."""
        rows = self.get_queryset()
        if not self.asks_each_row():
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
        rows = self.object_list
        room = self.batch_size - len(rows)
        asked = "asked" in self.request.GET
        meta = self.get_queryset().model._meta
        return super().get_context_data(
            **{
                "rows": [{"row": row, "url": self.get_row_url(row)} for row in rows],
                "others": [{"row": row, "url": self.get_row_url(row)} for row in self.others()],
                "name": meta.verbose_name,
                "names": meta.verbose_name_plural,
                "room": max(0, room),
                "why": self.why_empty() if room > 0 and (asked or not rows) else None,
                "heartbeat": self.heartbeat(),
                **kwargs,
            }
        )

    def why_empty(self) -> Any:
        """Say why there is not more, see ``ClaimQuerySet.why_empty``."""
        rows = self.get_queryset()
        if self.asks_each_row():
            to_do = rows.filter(in_state(claim_columns(rows.model), Status.OPEN, Status.PROCESSING))
            rows = self._only(to_do.order_by("pk")[:LOOKED_AT])
        return rows.why_empty(self.holder())
