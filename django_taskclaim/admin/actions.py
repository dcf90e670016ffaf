"""What an operator does to rows in the admin: the actions of the list, and the buttons of the list and of each row.

All are made from ``control.actions.ROW_ACTIONS``. django-admin-actions draws the buttons. It names addresses after the
bare method and knows integer keys only, so the addresses are made here, and each leads to a page that asks first.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.templatetags.admin_urls import add_preserved_filters
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db import Error, connections, models, router
from django.http import Http404, HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import path, reverse
from django.utils.text import Truncator, capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_taskclaim import conf
from django_taskclaim.admin.display import STATES, WAITING, facts_of, summary
from django_taskclaim.admin.forms import ActionForm, Crumb, Question
from django_taskclaim.admin.permissions import Admin, OperatePermission, may, row_permission
from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.connecting import in_no_transaction
from django_taskclaim.control.actions import LOSE, RESET, ROW_ACTIONS, Action
from django_taskclaim.control.audit import record_action
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import first_line
from django_taskclaim.models import Control
from django_taskclaim.monitoring.counts import MOST
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.isolating import refusals
from django_taskclaim.querysets.operating import KEYS_AT_ONCE
from django_taskclaim.signals import acted_by
from django_taskclaim.states import Status
from django_taskclaim.templatetags.taskclaim import number

Rows = ClaimQuerySet[Any]
#: As the templates of django-admin-actions draw them.
Buttons = Iterator[dict[str, str]]

#: After so many seconds a request begins no other chunk of rows, and answers; proxies give up on long ones.
SECONDS = 15.0

#: What the form of the list sends: which action, and on which rows.
SENT = ("action", "index", "select_across", ACTION_CHECKBOX_NAME)

#: Says in the address of a button that it stands in the list, so that the answer leads back there.
LISTED = "listed"

#: The form field that says which claim of the row the page has shown.
SHOWN = "taskclaim_shown"


NOTHING: Mapping[str, int] = {}

#: Why rows are left alone.
DENIED = gettext_lazy("that you may not change")
LOCKED = gettext_lazy("that somebody else has locked or changed meanwhile")
REFUSED = gettext_lazy("that the database refuses to have written (%(error)s)")


class ClaimActions(OperatePermission):
    """The part of ``ClaimAdminMixin`` that acts: its buttons, the pages behind them, and the actions of the list."""

    def get_urls(self) -> list[Any]:
        """Return the addresses of the buttons before Django's; keys are quoted as Django's admin quotes them."""
        # A bound method takes no marks.
        view = self.admin_site.admin_view(in_no_transaction(partial(self.claim_button_view)))
        name = f"{self.opts.app_label}_{self.opts.model_name}_claim"
        return [
            path("<path:object_id>/claim/<slug:slug>/", view, name=name),
            # Longer than the address of any page of the row whose key is "claim".
            path("claim/all/<slug:slug>/", view, name=name),
            *super().get_urls(),
        ]

    def claim_address(self, page: str, *args: str, kept: str = "") -> str:
        """Return the address of one of the pages of the model: ``changelist``, ``change``, ``claim``.

        *kept* is what ``get_preserved_filters`` has of the filters of the list.
        """
        site, opts = self.admin_site.name, self.opts
        url = reverse(f"{site}:{opts.app_label}_{opts.model_name}_{page}", args=args)
        return add_preserved_filters({"opts": opts, "preserved_filters": kept}, url)

    # The buttons

    def claim_row_buttons(
        self, request: HttpRequest, row: models.Model, *, query: str = ""
    ) -> Buttons:
        """Yield the buttons of a row, those first that are made for its state; others ask for a tick."""
        status = facts_of(row).status
        # An empty key has no address.
        if str(row.pk) and self.has_operate_permission(request, row):
            for action in sorted(ROW_ACTIONS, key=lambda action: status not in action.states):
                if fitting_states(action, [status], row):
                    where = self.claim_address("claim", quote(row.pk), action.slug)
                    yield {"title": str(action.label), "path": where + query}

    def claim_list_buttons(self, request: HttpRequest, query: str) -> Buttons:
        """Yield what stands above the list: for all failed rows of the model, and its control room."""
        if self.has_operate_permission(request):
            where = self.claim_address("claim", RESET.slug)
            yield {"title": _("Reset all failed rows"), "path": where + query}
        # A site may have no control room.
        may_look = may(request, "view_control", self.model, model_admin=self)
        if may_look and self.admin_site.is_registered(Control):
            room = f"{self.admin_site.name}:taskclaim_control_changelist"
            yield {"title": _("Control room"), "path": reverse(room, args=[self.opts.label_lower])}

    # The pages behind them

    def claim_button_view(
        self, request: HttpRequest, slug: str, object_id: str | None = None
    ) -> HttpResponseBase:
        """Ask, then act on one row, or on every row that the user's queryset shows, under any filter of the list."""
        # Refused before anybody learns whether the row exists.
        if not self.has_operate_permission(request):
            raise PermissionDenied
        action = next((one for one in ROW_ACTIONS if one.slug == slug), None)
        row = None if object_id is None else self.get_object(request, unquote(object_id))
        if action is None or (row is None and object_id is not None):
            raise Http404(_("There is no such row."))
        rows, kept = claims_of(self.get_queryset(request)), self.get_preserved_filters(request)
        rows_url = self.claim_address("changelist", kept=kept)
        if row is None:
            return self.claim_action(request, action, action.chosen(rows), rows_url)
        facts, columns = facts_of(row), claim_columns(type(row))
        shown = (row.pk, facts.status, facts.iteration, facts.holder, action.slug)
        # What changes the row after it was read keeps it from the action.
        as_read = {columns.status.name: facts.status, columns.iteration.name: facts.iteration}
        rows = every_row(rows).filter(pk=row.pk, **as_read)
        hidden = {SHOWN: [repr(shown)]}
        return self.claim_action(request, action, rows, rows_url, row=row, hidden=hidden)

    def claim_action(
        self,
        request: HttpRequest,
        action: Action,
        rows: Rows,
        rows_url: str,
        *,
        row: models.Model | None = None,
        hidden: Mapping[str, list[str]] | None = None,
    ) -> HttpResponseBase:
        """Ask, then act on *rows*, or on the one *row*; where a request has no time for all, the same page follows.

        *rows_url* is the list as it was filtered. *hidden* is how the rows were chosen, or what the page has shown of
        them, see ``Question``.
        """
        crumbs = [Crumb(capfirst(str(self.opts.verbose_name_plural)), rows_url)]
        if row is not None:
            kept = self.get_preserved_filters(request)
            page = self.claim_address("change", quote(row.pk), kept=kept)
            crumbs.append(Crumb(Truncator(str(row)).chars(60), page))
        back = crumbs[0 if LISTED in request.GET else -1].url
        states = states_of(rows)
        form = partial(ActionForm, action=action, states=states)
        allowed = self.has_operate_permission(request, row)
        question = Question(request, form, allowed=allowed, hidden=hidden)
        if question.answer is not None:
            options = action.options(question.answer)
            others = [one for one in states if one not in action.states_of(options)]
            is_over = run_action(
                request,
                action,
                rows,
                model_admin=self,
                keys=None if row is None or others else [[row.pk]],
                options=options,
                reason=question.answer["reason"],
                # Among too many rows nobody has counted them.
                left={one: states[one] for one in others if states.total() <= MOST},
            )
            return HttpResponseRedirect(back if is_over else request.get_full_path())
        return self.claim_question_page(question, action, states, crumbs, back, row)

    def claim_question_page(
        self,
        question: Question,
        action: Action,
        states: Counter[str],
        crumbs: list[Crumb],
        back: str,
        row: models.Model | None,
    ) -> HttpResponseBase:
        """Show the page that asks, with what there is in these *states*, or with the one *row*."""
        name, facts = self.opts.verbose_name_plural, counted(states) or [_("There are none.")]
        if row is not None:
            name, facts = crumbs[-1].title, [summary(facts_of(row), all_of_it=True)]
        elif states.total() > MOST:
            facts = [_("More than %(number)s rows") % {"number": number(MOST)}]
        fitting = fitting_states(action, states, row)
        return question.page(
            title=f"{action.label}: {name}",
            sentence=str(action.sentence),
            warning=caution(action, fitting),
            can_act=bool(fitting),
            facts=facts,
            back=back,
            crumbs=crumbs,
            site=self.admin_site,
        )


def fitting_states(action: Action, states: Iterable[str], row: models.Model | None) -> set[str]:
    """Return those of the *states* that the action changes, if only when named, for one *row* as it is."""
    if row is not None and action.waiting and facts_of(row).kind != WAITING:
        return set()
    return {one for one in states if action.takes(one)}


def caution(action: Action, fitting: Collection[str]) -> str:
    """Return what a person should know before they act: who loses a row, or that no row is in a fitting state."""
    if fitting:
        return str(LOSE) if Status.PROCESSING in fitting else ""
    wanted = [WAITING] if action.waiting else filter(action.takes, STATES)
    text = _("Nothing can be done: this is for rows in the state %(states)s.")
    return text % {"states": ", ".join(str(STATES[one]) for one in wanted)}


def list_action(action: Action) -> Callable[..., HttpResponseBase]:
    """Return the action as Django's list of actions calls it."""
    label: Any = action.label

    @admin.action(permissions=["operate"], description=label)
    def run(model_admin: ClaimActions, request: HttpRequest, rows: Any) -> HttpResponseBase:
        sent = {name: request.POST.getlist(name) for name in SENT}
        rows, rows_url = claims_of(rows), request.get_full_path()
        return model_admin.claim_action(request, action, rows, rows_url, hidden=sent)

    run.__name__ = f"claim_{action.slug.replace('-', '_')}"
    return run


# Acting


def run_action(
    request: HttpRequest,
    action: Action,
    rows: Rows,
    *,
    model_admin: Admin,
    keys: Iterable[list[Any]] | None = None,
    options: Mapping[str, object] = NOTHING,
    reason: str = "",
    left: Mapping[str, int] = NOTHING,
) -> bool:
    """Act on *rows* for as long as a request has time, record it, tell the user, and say whether it is over.

    With *keys* only on those, chunk by chunk. *options* are those of the verb, such as states that the user has named
    beside the action's own; *left* is how many rows are in other states.
    """
    chosen, may = action.chosen(rows, options), row_permission(request, action.needs, model_admin)
    # No verb reaches rows through an aggregate.
    reached = chosen if rows.query.group_by is None else every_row(rows)
    # Rows that were changed, and those that were left alone, by why.
    changed, alone, key = 0, Counter(left), ""
    began, is_over, trouble = clock(), True, ""
    try:
        for turn, part in enumerate(chunks_of(chosen) if keys is None else keys):
            # The first chunk is always begun, so that each press makes progress.
            if turn and clock() - began >= SECONDS:
                is_over = False
                break
            key = str(part[0]) if len(part) == 1 and not turn else ""
            mine = part if may is None else [r.pk for r in chosen.filter(pk__in=part) if may(r)]
            with acted_by(str(request.user), reason):
                done = action.verb(reached.filter(pk__in=mine), **options)
            changed += done
            errors = [one.error for one in refusals(rows.model, rows.db, began) if one.key in mine]
            alone.update(REFUSED % {"error": error} for error in errors)
            alone[str(DENIED)] += len(part) - len(mine)
            alone[str(LOCKED)] += len(mine) - done - len(errors)
    except (Error, TaskClaimError) as error:
        trouble = _("Then the database refused: %(error)s") % {"error": first_line(error)}
        if connections[rows.db].needs_rollback:
            # A transaction of the caller's, as with ATOMIC_REQUESTS: it will undo what was done.
            changed = 0
    finally:
        # Also where an error of the project's own ends it, out of a permission that it asks for, say.
        if changed:
            facts: dict[str, Any] = {"by": request.user, "reason": reason, "using": rows.db}
            record_action(rows.model, action.name, rows=changed, key=key, **facts)
    ending = trouble or _ending(alone, is_over=is_over)
    tell = messages.error if trouble else messages.success if changed else messages.warning
    tell(request, f"{action.result(changed, rows.model)} {ending}".rstrip())
    return is_over


def _ending(alone: Mapping[str, int], *, is_over: bool) -> str:
    if not is_over:
        return _("The time was up; press again for the rest.")
    reasons = ", ".join(counted(alone))
    return _("Left alone: %(reasons)s.") % {"reasons": reasons} if reasons else ""


def chunks_of(rows: Rows) -> Iterator[list[Any]]:
    """Yield the keys of *rows*, in their order, a chunk at a time."""
    left, size = rows.order_by("pk"), int(conf.setting("CHUNK_SIZE"))
    while keys := list(left.values_list("pk", flat=True)[:KEYS_AT_ONCE]):
        for start in range(0, len(keys), size):
            yield keys[start : start + size]
        left = left.filter(pk__gt=keys[-1])


# Rows as the user sees them


def claims_of(rows: models.QuerySet[models.Model]) -> Rows:
    """Return the user's own queryset as one that has the verbs, on the database where its rows are written."""
    # Where they were asked of no database by name, the router's.
    alias = rows._db or router.db_for_write(rows.model)  # type: ignore[attr-defined]  # not in django-stubs
    return ClaimQuerySet(rows.model, query=rows.query.chain(), using=alias)


def every_row(rows: Rows) -> Rows:
    """Return all rows of the table of *rows*, on the same database."""
    return ClaimQuerySet(rows.model, using=rows.db)


def states_of(rows: models.QuerySet[models.Model]) -> Counter[str]:
    """Count the states of the rows, of MOST + 1 at most; where there are more rows, each state is counted once more."""
    status = claim_columns(rows.model).status.name
    # With the keys, for the user's queryset may be distinct.
    found = Counter(state for _pk, state in rows.order_by().values_list("pk", status)[: MOST + 1])
    more = found.total() > MOST
    return Counter({one: found[one] + more for one in STATES if found[one] or more})


def counted(rows: Mapping[str, int]) -> list[str]:
    """Say how many rows there are of each kind: in a state, or left alone for a reason."""
    return [f"{number(n)} {STATES.get(kind, kind)}" for kind, n in rows.items() if n > 0]
