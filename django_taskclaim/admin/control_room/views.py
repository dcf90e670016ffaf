"""What the pages answer: those of one model, and the overview of all. GET shows; what changes something is a POST."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import django
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import Error
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseRedirect,
    StreamingHttpResponse,
)
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_GET, require_http_methods

from django_taskclaim import conf
from django_taskclaim.admin.confirming import Crumb, confirm, in_no_transaction
from django_taskclaim.admin.control_room.charts import charts, strip_parts
from django_taskclaim.admin.control_room.failures import GROUPS, Group, Sample, exported, keys_like
from django_taskclaim.admin.control_room.forms import PauseForm, ReasonForm, SettingsForm
from django_taskclaim.admin.control_room.page import Page, address, overview_url
from django_taskclaim.admin.control_room.progress import bar_of
from django_taskclaim.admin.control_room.snapshot import (
    DAY,
    HOUR,
    Snapshot,
    snapshot_of,
    summaries_of,
    workers_of,
)
from django_taskclaim.admin.control_room.state import state_of
from django_taskclaim.admin.control_room.workers import lines
from django_taskclaim.admin.localized import number
from django_taskclaim.admin.permissions import may_operate
from django_taskclaim.admin.running import Rows, claims_of, run_action
from django_taskclaim.admin.switching import ask_to_turn, turn_with_message
from django_taskclaim.control.actions import RESET_FAILED, WORKER_ACTIONS, WorkerAction
from django_taskclaim.control.commands import models_of, send_command
from django_taskclaim.control.installed import is_on
from django_taskclaim.control.switch_changes import change_overrides
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import first_line
from django_taskclaim.models import WorkerProcess
from django_taskclaim.monitoring.overview import Worker

View = Callable[..., HttpResponseBase]

TEMPLATES = "admin/taskclaim/control_room"

LATE = gettext_lazy("Nothing was changed: the database did not answer in time.")

#: Milliseconds between two refreshes.
EVERY = 2500

#: So many rows of a group of failures are tried first.
FIRST = 10

#: Of a page that asks: a GET shows the question, a POST answers it.
require_question = require_http_methods(["GET", "HEAD", "POST"])

#: Parts of the page that say so while they were never read.
UNKNOWABLE = {"workers": "overview", "failed": "failed", "acts": "acts"}


def urls_of(page: Page, base: str) -> list[URLPattern]:
    """Return the patterns of the model's pages below *base*."""
    views = PageViews(page)

    def only_post(view: View) -> View:
        """Send a GET to the page: the login form leads here when a form was sent after the session ended."""

        def answer(request: HttpRequest, **kwargs: object) -> HttpResponseBase:
            if request.method in {"GET", "HEAD"}:
                return redirect(page.url())
            return view(request, **kwargs)

        return require_question(answer)

    def at(route: str, view: View, name: str = "", method: Any = require_GET) -> URLPattern:
        # A page that looks is left out of transactions, too: on SQLite each would keep every writer waiting.
        wrapped: View = page.site.admin_view(in_no_transaction(method(view)))
        return path(f"{base}{route}", wrapped, name=page.url_name(name))

    return [
        at("", views.show),
        at("live/", views.live, "live"),
        at("switch/", views.switch, "switch", only_post),
        at("commands/", views.command, "commands", require_question),
        at("settings/", views.settings, "settings", only_post),
        at("failures.csv", views.export, "export"),
        at("failures/<slug:group>.csv", views.export, "export"),
        at("failures/<slug:group>/first/", views.first, "first", only_post),
        at("failures/<slug:group>/retry/", views.retry, "retry", require_question),
    ]


def _response(
    request: HttpRequest,
    site: AdminSite,
    template: str,
    title: str,
    crumbs: list[Crumb],
    **facts: Any,
) -> TemplateResponse:
    """Answer with a whole page, or with the part of it that its script refreshes."""
    request.current_app = site.name
    context = {
        **({} if template.endswith("live.html") else site.each_context(request)),
        "crumbs": crumbs,
        "crumbs_are_listed": django.VERSION >= (6, 1),
        "title": title,
        "every": EVERY,
        **facts,
    }
    return TemplateResponse(request, f"{TEMPLATES}/{template}", context)


def _crumbs_of(page: Page, *more: Crumb) -> list[Crumb]:
    """Return the way from the index to the page, and on to *more*."""
    here = _("Control room")
    list_url = page.list_url()
    way = [Crumb(page.name, list_url)] if list_url else [Crumb(here, overview_url(page.site))]
    own = here if list_url else page.name
    return [*way, Crumb(own, page.url() if more else ""), *more]


class Overview:
    """The overview of all models of one AdminSite that the user may see, and the switch that stops everything."""

    def __init__(self, site: AdminSite, pages: Sequence[Page]) -> None:
        self.site = site
        self.pages = pages

    def urls(self) -> list[URLPattern]:
        """Return the patterns beside the overview itself, which is the changelist of ``Control``."""
        views = {
            "live": require_GET(self.live),
            "pause": require_question(self.pause),
            "resume": require_question(self.resume),
        }
        return [
            path(
                f"{name}/",
                self.site.admin_view(in_no_transaction(view)),
                name=f"taskclaim_control_{name}",
            )
            for name, view in views.items()
        ]

    def open_to(self, request: HttpRequest) -> list[Page]:
        """Return the pages that the user may see."""
        return [page for page in self.pages if page.may_view(request)]

    def show(self, request: HttpRequest) -> HttpResponse:
        """Answer with the whole page."""
        return self._answer(request, "overview.html")

    def live(self, request: HttpRequest) -> HttpResponse:
        """Answer with the part of it that changes."""
        return self._answer(request, "overview_live.html", share=True)

    def _answer(self, request: HttpRequest, template: str, *, share: bool = False) -> HttpResponse:
        pages = self.open_to(request)
        if not pages:
            raise PermissionDenied
        known = {
            alias: summaries_of(
                alias, [page.model for page in pages if page.alias == alias], share=share
            )
            for alias in {page.alias for page in pages}
        }
        models = [_summary(page, known[page.alias]) for page in pages]
        late = [one.late_since for one in known.values() if one.late_since is not None]
        title = _("Control room")
        return _response(
            request,
            self.site,
            template,
            title,
            [Crumb(title)],
            url={
                name: address(self.site, f"taskclaim_control_{name}")
                for name in ("live", "pause", "resume")
            },
            models=models,
            may_operate_all=may_operate(request, None),
            all_are_paused=any(one["state"].all_are_paused for one in models),
            as_of=min(one.as_of for one in known.values()),
            late_since=min(late, default=None),
        )

    def pause(self, request: HttpRequest) -> HttpResponseBase:
        """Ask, and then stop the claims of every model, on every database."""
        return self._ask(request, off=True)

    def resume(self, request: HttpRequest) -> HttpResponseBase:
        """Ask, and then let claims flow again; models that were paused by name stay so."""
        return self._ask(request, off=False)

    def _ask(self, request: HttpRequest, *, off: bool) -> HttpResponseBase:
        return ask_to_turn(
            request,
            None,
            off=off,
            allowed=may_operate(request, None),
            back=overview_url(self.site),
            crumbs=[Crumb(_("Control room"), overview_url(self.site))],
            site=self.site,
        )


def _summary(page: Page, known: Snapshot) -> dict[str, Any]:
    seen = known.get(page.label)
    return {
        "page": page,
        "state": state_of(seen),
        "bar": bar_of(seen),
        "silent": len(seen.workers) - len(seen.living) if seen else 0,
    }


def _command_message(worker: str, put_back: int | None) -> str:
    """Say what came of a command. No sentence begins with the name: the admin would capitalise it."""
    if put_back is None:
        return _("The worker process %(worker)s has been told.") % {"worker": worker}
    return ngettext(
        "Of the silent worker process %(worker)s, %(n)s row was put back.",
        "Of the silent worker process %(worker)s, %(n)s rows were put back.",
        put_back,
    ) % {"worker": worker, "n": number(put_back)}


class PageViews:
    """The page of one model, and what a person can do there."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def show(self, request: HttpRequest, form: SettingsForm | None = None) -> TemplateResponse:
        """Answer with the whole page."""
        return self._answer(request, "page.html", form)

    def live(self, request: HttpRequest) -> TemplateResponse:
        """Answer with what the page's script puts in place of what it has."""
        return self._answer(request, "live.html", share=True)

    def _answer(
        self,
        request: HttpRequest,
        template: str,
        form: SettingsForm | None = None,
        *,
        share: bool = False,
    ) -> TemplateResponse:
        page = self.page
        if not page.may_view(request):
            raise PermissionDenied
        known = self._snapshot(request, share=share)
        seen, strip, failed = known.get("overview"), known.get("strip"), known.get("failed")
        # Without a living worker that may claim, what was done before foretells nothing.
        goes_on = seen is not None and seen.pause is None and seen.living
        past = (known.get("hour") or [], known.get("day") or []) if goes_on else ()
        now = seen.now if seen else timezone.now()
        slots = known.get("hour"), known.get("day")
        has_control = is_on(page.alias)
        return _response(
            request,
            page.site,
            template,
            _("%(name)s: control room") % {"name": page.name},
            _crumbs_of(page),
            page=page,
            url={
                name: page.url(name)
                for name in ("live", "switch", "commands", "settings", "export")
            },
            overview_url=overview_url(page.site),
            as_of=known.as_of,
            late_since=known.late_since,
            may_operate=page.may_operate(request),
            may_configure=page.may_configure(request),
            has_control=has_control,
            # What was never read is not shown as none.
            unknown={part for part, name in UNKNOWABLE.items() if known.get(name) is None},
            state=state_of(seen),
            pause_form=PauseForm(auto_id="tc-pause-%s"),
            bar=bar_of(seen, *past),
            strip=strip,
            strip_parts=strip_parts(strip.states) if strip else [],
            charts=charts(*slots, known.get("marks") or [], now) if has_control else [],
            workers=lines(
                seen,
                known.get("commands") or {},
                known.get("rates"),
                sees_all=page.shows_all(request),
            ),
            findings=known.get("findings") or [],
            failed=failed,
            failures=[self._failure(group) for group in failed.groups[:GROUPS]] if failed else [],
            hour_is_whole=failed and failed.covers(HOUR),
            day_is_whole=failed and failed.covers(DAY),
            settings_form=form or self._settings_form(seen),
            switch_row=seen.switch if seen else None,
            acts=known.get("acts") or [],
        )

    def _snapshot(self, request: HttpRequest, *, share: bool = False) -> Snapshot:
        page = self.page
        rows = page.rows(request)
        return snapshot_of(page.model, page.alias, rows, page.viewer(request), share=share)

    def _settings_form(self, seen: Any) -> SettingsForm:
        switch = seen.switch if seen else None
        return SettingsForm(self.page.model, stored=switch.overrides if switch else {})

    def _failure(self, group: Group) -> dict[str, Any]:
        urls = {name: self.page.url(name, group=group.id) for name in ("retry", "first", "export")}
        samples = [(row.name, self.page.row_url(row.key)) for row in group.samples]
        return {"group": group, "samples": samples, "url": urls, "has_more": group.all > FIRST}

    # What a person can do

    def _require(self, allowed: bool) -> None:
        if not allowed:
            raise PermissionDenied

    def _back(self) -> HttpResponseRedirect:
        return redirect(self.page.url())

    def switch(self, request: HttpRequest) -> HttpResponse:
        """Turn the model's switch; running rows finish, so nobody is asked twice."""
        self._require(self.page.may_operate(request))
        off, form = request.POST.get("turn") == "off", PauseForm(request.POST)
        if request.POST.get("turn") not in {"on", "off"} or not form.is_valid():
            messages.error(request, _("Nothing was changed: the form was not complete."))
            return self._back()
        turn_with_message(request, self.page.model, off=off, **form.cleaned_data)
        return self._back()

    def command(self, request: HttpRequest) -> HttpResponseBase:
        """Ask, and then tell one worker process to drain, stop or release."""
        self._require(self.page.may_operate(request))
        name = request.GET.get("worker", "")
        action = WORKER_ACTIONS.get(request.GET.get("command", ""))
        if action is None or not is_on(self.page.alias):
            raise Http404
        known = workers_of(self.page.alias)
        if known is None:
            messages.error(request, LATE)
            return self._back()
        worker = next((one for one in known if one.name == name), None)
        if worker is None:
            gone = _("Nothing was changed: no worker is listed as %(name)s any more.")
            messages.warning(request, gone % {"name": name})
            return self._back()

        title = str(action.title) % {"worker": worker.name}

        def run(answer: Mapping[str, Any]) -> HttpResponse:
            self._send(request, worker.name, action, answer["reason"])
            return self._back()

        return confirm(
            request,
            allowed=self._may_command(request, worker),
            title=title,
            sentence=str(action.sentence),
            fields=ReasonForm,
            button=title,
            danger=action.danger,
            run=run,
            back=self.page.url(),
            crumbs=_crumbs_of(self.page, Crumb(worker.name)),
            site=self.page.site,
        )

    def _may_command(self, request: HttpRequest, worker: Worker) -> bool:
        """Say whether the worker has to do with this model, and with none that the user may not operate on."""
        return worker.serves(self.page.model) and all(
            self.page.beside(model).may_operate(request) for model in models_of(worker)
        )

    def _send(self, request: HttpRequest, worker: str, action: WorkerAction, reason: str) -> None:
        facts: dict[str, Any] = {"by": str(request.user), "user": request.user}
        try:
            sent = send_command(worker, action.name, using=self.page.alias, reason=reason, **facts)
        except (ValidationError, WorkerProcess.DoesNotExist) as error:
            messages.error(request, " ".join(getattr(error, "messages", [str(error)])))
        except (Error, TaskClaimError) as error:
            messages.error(request, first_line(error))
        else:
            messages.success(request, _command_message(worker, sent.put_back))

    def settings(self, request: HttpRequest) -> HttpResponseBase:
        """Set the overrides that were changed, or show the form again with what is wrong."""
        self._require(self.page.may_configure(request))
        form = SettingsForm(self.page.model, request.POST)
        if form.is_valid() and self._change(request, form):
            messages.success(request, _("Workers follow within a few seconds."))
            return self._back()
        return self.show(request, form)

    def _change(self, request: HttpRequest, form: SettingsForm) -> bool:
        facts = {"by": str(request.user), "reason": form.cleaned_data["reason"]}
        try:
            if form.values:
                change_overrides(self.page.model, form.values, user=request.user, **facts)
        except ValueError as error:
            form.add_error("lease", str(error))
        except (Error, TaskClaimError) as error:
            form.add_error(None, first_line(error))
        return not form.errors

    def first(self, request: HttpRequest, group: str) -> HttpResponse:
        """Reset the ten rows of the group that failed last, to see whether the cause is mended."""
        self._require(self.page.may_operate(request))
        return self._retry(request, group, lambda rows, found: [found.keys(FIRST)])

    def retry(self, request: HttpRequest, group: str) -> HttpResponseBase:
        """Ask, and then reset every failed row of the group."""
        size = int(conf.setting("CHUNK_SIZE"))
        return confirm(
            request,
            allowed=self.page.may_operate(request),
            title=_("Retry all failed rows of this group"),
            sentence=_(
                "Every failed row of %(name)s that failed like this is opened again, with all its tries."
            )
            % {"name": self.page.name},
            facts=lambda: self._facts(request, group),
            fields=ReasonForm,
            run=lambda answer: self._retry(
                request, group, lambda rows, found: keys_like(rows, found, size), answer["reason"]
            ),
            back=self.page.url(),
            crumbs=_crumbs_of(self.page, Crumb(_("Retry"))),
            site=self.page.site,
        )

    def _failures(self, request: HttpRequest) -> Sample | None:
        found: Sample | None = self._snapshot(request, share=True).get("failed")
        return found

    def _facts(self, request: HttpRequest, group: str) -> list[str]:
        """Tell which group that is, as far as it is known in time."""
        found = self._failures(request)
        more = "+" if found is not None and found.capped else ""
        return [
            f"{number(one.all)}{more} × {one.error}: {one.message}"
            for one in (found.groups if found else [])
            if one.id == group
        ]

    def _retry(
        self,
        request: HttpRequest,
        group: str,
        keys_of: Callable[[Rows, Group], Iterable[list[Any]]],
        why: str = "",
    ) -> HttpResponse:
        """Reset rows of the group; where the time was up, the page to press again follows."""
        sample = self._failures(request)
        if sample is None:
            messages.error(request, LATE)
            return self._back()
        found = next((one for one in sample.groups if one.id == group), None)
        if found is None:
            messages.warning(request, _("Nothing was changed: no row has failed like this lately."))
            return self._back()
        rows = claims_of(self.page.rows(request))
        which = ", ".join(filter(None, [found.error, _("group %(group)s") % {"group": group}]))
        result = run_action(
            request,
            RESET_FAILED,
            rows,
            model_admin=self.page.model_admin,
            keys=keys_of(rows, found),
            recorded=" – ".join(filter(None, [which, why])),
        )
        return self._back() if result.is_over else redirect(request.get_full_path())

    def export(self, request: HttpRequest, group: str = "") -> HttpResponseBase:
        """Stream the failed rows as CSV."""
        self._require(self.page.may_view(request))
        lines = exported(self.page.rows(request), group)
        response = StreamingHttpResponse(lines, content_type="text/csv; charset=utf-8")
        name = f"{self.page.model._meta.model_name}-failures.csv"
        response["Content-Disposition"] = f'attachment; filename="{name}"'
        return response
