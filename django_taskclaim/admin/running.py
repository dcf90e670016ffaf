"""From an answered page to the rows: run the act for a while, record it, and say what it did."""

from typing import Any

import django
from django.contrib import messages
from django.core.signing import BadSignature
from django.db import Error, connections
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from django_taskclaim.admin import phrases, sweeping
from django_taskclaim.admin.acts import Act
from django_taskclaim.admin.confirming import Crumb
from django_taskclaim.admin.sweeping import FIELD, Sweep, left_alone
from django_taskclaim.control.acts import record_act
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import first_line

TEMPLATE = "admin/taskclaim/sweeping.html"


def run_act(
    admin: Any,
    request: HttpRequest,
    act: Act,
    rows: Any,
    *,
    reason: str = "",
    key: str = "",
    back: str,
) -> HttpResponseBase:
    """Do *act* to as many *rows* as a request has time for; the answer goes on with the rest, or tells the outcome."""
    trouble, alias = "", sweeping.alias_of(rows)
    salt, so_far = _salt(admin, request, act, alias), Sweep()
    if FIELD in request.POST:
        try:
            so_far = Sweep.loads(request.POST[FIELD], admin.model, salt)
        except BadSignature:
            told = _(
                "Nothing was done: this page is too old, or belongs to another act. Begin again."
            )
            admin.message_user(request, told, messages.ERROR)
            return HttpResponseRedirect(back)
    before = so_far.tally.changed
    try:
        sweeping.sweep(
            rows, act, so_far, sieve=sieve_of(admin, request, rows), seconds=sweeping.BUDGET
        )
    except (Error, TaskClaimError) as error:
        trouble, so_far.done = first_line(error), True
        if connections[alias].needs_rollback:
            # A transaction of the caller's, as with ATOMIC_REQUESTS: nothing of this request will have been.
            so_far.tally.changed = before
    finally:
        # Also where an error of the project's own ends it, out of a permission that it asks for, say.
        now = so_far.tally.changed - before
        if now or (so_far.done and not so_far.tally.changed):
            facts: dict[str, Any] = {"by": str(request.user), "user": request.user, "using": alias}
            record_act(admin.model, act.name, rows=now, reason=reason, key=key, **facts)
    if not so_far.done:
        return _to_be_continued(admin, request, act, so_far, salt, back)
    _tell(admin, request, act, so_far, trouble)
    return HttpResponseRedirect(back)


def sieve_of(admin: Any, request: HttpRequest, rows: Any) -> sweeping.Sieve | None:
    """Return what keeps rows back that the user may not change; None where the admin makes no difference by row."""
    from django.contrib.admin import ModelAdmin

    from django_taskclaim.admin.mixin import ClaimAdminMixin

    kind = type(admin)
    if (
        kind.has_change_permission is ModelAdmin.has_change_permission
        and kind.has_operate_permission is ClaimAdminMixin.has_operate_permission
    ):
        return None

    def sieve(keys: list[Any]) -> set[Any]:
        found = rows.filter(pk__in=keys)
        return {row.pk for row in found if admin.has_operate_permission(request, row)}

    return sieve


def _tell(admin: Any, request: HttpRequest, act: Act, so_far: Sweep, trouble: str) -> None:
    parts = [act.told(so_far.tally.changed), left_alone(so_far.tally)]
    level = messages.SUCCESS if so_far.tally.changed else messages.WARNING
    if trouble:
        level = messages.ERROR
        parts.append(_("Then the database refused: %(error)s") % {"error": trouble})
    admin.message_user(request, " ".join(part for part in parts if part), level)


def _sent(request: HttpRequest) -> list[tuple[str, str]]:
    """Return what was chosen and answered, which goes on with the sweep."""
    return [
        (name, value)
        for name, values in request.POST.lists()
        for value in values
        if name not in ("csrfmiddlewaretoken", FIELD)
    ]


def _salt(admin: Any, request: HttpRequest, act: Act, alias: str) -> str:
    """Return what a sweep is signed with: it counts for this address with these answers, and for nothing else."""
    # Browsers send each line end as two characters.
    sent = sorted((name, value.replace("\r\n", "\n")) for name, value in _sent(request))
    where = (admin.admin_site.name, admin.opts.label_lower, alias, request.get_full_path())
    return sweeping.salt_of(*where, act.name, request.user.pk, sent)


def _to_be_continued(
    admin: Any, request: HttpRequest, act: Act, so_far: Sweep, salt: str, back: str
) -> HttpResponseBase:
    seen = {"number": phrases.amount(so_far.tally.seen)}
    context = {
        **admin.admin_site.each_context(request),
        "title": _("Working…"),
        "sentence": act.told(so_far.tally.changed)
        + " "
        + _("%(number)s rows looked at so far; this goes on by itself.") % seen,
        "left": left_alone(so_far.tally),
        "hidden": [*_sent(request), (FIELD, so_far.dumps(salt))],
        "crumbs": [*admin.crumbs(request), Crumb(_("Working…"))],
        "crumbs_are_listed": django.VERSION >= (6, 1),
        "back": back,
    }
    request.current_app = admin.admin_site.name
    return TemplateResponse(request, TEMPLATE, context)
