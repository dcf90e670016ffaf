"""The page "my work" of a model in Django's admin: what the user holds. A GET claims nothing; a POST acts."""

from collections.abc import Iterable
from typing import Any

import django
from django.contrib import messages
from django.contrib.admin.utils import quote
from django.core.exceptions import ObjectDoesNotExist, PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_http_methods

from django_taskclaim.admin import phrases
from django_taskclaim.admin.buttons import address, standard_address, url_name
from django_taskclaim.admin.confirming import Crumb, in_no_transaction
from django_taskclaim.admin.rows import Look, facts_of, look_at
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.people import holder_of
from django_taskclaim.states import Token

TEMPLATE = "admin/taskclaim/my_work.html"

NAME = "my-work"

#: Parts the key of a ticked row from its token.
BETWEEN = "\n"


def my_work_urls(admin: Any) -> list[URLPattern]:
    """Return the address of the page; none where the ModelAdmin does not ask for it."""
    if not admin.my_work_size:
        return []

    def view(request: HttpRequest) -> HttpResponse:
        if not admin.has_change_permission(request):
            raise PermissionDenied
        return _Page(admin, request).answer()

    guarded = require_http_methods(["GET", "HEAD", "POST"])(csrf_protect(never_cache(view)))
    wrapped = admin.admin_site.admin_view(in_no_transaction(guarded))
    return [path("claim/my-work/", wrapped, name=url_name(admin, NAME))]


def my_work_button(admin: Any, request: HttpRequest) -> Iterable[Any]:
    """Yield the button that leads there, for who may change rows."""
    if admin.my_work_size and admin.has_change_permission(request):
        yield {"title": _("My work"), "path": address(admin, NAME)}


class _Page:
    """One request."""

    def __init__(self, admin: Any, request: HttpRequest) -> None:
        self.admin, self.request = admin, request
        self.who = holder_of(request.user)
        self.rows = admin.get_queryset(request)

    def answer(self) -> HttpResponse:
        if self.request.method != "POST":
            return self._show()
        acts = {"more": self._more, "complete": self._complete, "release": self._release}
        act = acts.get(self.request.POST.get("act", ""))
        if act is not None:
            act()
        return HttpResponseRedirect(self.request.path)

    def _show(self) -> HttpResponse:
        held = self.rows.holdings(self.who, lease=self.admin.my_work_lease)
        room = max(0, self.admin.my_work_size - len(held))
        look_at(held, Look(self.rows.db, self.request))
        plural = self.admin.opts.verbose_name_plural
        context = {
            **self.admin.admin_site.each_context(self.request),
            "title": _("My work: %(rows)s") % {"rows": plural},
            "lines": [self._line(row) for row in held],
            "room": room,
            "why": str(self.rows.why_empty(self.who)) if not held else "",
            "crumbs": [*self.admin.crumbs(self.request), Crumb(_("My work"))],
            "crumbs_are_listed": django.VERSION >= (6, 1),
            "opts": self.admin.opts,
        }
        self.request.current_app = self.admin.admin_site.name
        return TemplateResponse(self.request, TEMPLATE, context)

    def _line(self, row: Any) -> dict[str, Any]:
        left = facts_of(row).left
        return {
            "row": row,
            "url": standard_address(self.admin, "change", quote(row.pk)),
            "claim": f"{row.pk}{BETWEEN}{row.claim.token}",
            "left": "" if left is None else phrases.lasting(left),
        }

    # Acts

    def _more(self) -> None:
        size, lease = self.admin.my_work_size, self.admin.my_work_lease
        options = {"claimed_by": self.who, "include_held": True, "lease": lease}
        if len(self.rows.claim_batch(size, **options)) < size and self.rows.release_expired(100):
            self.rows.claim_batch(size, **options)

    def _complete(self) -> None:
        self._do("complete", lambda rows: self.rows.complete(rows))

    def _release(self) -> None:
        self._do("release", lambda rows: self.rows.release(rows))

    def _do(self, act: str, verb: Any) -> None:
        rows = [row for claim in self.request.POST.getlist("claim") if (row := self._named(claim))]
        lost = len(self.request.POST.getlist("claim")) - len(rows)
        try:
            done = verb(rows) if rows else 0
        except ClaimLost as error:
            done, lost = len(error.written), lost + len(error.lost)
        level = messages.WARNING if lost or not done else messages.SUCCESS
        self.admin.message_user(self.request, _told(act, done, lost), level)

    def _named(self, claim: str) -> Any:
        """Return the row that a ticked box names, carrying its claim; None where it is none of this user's."""
        key, _between, text = claim.replace("\r\n", BETWEEN).partition(BETWEEN)
        try:
            token = Token.parse(text)
            return self.rows.with_token(key, token) if token.holder == self.who else None
        except (ObjectDoesNotExist, ValueError, ValidationError):
            return None


def _told(act: str, done: int, lost: int) -> str:
    if act == "complete":
        text = ngettext("%(n)s row was completed.", "%(n)s rows were completed.", done)
    else:
        text = ngettext("%(n)s row was given back.", "%(n)s rows were given back.", done)
    parts = [text % {"n": phrases.amount(done)}]
    if lost:
        text = ngettext(
            "%(n)s was not yours any more and was left alone.",
            "%(n)s were not yours any more and were left alone.",
            lost,
        )
        parts.append(text % {"n": phrases.amount(lost)})
    return " ".join(parts)
