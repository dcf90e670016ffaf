"""The pages of the control room: where each is, who may do what there, and what it answers.

A GET only shows; a POST acts.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

import django
from django.apps import apps
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.db import Error, models, router
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.csrf import get_token
from django.shortcuts import redirect, render
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import conditional_page

from django_taskclaim.admin import forms
from django_taskclaim.admin.actions import ClaimActions, claims_of, run_action
from django_taskclaim.admin.control_room import failures, snapshot
from django_taskclaim.admin.control_room.failures import Group
from django_taskclaim.admin.forms import Crumb, Question
from django_taskclaim.admin.permissions import may
from django_taskclaim.columns import claim_columns
from django_taskclaim.control import actions, audit
from django_taskclaim.control.models import is_on
from django_taskclaim.control.reading import HOUR
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import first_line
from django_taskclaim.handlers import handler_for
from django_taskclaim.holders import holder_of
from django_taskclaim.monitoring.errors import latest_failures
from django_taskclaim.monitoring.overview import workers
from django_taskclaim.monitoring.server import in_time
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.switch import claimable_models, describe_pause, paused_by, paused_model
from django_taskclaim.templatetags.taskclaim import moment

TEMPLATES = "admin/taskclaim/control_room"

LATE = gettext_lazy("The database did not answer in time.")
NO_GROUP = gettext_lazy("No row has failed like this, or the database did not answer in time.")


class OverviewPage:
    """The page of all models on one AdminSite; what is done there is done to all of them."""

    model: type[models.Model] | None = None
    model_admin: Any = None
    #: The template of what its script refreshes.
    part = "overview.html"
    #: By the last part of an address, the method that answers, and what the user must be permitted to do.
    views = {
        "": ("show", ""),
        "live": ("show", ""),
        actions.PAUSE.name: ("turn", "operate"),
        actions.RESUME.name: ("turn", "operate"),
    }

    def __init__(self, site: AdminSite) -> None:
        self.site = site
        self.name, self.title = _("all models"), _("Control room")
        self.url = self.overview_url = self.address("taskclaim_control_changelist")
        #: The way from the index to the page.
        self.crumbs = [Crumb(self.title, self.url)]

    def address(self, name: str, *args: str) -> str:
        """Return the address of a page of the site."""
        return reverse(f"{self.site.name}:{name}", args=args)

    def pages(self, request: HttpRequest) -> Iterator["ModelPage"]:
        """Yield the pages of the models that the user may see; the admin's menu needs no more than the first."""
        for model in claimable_models():
            page = ModelPage(self.site, model)
            if page.may("view_control", request):
                yield page

    def may(self, what: str, request: HttpRequest) -> bool:
        """Say whether the user may do *what* to the model, see ``permissions.NEEDS``."""
        return may(request, what, self.model, model_admin=self.model_admin)

    # What it answers

    def answer(self, request: HttpRequest, page: str) -> HttpResponseBase:
        """Answer one of the addresses of the page."""
        if page not in self.views:
            raise Http404
        name, needed = self.views[page]
        # Also a form of settings that comes back with errors shows all that is on the page.
        may_look = self.model is None or self.may("view_control", request)
        if not may_look or (needed and not self.may(needed, request)):
            raise PermissionDenied
        if name in ("settings", "export") and request.method != "POST":
            # The login form leads here when a form was sent after the session had ended.
            return redirect(self.url)
        response: HttpResponseBase = getattr(self, name)(request, page)
        return response

    def show(self, request: HttpRequest, page: str = "", **given: Any) -> HttpResponseBase:
        """Answer with the whole page, or with the part of it that its script refreshes."""
        facts = self.facts(request, **given)
        request.current_app = self.site.name
        context = {
            "crumbs": self.crumbs,
            "crumbs_are_listed": django.VERSION >= (6, 1),
            "title": self.title,
            "here": self.url,
            "query": request.GET.urlencode(),
            "part": f"{TEMPLATES}/{self.part}",
            **facts,
        }
        if not page:
            context = self.site.each_context(request) | context
            return TemplateResponse(request, f"{TEMPLATES}/base.html", context)
        # What differs in each answer goes by headers, so that the rest may be the same as before.
        context["csrf_token"] = "in a header"
        draw = partial(render, template_name=context["part"], context=context)
        response: HttpResponseBase = conditional_page(draw)(request)
        response["Taskclaim-As-Of"] = quote(moment(facts["as_of"]))
        response["Taskclaim-Token"] = get_token(request)
        return response

    def facts(self, request: HttpRequest) -> dict[str, Any]:
        """Return what the templates show; PermissionDenied for a user who may not look."""
        pages = list(self.pages(request))
        if not pages:
            raise PermissionDenied
        # Those who may see the same models share what was read of them.
        places = tuple((page.model, page.alias) for page in pages)
        found = snapshot.shared(request, places, partial(snapshot.read_cards, places))
        cards = [page.line(found[page.model]) for page in pages]
        return {
            # The worst first, and those that are alike in the order of their names.
            "models": sorted(cards, key=lambda card: (card["trouble"], card["page"].name)),
            "may_operate_all": self.may("operate", request),
            "all_are_paused": any(
                card["seen"] and card["seen"].pause and card["seen"].pause.is_for_all
                for card in cards
            ),
            "as_of": min(one.as_of for one in found.values()),
            "is_late": any(one.is_late for one in found.values()),
        }

    # What a person can do

    def ask(self, question: Question, **page: Any) -> HttpResponseBase:
        """Show the page of a question that has not been answered yet."""
        return question.page(**page, back=self.url, crumbs=self.crumbs, site=self.site)

    def attempt(
        self, request: HttpRequest, do: Callable[[], str | None], done: str
    ) -> HttpResponseBase:
        """Do something, say that it is *done*, or what it warns of, or what is wrong, and return to the page."""
        try:
            warning = do()
        except (ValueError, Error, TaskClaimError) as error:
            messages.error(request, first_line(error))
        else:
            say = messages.warning if warning else messages.success
            say(request, warning or done)
        return redirect(self.url)

    def turn(self, request: HttpRequest, page: str) -> HttpResponseBase:
        """Ask, and then pause or resume claims of the model, or of all on every database.

        Models that were paused by name stay so when all are resumed.
        """
        off, of_all = page == actions.PAUSE.name, self.model is None
        action, name = actions.PAUSE if off else actions.RESUME, self.name
        form = forms.PauseForm if off else forms.ReasonForm
        question = Question(request, form, allowed=True)
        if (answer := question.answer) is not None:

            def turn() -> str | None:
                audit.turn(self.model, off=off, by=request.user, **answer)
                # The pause of all, or of its parent, stays.
                pause = None if off or self.model is None else paused_by(self.model)
                if pause is None:
                    return None
                text = _("%(name)s: claiming stays paused. %(pause)s.")
                return text % {"name": capfirst(name), "pause": describe_pause(pause)}

            return self.attempt(request, turn, f"{capfirst(name)}: {action.done}.")
        every = _("This is about all models, also about those that you do not see.")
        return self.ask(
            question,
            title=f"{action.label}: {name}",
            sentence=str(action.sentence),
            warning=every if off and of_all else "",
        )


class ModelPage(OverviewPage):
    """The page of one claimable model on one AdminSite, with its ModelAdmin where it has one."""

    model: type[models.Model]
    part = "page.html"
    views = {
        **OverviewPage.views,
        **dict.fromkeys(actions.WORKER_COMMANDS, ("command", "operate")),
        "settings": ("settings", "configure"),
        **{page: ("on_group", action.needs) for page, action in actions.GROUP_ACTIONS.items()},
        "known": ("on_group", "operate"),
        "export": ("export", ""),
    }

    def __init__(self, site: AdminSite, model: type[models.Model]) -> None:
        super().__init__(site)
        meta = model._meta
        self.model, self.label = model, meta.label
        self.model_admin = site._registry.get(model)
        #: The list of the model's admin, where that has our filters.
        self.list_url = ""
        if isinstance(self.model_admin, ClaimActions):
            self.list_url = self.model_admin.claim_address("changelist")
        self.name = str(meta.verbose_name_plural)
        self.title = _("%(name)s: control room") % {"name": capfirst(self.name)}
        #: The database whose rows the page shows.
        self.alias = router.db_for_write(model)
        self.url = self.address("taskclaim_control_changelist", meta.label_lower)
        self.crumbs = [*self.crumbs, Crumb(capfirst(self.name), self.url)]

    def rows(self, request: HttpRequest) -> ClaimQuerySet[Any]:
        """Return the rows that the user may see one by one; counts are of all of them."""
        of_admin = self.model_admin and self.model_admin.get_queryset(request)
        rows = models.QuerySet(self.model) if of_admin is None else of_admin
        return claims_of(rows.using(self.alias))

    # What it shows

    def line(self, known: snapshot.Snapshot) -> dict[str, Any]:
        """Return what the overview shows of the model."""
        seen, hour = known.seen, [slot.rate for slot in known.hour]
        state, note = snapshot.state_of(known), policy_for(self.model).completion.note
        return {
            "page": self,
            "state": state,
            "seen": seen,
            "is_late": known.is_late,
            # What sorts models, those in trouble first.
            "trouble": (snapshot.KINDS.index(state.kind), -seen.progress.failed if seen else 0),
            "segments": snapshot.segments(seen.progress) if seen else [],
            # What becomes of rows that are done where they cannot be counted: pages then show what is left.
            "outcome": _(note) if note else "",
            "list_url": self.list_url,
            "silent": len(seen.workers) - len(seen.living) if seen else 0,
            "hour": hour,
            "top": max(hour, default=0.0),
            "rate": snapshot.average_rate(known.hour[-6:-1]) if seen and seen.living else 0.0,
        }

    def facts(self, request: HttpRequest, form: forms.SettingsForm | None = None) -> dict[str, Any]:
        """Return what the templates show; None is what was not read, and the script keeps what it has of that."""
        rows = self.rows(request)
        span = snapshot.RANGES.get(request.GET.get("range", ""), HOUR)
        read = partial(snapshot.snapshot_of, self.model, self.alias, rows, span)
        sees_all = not (rows.query.where or rows.query.is_sliced or rows.query.combinator)
        # Errors of rows that this user may not see must not come from a snapshot of others.
        place = self.model, self.alias, span
        known = snapshot.shared(request, place, read) if sees_all else read()
        seen = known.seen
        stored = seen.switch.overrides if seen else {}
        paused = paused_model(seen.pause) if seen and seen.pause else None
        meta = self.model._meta
        return {
            **vars(known),
            **self.line(known),
            "overview_url": self.overview_url,
            # Of the model itself or its parent; None where nothing or everything is paused.
            "paused_page": paused and ModelPage(self.site, apps.get_model(paused)),
            "may_operate": self.may("operate", request),
            "may_delete": self.may("delete", request),
            "may_configure": self.may("configure", request),
            "has_control": is_on(self.alias),
            "has_handler": handler_for(self.model) is not None,
            "ranges_of_time": [(name, snapshot.RANGES[name] == span) for name in snapshot.RANGES],
            "sees_all": sees_all,
            "held": seen.progress.processing - seen.expired if seen else 0,
            "me": holder_of(request.user),
            "columns": claim_columns(self.model),
            "workers": snapshot.worker_lines(known, sees_all=sees_all),
            "change_url": f"{self.site.name}:{meta.app_label}_{meta.model_name}_change",
            "settings_form": form or forms.SettingsForm(self.model, stored=stored),
        }

    # What a person can do

    def warn(self, request: HttpRequest, text: Any) -> HttpResponseBase:
        """Return to the page, which shows the warning."""
        messages.warning(request, text)
        return redirect(self.url)

    def command(self, request: HttpRequest, page: str) -> HttpResponseBase:
        """Ask for confirmation, and then give one worker process the command to drain or to stop."""
        if not is_on(self.alias):
            raise Http404
        action, name = actions.WORKER_COMMANDS[page], request.GET.get("worker", "")
        listed = in_time(self.alias, partial(workers, self.alias))
        if listed is None:
            return self.warn(request, LATE)
        worker = next((one for one in listed if one.name == name), None)
        # A worker may serve models that this user may not operate on. To one that has left nothing is sent.
        allowed = worker is None or (
            worker.serves(self.model)
            and all(
                ModelPage(self.site, one).may("operate", request) for one in audit.models_of(worker)
            )
        )
        question = Question(request, forms.ReasonForm, allowed=allowed)
        if question.answer is not None:
            facts: dict[str, Any] = {"by": request.user, "using": self.alias, **question.answer}
            told = _("The worker process %(worker)s was %(done)s.")
            told %= {"worker": name, "done": action.done}
            return self.attempt(request, partial(audit.send_command, name, page, **facts), told)
        title = f"{capfirst(str(action.label))}: {name}"
        return self.ask(question, title=title, sentence=str(action.sentence))

    def settings(self, request: HttpRequest, page: str) -> HttpResponseBase:
        """Set the overrides that were changed, or show the form again with its errors."""
        form = forms.SettingsForm(self.model, request.POST)
        if not form.is_valid():
            return self.show(request, form=form)
        if not form.values:
            return self.warn(request, _("Nothing was changed."))
        reason = form.cleaned_data["reason"]
        do = partial(
            audit.change_overrides, self.model, form.values, by=request.user, reason=reason
        )
        return self.attempt(request, do, _("Workers follow within a few seconds."))

    def on_group(self, request: HttpRequest, page: str) -> HttpResponseBase:
        """Find the group of failures that the address names, and show the page that asks what to do with it."""
        read = partial(failures.sample, self.rows(request), as_utc(timezone.now()))
        failed, wanted = in_time(self.alias, read), request.GET.get("group", "")
        for group in failed.groups if failed is not None else ():
            if group.id == wanted:
                do = self.mark_known if page == "known" else self.act_on_group
                return do(request, page, group)
        return self.warn(request, NO_GROUP)

    def act_on_group(self, request: HttpRequest, page: str, group: Group) -> HttpResponseBase:
        """Ask for confirmation, and then reset or delete failed rows of the group: all, or the ten that failed last."""
        rows, action = self.rows(request), actions.GROUP_ACTIONS[page]
        latest = json.dumps([str(failure.key) for failure in group.failures[: forms.FIRST]])

        def retry_form(data: Any, *, initial: dict[str, str]) -> forms.RetryForm:
            return forms.RetryForm(data, initial={**initial, "latest": latest})

        form: Any = retry_form
        title, warning = _("Retry the failed rows of this group"), ""
        if action is actions.DELETE:
            form, title = forms.ReasonForm, _("Delete the failed rows of this group")
            warning = _("All failed rows of this group are deleted.")
        question = Question(request, form, allowed=True)
        if (answer := question.answer) is not None:
            keys = failures.keys_like(rows, group)
            if answer.get("first"):
                found = [failure.key for failure in group.failures]
                keys = iter([[key for key in found if json.dumps(str(key)) in answer["latest"]]])
            is_over = run_action(
                request,
                action,
                rows,
                model_admin=self.model_admin,
                keys=keys,
                reason=" – ".join(filter(None, [group.kind, answer["reason"]])),
            )
            # If the time was up, the page asks again, for the rest.
            return redirect(self.url if is_over else request.get_full_path())
        sentence, facts = str(action.sentence), [group.about]
        return self.ask(question, title=title, sentence=sentence, warning=warning, facts=facts)

    def mark_known(self, request: HttpRequest, page: str, group: Group) -> HttpResponseBase:
        """Ask for a note, and then show it beside a group of failures; an empty one takes it away."""
        if not is_on(self.alias):
            raise Http404
        question = Question(request, forms.ReasonForm, allowed=True)
        if (answer := question.answer) is not None:
            facts: dict[str, Any] = {"by": request.user, "key": group.id, "name": group.kind}
            facts |= {"using": self.alias, **answer}
            mark = partial(audit.record_action, self.model, "mark as known", **facts)
            gone, stands = _("The note is gone."), _("The note stands beside the group.")
            return self.attempt(request, mark, stands if answer["reason"] else gone)
        sentence = _("The reason stands beside the group as a note. Without a reason it goes away.")
        title = _("Mark the failures of this group as known")
        return self.ask(question, title=title, sentence=sentence, facts=[group.about])

    def export(self, request: HttpRequest, page: str) -> HttpResponseBase:
        """Answer with the latest failed rows as CSV, all or those of a group, and record that somebody has them."""
        group, kind, note = request.POST.get("group", ""), "", ""
        read = partial(latest_failures, self.rows(request), failures.EXPORTED + 1)
        found = in_time(self.alias, read, failures.READING_LIMIT)
        if found is None:
            return self.warn(request, LATE)
        if len(found) > failures.EXPORTED:
            note = _("Only the last %(rows)s failed rows were read.") % {"rows": failures.EXPORTED}
            found = found[: failures.EXPORTED]
        if group:
            found = [row for row in found if failures.group_of(row) == group]
            if not found:
                return self.warn(request, NO_GROUP)
            kind = Group(found[0].error, failures.normalised(found[0].text)).kind
        facts: dict[str, Any] = {"reason": kind, "using": self.alias, "by": request.user}
        audit.record_action(self.model, "export", rows=len(found), **facts)
        text = failures.as_csv(found, note=note)
        response = HttpResponse(text, content_type="text/csv; charset=utf-8")
        name = "-".join(filter(None, [self.model._meta.model_name, "failures", group])) + ".csv"
        response["Content-Disposition"] = f'attachment; filename="{name}"'
        return response
