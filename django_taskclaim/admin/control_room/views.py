"""The page of one model: where it is, who may do what there, and what it answers. A GET only shows; a POST acts."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import django
from asgiref.sync import sync_to_async
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied, ValidationError
from django.core.handlers.asgi import ASGIRequest
from django.db import Error, models, router
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
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_taskclaim import conf
from django_taskclaim.admin.actions import claims_of, run_action
from django_taskclaim.admin.confirming import Crumb, ask_to_turn, confirm
from django_taskclaim.admin.control_room.charts import chart
from django_taskclaim.admin.control_room.failures import (
    GROUPS,
    Group,
    exported,
    keys_like,
    name_of,
    sample,
)
from django_taskclaim.admin.control_room.forms import FIRST, ReasonForm, RetryForm, SettingsForm
from django_taskclaim.admin.control_room.snapshot import (
    Snapshot,
    forecast,
    in_time,
    outcome,
    segments,
    shared,
    snapshot_of,
    state_of,
    worker_lines,
)
from django_taskclaim.admin.permissions import Admin, may_configure, may_operate, may_view
from django_taskclaim.connecting import in_no_transaction
from django_taskclaim.control.actions import RESET_FAILED, WORKER_COMMANDS, Instruction
from django_taskclaim.control.audit import change_overrides, record_action
from django_taskclaim.control.commands import models_of, send_command
from django_taskclaim.control.models import WorkerCommand, is_on
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import first_line
from django_taskclaim.models import WorkerProcess
from django_taskclaim.monitoring.overview import database_time
from django_taskclaim.templatetags.taskclaim_admin import number

TEMPLATES = "admin/taskclaim/control_room"

#: Milliseconds between two refreshes.
EVERY = 2500

#: Where a view is below its page, and what ends its name.
Routes: TypeAlias = list[tuple[str, Callable[..., HttpResponseBase], str]]


def address(site: AdminSite, name: str, *args: str) -> str:
    """Return the address of a page of the site; empty where it has none."""
    try:
        return reverse(f"{site.name}:{name}", args=args)
    except NoReverseMatch:
        return ""


def overview_url(site: AdminSite) -> str:
    """Return the address of the overview; empty on a site that has none."""
    return address(site, "taskclaim_control_changelist")


def site_paths(site: AdminSite, base: str, name: str, routes: Routes) -> list[URLPattern]:
    """Return the patterns of views below *base* for the staff of the site; their names begin with *name*."""
    # Pages that only read are outside transactions, too: on SQLite a transaction makes every writer wait.
    return [
        path(
            f"{base}{route}",
            site.admin_view(in_no_transaction(partial(view))),
            name="_".join(filter(None, [name, suffix])),
        )
        for route, view, suffix in routes
    ]


def page_response(
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


class Page:
    """The page of one claimable model on one AdminSite, with its ModelAdmin where it has one."""

    def __init__(self, model: type[models.Model], site: AdminSite, model_admin: Admin) -> None:
        self.model = model
        self.site = site
        self.model_admin = model_admin

    @property
    def alias(self) -> str:
        """The database whose rows the page shows."""
        return router.db_for_write(self.model)

    @property
    def name(self) -> str:
        """The plural of what the rows are called."""
        return str(capfirst(str(self.model._meta.verbose_name_plural)))

    @property
    def label(self) -> str:
        return self.model._meta.label

    def url_name(self, page: str = "") -> str:
        """Return the name of one of the pages without the site's namespace."""
        meta = self.model._meta
        return f"{meta.app_label}_{meta.model_name}_control{'_' if page else ''}{page}"

    def url(self, page: str = "", **kwargs: object) -> str:
        return reverse(f"{self.site.name}:{self.url_name(page)}", kwargs=kwargs)

    def may_view(self, request: HttpRequest) -> bool:
        return may_view(request, self.model, model_admin=self.model_admin)

    def may_operate(self, request: HttpRequest) -> bool:
        return may_operate(request, self.model, model_admin=self.model_admin)

    def may_configure(self, request: HttpRequest) -> bool:
        return may_configure(request, self.model, model_admin=self.model_admin)

    def rows(self, request: HttpRequest) -> "models.QuerySet[Any]":
        """Return the rows that the user may see one by one; counts are of all of them."""
        if self.model_admin is not None:
            return self.model_admin.get_queryset(request).using(self.alias)
        return models.QuerySet(self.model, using=self.alias)

    def shows_all(self, request: HttpRequest) -> bool:
        """Say whether the user may see every row there is."""
        query = self.rows(request).query
        return not (query.where or query.is_sliced or query.combinator)

    def admin_url(self, page: str, *args: str) -> str:
        """Return the address of a page of the model's admin; empty where it has none."""
        meta = self.model._meta
        return address(self.site, f"{meta.app_label}_{meta.model_name}_{page}", *args)

    def urls(self, base: str) -> list[URLPattern]:
        """Return the patterns of the model's pages below *base*."""
        routes: Routes = [
            ("", self.show, ""),
            ("live/", self.live, "live"),
            ("pause/", partial(self.turn, off=True), "pause"),
            ("resume/", partial(self.turn, off=False), "resume"),
            ("commands/", self.command, "commands"),
            ("settings/", self.settings, "settings"),
            ("failures.csv", self.export, "export"),
            ("failures/<slug:group>.csv", self.export, "export"),
            ("failures/<slug:group>/retry/", self.retry, "retry"),
        ]
        return site_paths(self.site, base, self.url_name(), routes)

    def _crumbs(self) -> list[Crumb]:
        """Return the way from the index to the page."""
        here, list_url = _("Control room"), self.admin_url("changelist")
        if list_url:
            return [Crumb(self.name, list_url), Crumb(here, self.url())]
        return [Crumb(here, overview_url(self.site)), Crumb(self.name, self.url())]

    # What it shows

    def show(self, request: HttpRequest, form: SettingsForm | None = None) -> TemplateResponse:
        """Answer with the whole page."""
        return self._answer(request, "page.html", form)

    def live(self, request: HttpRequest) -> TemplateResponse:
        """Answer with the part of the page that its script replaces."""
        return self._answer(request, "live.html")

    def _answer(
        self, request: HttpRequest, template: str, form: SettingsForm | None = None
    ) -> TemplateResponse:
        if not self.may_view(request):
            raise PermissionDenied
        read = partial(snapshot_of, self.model, self.alias, self.rows(request))
        sees_all = self.shows_all(request)
        # Errors of rows that this user may not see must not come from a snapshot of others.
        known = shared(request, (self.model, self.alias), read) if sees_all else read()
        return page_response(
            request,
            self.site,
            template,
            _("%(name)s: control room") % {"name": self.name},
            self._crumbs(),
            page=self,
            here=self.url(),
            overview_url=overview_url(self.site),
            may_operate=self.may_operate(request),
            may_configure=self.may_configure(request),
            has_control=is_on(self.alias),
            **self._shown(known, form, sees_all=sees_all),
        )

    def _shown(
        self, known: Snapshot, form: SettingsForm | None, *, sees_all: bool
    ) -> dict[str, Any]:
        """Return what the templates show; None is what was not read, and the script keeps what it has of that."""
        seen = known.seen
        stored = seen.switch.overrides if seen and seen.switch else {}
        groups = known.failed.groups[:GROUPS] if known.failed else []
        return {
            **vars(known),
            "state": state_of(seen),
            "segments": segments(seen.progress) if seen else [],
            "outcome": outcome(self.model),
            "forecast": forecast(seen, known.hour or [], known.day or []),
            "charts": [
                (name, title, slots is None, chart(slots or [], known.marks))
                for name, title, slots in (
                    ("hour", _("Last hour"), known.hour),
                    ("day", _("Last 24 hours"), known.day),
                )
            ],
            "workers": worker_lines(known, sees_all=sees_all),
            "failures": [
                (
                    group,
                    [
                        (name_of(row), self.admin_url("change", quote(row.key)))
                        for row in group.samples
                    ],
                )
                for group in groups
            ],
            "settings_form": form or SettingsForm(self.model, stored=stored),
        }

    # What a person can do

    def _back(self) -> HttpResponseRedirect:
        return redirect(self.url())

    def turn(self, request: HttpRequest, *, off: bool) -> HttpResponseBase:
        """Ask for confirmation, and then pause or resume claims of the model."""
        return ask_to_turn(
            request,
            self.model,
            off=off,
            allowed=self.may_operate(request),
            back=self.url() if self.may_view(request) else self.admin_url("changelist"),
            crumbs=self._crumbs(),
            site=self.site,
        )

    def command(self, request: HttpRequest) -> HttpResponseBase:
        """Ask for confirmation, and then give one worker process the command to drain, stop or release."""
        if not self.may_operate(request):
            raise PermissionDenied
        action = WORKER_COMMANDS.get(request.GET.get("command", ""))
        if action is None or not is_on(self.alias):
            raise Http404
        name = request.GET.get("worker", "")
        worker = WorkerProcess.objects.using(self.alias).filter(name=name).first()
        if worker is None:
            gone = _("Nothing was changed: no worker is listed as %(name)s any more.")
            messages.warning(request, gone % {"name": name})
            return self._back()
        title = f"{capfirst(str(action.label))}: {worker.name}"

        def run(answer: Mapping[str, Any]) -> HttpResponse:
            self._send(request, worker.name, action, answer["reason"])
            return self._back()

        return confirm(
            request,
            allowed=self._may_command(request, worker),
            title=title,
            sentence=str(action.sentence),
            form=ReasonForm,
            danger=action.danger,
            run=run,
            back=self.url(),
            crumbs=self._crumbs(),
            site=self.site,
        )

    def _may_command(self, request: HttpRequest, worker: WorkerProcess) -> bool:
        """Say whether the worker serves this model, and no model that the user may not operate on."""
        admins: dict[Any, Any] = self.site._registry
        return worker.serves(self.model) and all(
            may_operate(request, one, model_admin=admins.get(one)) for one in models_of(worker)
        )

    def _send(self, request: HttpRequest, worker: str, action: Instruction, reason: str) -> None:
        facts: dict[str, Any] = {"by": str(request.user), "user": request.user}
        try:
            sent = send_command(worker, action.name, using=self.alias, reason=reason, **facts)
        except (ValidationError, WorkerProcess.DoesNotExist) as error:
            messages.error(request, " ".join(getattr(error, "messages", [str(error)])))
        except (Error, TaskClaimError) as error:
            messages.error(request, first_line(error))
        else:
            tell = messages.error if sent.refused else messages.success
            tell(request, "; ".join([_command_message(sent), *sent.refused]))

    def settings(self, request: HttpRequest) -> HttpResponseBase:
        """Set the overrides that were changed, or show the form again with its errors."""
        if not self.may_configure(request):
            raise PermissionDenied
        if request.method != "POST":
            # The login form leads here when a form was sent after the session had ended.
            return self._back()
        form = SettingsForm(self.model, request.POST)
        if form.is_valid() and self._change(request, form):
            messages.success(request, _("Workers follow within a few seconds."))
            return self._back()
        return self.show(request, form)

    def _change(self, request: HttpRequest, form: SettingsForm) -> bool:
        facts = {"by": str(request.user), "reason": form.cleaned_data["reason"]}
        try:
            if form.values:
                change_overrides(self.model, form.values, user=request.user, **facts)
        except ValueError as error:
            form.add_error("lease", str(error))
        except (Error, TaskClaimError) as error:
            form.add_error(None, first_line(error))
        return not form.errors

    def retry(self, request: HttpRequest, group: str) -> HttpResponseBase:
        """Ask for confirmation, and then reset failed rows of the group: all, or the ten that failed last."""
        if not self.may_operate(request):
            raise PermissionDenied
        rows = self.rows(request)
        failed = in_time(self.alias, lambda: sample(rows, database_time(self.alias)))
        if failed is None:
            late = _("Nothing was changed: the database did not answer in time.")
            messages.error(request, late)
            return self._back()
        found = next((one for one in failed.groups if one.id == group), None)
        if found is None:
            messages.warning(request, _("Nothing was changed: no row has failed like this lately."))
            return self._back()
        more = "+" if failed.capped else ""
        return confirm(
            request,
            allowed=True,
            title=_("Retry the failed rows of this group"),
            sentence=_(
                "Every failed row of %(name)s that failed like this is opened again, with all its tries."
            )
            % {"name": self.name},
            facts=[f"{number(found.all)}{more} × {found.kind}"],
            form=RetryForm,
            run=lambda answer: self._retry(request, found, answer),
            back=self.url(),
            crumbs=self._crumbs(),
            site=self.site,
        )

    def _retry(self, request: HttpRequest, group: Group, answer: Mapping[str, Any]) -> HttpResponse:
        """Reset rows of the group; if the time was up, answer with the page that offers the rest."""
        rows = claims_of(self.rows(request))
        keys: Iterable[list[Any]] = keys_like(rows, group, int(conf.setting("CHUNK_SIZE")))
        if answer["first"]:
            keys = [[failure.key for failure in group.failures[:FIRST]]]
        name = _("group %(group)s") % {"group": group.id}
        which = ", ".join(filter(None, [group.error, name]))
        is_over = run_action(
            request,
            RESET_FAILED,
            rows,
            model_admin=self.model_admin,
            keys=keys,
            reason=" – ".join(filter(None, [which, answer["reason"]])),
        )
        return self._back() if is_over else redirect(request.get_full_path())

    def export(self, request: HttpRequest, group: str = "") -> HttpResponseBase:
        """Stream the failed rows as CSV, and record that somebody has them."""
        if not self.may_view(request):
            raise PermissionDenied
        who: dict[str, Any] = {"by": str(request.user), "user": request.user}
        record_action(self.model, "export", reason=group, using=self.alias, **who)
        lines = exported(self.rows(request), group)
        # Django reads what is not asynchronous whole before an ASGI server sends it.
        sent = _asynchronous(lines) if isinstance(request, ASGIRequest) else lines
        response = StreamingHttpResponse(sent, content_type="text/csv; charset=utf-8")
        name = "-".join(filter(None, [self.model._meta.model_name, "failures", group])) + ".csv"
        response["Content-Disposition"] = f'attachment; filename="{name}"'
        return response


async def _asynchronous(parts: Iterator[str]) -> AsyncIterator[str]:
    following = sync_to_async(lambda: next(parts, None))
    while (part := await following()) is not None:
        yield part


def _command_message(sent: WorkerCommand) -> str:
    """Say what the command did. No sentence begins with the name: the admin would capitalise it."""
    if sent.put_back is None:
        return _("The worker process %(worker)s has been told.") % {"worker": sent.worker}
    return ngettext(
        "Of the silent worker process %(worker)s, %(n)s row was put back.",
        "Of the silent worker process %(worker)s, %(n)s rows were put back.",
        sent.put_back,
    ) % {"worker": sent.worker, "n": number(sent.put_back)}
