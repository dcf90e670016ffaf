"""What an operator does to rows in the admin: the actions of the list, and the buttons of the list and of each row.

All are made from ``control.actions.ROW_ACTIONS``. django-admin-actions draws the buttons. It names addresses after the
bare method and knows integer keys only, so the addresses are made here, and each leads to a page that asks first.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db import Error, connections, models, router
from django.http import Http404, HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, re_path, reverse
from django.utils.http import urlencode
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_taskclaim import conf
from django_taskclaim.admin.confirming import CONFIRMED, Answer, Crumb, confirm
from django_taskclaim.admin.display import STATES, RowFacts, holder_text
from django_taskclaim.admin.permissions import Admin, OperatePermission, may_view, row_permission
from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.connecting import in_no_transaction
from django_taskclaim.control.actions import LOSE, NAMED, ROW_ACTIONS, Action
from django_taskclaim.control.audit import record_action
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import first_line
from django_taskclaim.models import Switch
from django_taskclaim.monitoring.counts import MOST
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.isolating import refusals
from django_taskclaim.tables import scope_of
from django_taskclaim.templatetags.taskclaim_admin import number

Rows = ClaimQuerySet[Any]
#: As the templates of django-admin-actions draw them.
Buttons = Iterator[dict[str, object]]

#: A request works for so many seconds, then answers; proxies give up on those that take long.
SECONDS = 20.0

#: What the form of the list sends: which action, and on which rows.
SENT = ("action", "index", "select_across", ACTION_CHECKBOX_NAME)

#: What Django's admin keeps the filters of a list under.
FILTERS_KEPT = "_changelist_filters"

#: The form field that says which claim of the row the page has shown.
SHOWN = "taskclaim_shown"


class ActionForm(forms.Form):
    """Which rows an action shall change that it leaves alone unless they are named, and why."""

    running = forms.BooleanField(
        label=gettext_lazy("Take running rows from their holders, too"),
        required=False,
        help_text=LOSE,
    )
    complete = forms.BooleanField(
        label=gettext_lazy("Include rows that are complete"), required=False
    )
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        required=False,
        max_length=500,
        help_text=gettext_lazy("For everybody who looks later; it is kept in the record."),
    )

    def __init__(self, *args: Any, action: Action, holder: str | None = None, **options: Any):
        """For a single row *holder* is who has it, if anybody; then a box must be ticked to take it away."""
        super().__init__(*args, **options)
        if action.stores_reason:
            self.fields["reason"].required = True
            self.fields["reason"].help_text = _("It is stored as the error of each row.")
        for name in NAMED.values():
            if name not in action.named or holder is not None:
                del self.fields[name]
        if holder:
            box = forms.BooleanField(
                label=_("Take the row from %(holder)s") % {"holder": holder},
                error_messages={"required": _("Tick this, or the row stays with its holder.")},
            )
            self.fields = {"running": box, **self.fields}


class ClaimActions(OperatePermission):
    """The part of ``ClaimAdminMixin`` that acts: its buttons, the pages behind them, and the actions of the list."""

    def claim_urls(self) -> list[URLPattern]:
        """Return the addresses of the buttons; keys are quoted as Django's admin quotes them."""
        # A bound method takes no marks.
        view = self.admin_site.admin_view(in_no_transaction(partial(self.claim_button_view)))
        name = f"{self.opts.app_label}_{self.opts.model_name}_claim"
        # Any slug would hide the pages of the row whose key is "claim".
        of_all = "|".join(action.slug for action in ROW_ACTIONS if action.of_all)
        return [
            path("<path:object_id>/claim/<slug:slug>/", view, name=name),
            re_path(f"^claim/(?P<slug>{of_all})/$", view, name=name),
        ]

    def claim_address(self, page: str, *args: str) -> str:
        """Return the address of one of the pages of the model: ``changelist``, ``change``, ``claim``, ``control``."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{page}"
        return reverse(name, args=args, current_app=self.admin_site.name)

    def claim_list_address(self, request: HttpRequest) -> str:
        """Return the address of the list, filtered as it was."""
        kept = request.GET.get(FILTERS_KEPT, request.GET.urlencode())
        return self.claim_address("changelist") + (f"?{kept}" if kept else "")

    def claim_crumbs(self, request: HttpRequest) -> list[Crumb]:
        """Return the way from the index to the list."""
        app, site = self.opts.app_config, self.admin_site.name
        home = reverse("admin:app_list", args=[app.label], current_app=site)
        name = capfirst(str(self.opts.verbose_name_plural))
        return [Crumb(str(app.verbose_name), home), Crumb(name, self.claim_list_address(request))]

    # The buttons

    def claim_row_buttons(
        self, request: HttpRequest, row: models.Model, *, on_page: bool
    ) -> Buttons:
        """Yield the buttons of a row: on its page all, in the list the first that is made for its state."""
        if not self.has_operate_permission(request, row):
            return
        query = "" if on_page else "?" + urlencode({FILTERS_KEPT: request.GET.urlencode()})
        status = RowFacts(row).status
        for action in ROW_ACTIONS:
            fits = status in action.states or (on_page and action.takes(status))
            if action.row_label and fits:
                where = self.claim_address("claim", quote(row.pk), action.slug)
                yield {"title": action.row_label, "path": where + query}
                if not on_page:
                    return

    def claim_list_buttons(self, request: HttpRequest) -> Buttons:
        """Yield the buttons for all rows of the model."""
        # What follows "#" is lost: the filters that django-admin-actions adds, neither encoded nor complete.
        query = "?" + urlencode({FILTERS_KEPT: request.GET.urlencode()}) + "#"
        for action in ROW_ACTIONS if self.has_operate_permission(request) else ():
            if action.of_all:
                yield {
                    "title": action.label,
                    "path": self.claim_address("claim", action.slug) + query,
                }

    def claim_model_buttons(self, request: HttpRequest, pauses: Iterable[Switch]) -> Buttons:
        """Yield the buttons that lead to the control room of the model, and to its switch."""
        if self.has_operate_permission(request):
            own = any(pause.scope == scope_of(self.model) for pause in pauses)
            label = _("Resume claiming") if own else _("Pause claiming")
            yield {
                "title": label,
                "path": self.claim_address(f"control_{'resume' if own else 'pause'}"),
            }
        if may_view(request, self.model, model_admin=self):
            yield {"title": _("Control room"), "path": self.claim_address("control")}

    # The pages behind them

    def claim_button_view(
        self, request: HttpRequest, slug: str, object_id: str | None = None
    ) -> HttpResponseBase:
        """Ask, then act on one row, or on every row that the user's queryset shows, under any filter of the list."""
        # Refused before anybody learns whether the row exists.
        if not self.has_operate_permission(request):
            raise PermissionDenied
        action = next((one for one in ROW_ACTIONS if one.slug == slug), None)
        if action is None or not (action.of_all if object_id is None else action.row_label):
            raise Http404
        if object_id is None:
            rows = action.chosen(claims_of(self.get_queryset(request)))
            return self.ask_about_list(request, action, rows)
        row = self.get_object(request, unquote(object_id))
        if row is None:
            raise Http404(_("There is no such row."))
        return self.ask_about_row(request, action, row)

    def ask_about_row(
        self, request: HttpRequest, action: Action, row: models.Model
    ) -> HttpResponseBase:
        """Ask, then act on the row if it is still as the page has shown it."""
        facts, columns = RowFacts(row), claim_columns(type(row))
        page = self.claim_address("change", quote(row.pk))
        back = self.claim_list_address(request) if FILTERS_KEPT in request.GET else page
        holder = holder_text(facts.holder) if facts.is_held else ""
        words = {"action": action.row_label, "row": Truncator(str(row)).chars(60), "who": holder}
        shown = (row.pk, facts.status, facts.iteration, facts.holder, action.slug)
        warning = _("%(who)s is working on this row and will lose it.") if holder else ""
        initial = {"reason": request.POST.get("reason", "")}

        def run(answer: Answer) -> HttpResponseBase:
            named = NAMED.get(facts.status, "")
            run_action(
                request,
                action,
                claims_of(self.get_queryset(request)),
                model_admin=self,
                keys=[[row.pk]],
                # What changes the row after it was read keeps it from the action.
                as_read={
                    columns.status.name: facts.status,
                    columns.iteration.name: facts.iteration,
                },
                named=[named] if named in action.named else [],
                reason=answer["reason"],
                key=str(row.pk),
            )
            return HttpResponseRedirect(back)

        return confirm(
            request,
            allowed=self.has_operate_permission(request, row),
            title=_("%(action)s: %(row)s") % words,
            sentence=str(action.sentence),
            warning=warning % words,
            facts=lambda: [_("The row is %(state)s.") % {"state": STATES[facts.kind]}],
            form=partial(ActionForm, action=action, holder=holder, initial=initial),
            hidden={SHOWN: [repr(shown)]},
            run=run,
            button=str(action.row_label),
            danger=bool(holder) or action.stores_reason,
            back=back,
            crumbs=[*self.claim_crumbs(request), Crumb(str(words["row"]), page)],
            site=self.admin_site,
        )

    def ask_about_list(
        self,
        request: HttpRequest,
        action: Action,
        rows: Rows,
        hidden: Mapping[str, list[str]] | None = None,
    ) -> HttpResponseBase:
        """Show which rows are chosen, and act once the page is answered."""
        return confirm(
            request,
            allowed=self.has_operate_permission(request),
            title=str(action.label).rstrip("…"),
            sentence=str(action.sentence),
            warning=str(action.warning),
            facts=lambda: [describe_rows(rows)],
            form=partial(ActionForm, action=action),
            hidden=hidden,
            run=partial(self.run_on_list, request, action, rows),
            danger=action.confirm,
            back=self.claim_list_address(request),
            crumbs=self.claim_crumbs(request),
            site=self.admin_site,
        )

    def run_on_list(
        self, request: HttpRequest, action: Action, rows: Rows, answer: Answer
    ) -> HttpResponseBase:
        """Act on as many rows as a request has time for; where there are more, the same page follows."""
        named = [name for name in NAMED.values() if answer.get(name)]
        reason = answer.get("reason", "")
        is_over = run_action(request, action, rows, model_admin=self, named=named, reason=reason)
        back = self.claim_list_address(request) if is_over else request.get_full_path()
        return HttpResponseRedirect(back)


def _as_method(action: Action) -> Callable[..., HttpResponseBase]:
    """Return the action as Django's list of actions calls it."""
    label: Any = action.label

    @admin.action(permissions=[action.permission], description=label)
    def run(model_admin: ClaimActions, request: HttpRequest, queryset: Any) -> HttpResponseBase:
        asks = action.confirm or request.POST.get("select_across") == "1"
        if not asks and CONFIRMED not in request.POST:
            return model_admin.run_on_list(request, action, claims_of(queryset), {})
        hidden = {name: request.POST.getlist(name) for name in SENT}
        return model_admin.ask_about_list(request, action, claims_of(queryset), hidden)

    run.__name__ = f"claim_{action.slug.replace('-', '_')}"
    return run


#: The actions of the list, by their names in ``ModelAdmin.actions``.
CLAIM_ACTIONS = {method.__name__: method for method in map(_as_method, ROW_ACTIONS)}
for _name, _method in CLAIM_ACTIONS.items():
    setattr(ClaimActions, _name, _method)


def describe_rows(rows: Rows) -> str:
    """Say how many rows there are, and in which states where that is quickly counted."""
    states = states_of(rows)
    if states.total() > MOST:
        return _("More than %(number)s rows") % {"number": number(MOST)}
    return ", ".join([f"{number(states[one])} {STATES[one]}" for one in STATES if states[one]])


# Acting


@dataclass(slots=True)
class Result:
    """What one request has done with an action."""

    #: Rows that were changed, part by part.
    changed: list[int] = field(default_factory=list)
    #: Rows that it came to, and those that it left alone, by why.
    met: int = 0
    left: Counter[str] = field(default_factory=Counter)
    trouble: str = ""
    is_over: bool = True

    def progress(self, number: int) -> None:
        """Take in how many rows of the part have been changed so far."""
        self.changed[-1] = number

    def leave_others(self, rows: Rows, chosen: Rows) -> None:
        """Count the rows that are in states which the action leaves alone, where that is quickly done."""
        if (states := states_of(rows)).total() <= MOST:
            others = states - states_of(chosen)
            self.left.update({str(STATES[state]): n for state, n in sorted(others.items())})
            self.met = others.total()

    def permitted(self, rows: Rows, may: Callable[[models.Model], bool]) -> list[Any]:
        """Return the keys of those of *rows* that the user may act on; the others are left alone."""
        found = list(rows)
        keys = [row.pk for row in found if may(row)]
        self.left[_("that you may not change")] += len(found) - len(keys)
        return keys

    def leave_refused(self, rows: Rows, errors: Mapping[Any, str]) -> None:
        """Count those of *rows* that the database has refused to have written; *errors* are by their keys."""
        # Another request may have met others at the same time.
        for pk in rows.filter(pk__in=list(errors)).values_list("pk", flat=True):
            why = _("that the database refuses to have written (%(error)s)")
            self.left[why % {"error": errors[pk]}] += 1

    def tell(self, request: HttpRequest, action: Action) -> None:
        """Tell the user what was done, what was left alone and why, and whether there is more to do."""
        changed = sum(self.changed)
        level, text = messages.SUCCESS if changed else messages.WARNING, action.result(changed)
        missed = self.met - changed - self.left.total()
        self.left[_("that somebody else has locked or changed meanwhile")] += missed
        reasons = [f"{number(count)} {why}" for why, count in self.left.items() if count > 0]
        if self.trouble:
            level, more = messages.ERROR, _("Then the database refused: %(error)s")
        elif not self.is_over:
            more = _("The time was up; press again for the rest.")
        else:
            more = _("Left alone: %(reasons)s.") if reasons else ""
        text = f"{text} {more % {'error': self.trouble, 'reasons': ', '.join(reasons)}}"
        messages.add_message(request, level, text.rstrip())


def run_action(
    request: HttpRequest,
    action: Action,
    rows: Rows,
    *,
    model_admin: Admin,
    keys: Iterable[list[Any]] | None = None,
    as_read: Mapping[str, Any] = MappingProxyType({}),
    named: Iterable[str] = (),
    reason: str = "",
    key: str = "",
) -> bool:
    """Act on *rows* for as long as a request has time, record it, tell the user, and say whether it is over.

    With *keys* only on those, and *as_read* only where columns still have these values. *named* are the states that the
    user has named beside the action's own. *key* goes into the record where it was one row.
    """
    result, began, may = Result(), clock(), row_permission(request, model_admin)
    # No verb reaches rows through an aggregate.
    plain = rows if rows.query.group_by is None else ClaimQuerySet(rows.model, using=rows.db)
    chosen = action.chosen(rows, named, **as_read)
    if keys is None:
        result.leave_others(rows, chosen)
    try:
        for part in keys_of(chosen) if keys is None else keys:
            if result.changed and clock() - began >= SECONDS:
                result.is_over = False
                break
            result.met += len(part)
            if may is not None:
                part = result.permitted(chosen.filter(pk__in=part), may)
            result.changed.append(0)
            permitted = action.chosen(plain.filter(pk__in=part), named, **as_read)
            action.run(permitted, named=named, reason=reason, progress=result.progress)
    except (Error, TaskClaimError) as error:
        result.trouble = first_line(error)
        if connections[rows.db].needs_rollback:
            # A transaction of the caller's, as with ATOMIC_REQUESTS: it will undo what was done.
            result.changed = []
    finally:
        # Also where an error of the project's own ends it, out of a permission that it asks for, say.
        facts: dict[str, Any] = {"by": str(request.user), "user": request.user, "key": key}
        facts |= {"rows": sum(result.changed), "reason": reason, "using": rows.db}
        record_action(rows.model, action.name, **facts)
    refused = refusals(rows.model, rows.db, since=began)
    if refused and not result.trouble:
        result.leave_refused(plain, {one.key: one.error for one in refused})
    result.tell(request, action)
    return result.is_over


def keys_of(rows: Rows) -> Iterator[list[Any]]:
    """Yield the keys of the rows in their order, a chunk at a time."""
    left, size = rows.order_by("pk"), int(conf.setting("CHUNK_SIZE"))
    while part := list(left.values_list("pk", flat=True)[:size]):
        yield part
        left = rows.order_by("pk").filter(pk__gt=part[-1])


def claims_of(rows: models.QuerySet[models.Model]) -> Rows:
    """Return the user's own queryset as one that has the verbs, on the database where its rows are written."""
    return ClaimQuerySet(rows.model, query=rows.query.chain(), using=alias_of(rows))


def alias_of(rows: models.QuerySet[models.Model]) -> str:
    """Return the database on which *rows* are written: the one they were asked of by name, else the router's."""
    return rows._db or router.db_for_write(rows.model)  # type: ignore[attr-defined]  # not in django-stubs


def states_of(rows: models.QuerySet[models.Model]) -> Counter[str]:
    """Count the states of the rows, of MOST + 1 at most."""
    status = claim_columns(rows.model).status.name
    return Counter(rows.order_by().values_list(status, flat=True)[: MOST + 1])
