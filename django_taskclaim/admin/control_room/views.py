"""What the pages of one model answer. GET shows; what changes something is a POST with CSRF."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django.contrib import messages
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
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_GET

from django_taskclaim import conf
from django_taskclaim.admin.confirming import Crumb, confirm, in_no_transaction
from django_taskclaim.admin.control_room import words
from django_taskclaim.admin.control_room.asking import Asking
from django_taskclaim.admin.control_room.export import exported
from django_taskclaim.admin.control_room.failures import Group, Sample, keys_like
from django_taskclaim.admin.control_room.figures import ask_failures
from django_taskclaim.admin.control_room.forms import PauseForm, ReasonForm, SettingsForm
from django_taskclaim.admin.control_room.pages import (
    TEMPLATES,
    crumbs_context,
    overview_url,
    require_question,
)
from django_taskclaim.admin.control_room.rooms import Room
from django_taskclaim.admin.control_room.showing import FIRST, shown
from django_taskclaim.admin.running import Rows, claims_of, run_action
from django_taskclaim.admin.switching import turn_with_message
from django_taskclaim.control.actions import RESET_FAILED
from django_taskclaim.control.installed import is_on
from django_taskclaim.control.orders import models_of, order
from django_taskclaim.control.switch_changes import change_overrides
from django_taskclaim.exceptions import TaskClaimError
from django_taskclaim.formatting import first_line
from django_taskclaim.models import WorkerProcess
from django_taskclaim.monitoring.overview import Worker, workers

View = Callable[..., HttpResponseBase]

#: Of each order the title of the page that asks, what it says, and whether something running is touched.
_ORDERS = {
    "drain": (
        gettext_lazy("Drain %(worker)s"),
        gettext_lazy("It finishes the rows that it holds, claims no more, and leaves."),
        False,
    ),
    "stop": (
        gettext_lazy("Stop %(worker)s"),
        gettext_lazy(
            "It gives back what it has not started; running rows get the grace period, then it leaves."
        ),
        True,
    ),
    "release": (
        gettext_lazy("Release the rows of %(worker)s"),
        gettext_lazy(
            "A living worker gives back what it has not started, and goes on. Of a silent one all rows are"
            " opened again, and whatever it still writes is refused."
        ),
        True,
    ),
}


def urls_of(room: Room, base: str) -> list[URLPattern]:
    """Return the patterns of the model's pages below *base*."""

    def only_post(view: View) -> View:
        """Send a GET to the page: the login form leads here when a form was sent after the session ended."""

        def answer(request: HttpRequest, **kwargs: object) -> HttpResponseBase:
            if request.method in {"GET", "HEAD"}:
                return redirect(room.url())
            return view(request, **kwargs)

        return require_question(answer)

    def at(route: str, view: View, name: str = "", method: Any = require_GET) -> URLPattern:
        # A page that looks is left out of transactions, too: on SQLite each would keep every writer waiting.
        wrapped: View = room.site.admin_view(in_no_transaction(method(view)))
        return path(f"{base}{route}", wrapped, name=room.url_name(name))

    return [
        at("", Page(room).show),
        at("live/", Page(room).live, "live"),
        at("switch/", Actions(room).switch, "switch", only_post),
        at("orders/", Actions(room).order, "orders", require_question),
        at("settings/", Actions(room).settings, "settings", only_post),
        at("failures.csv", Actions(room).export, "export"),
        at("failures/<slug:group>.csv", Actions(room).export, "export"),
        at("failures/<slug:group>/first/", Actions(room).first, "first", only_post),
        at("failures/<slug:group>/retry/", Actions(room).retry, "retry", require_question),
    ]


class Page:
    """The page itself, and the part of it that changes."""

    def __init__(self, room: Room) -> None:
        self.room = room

    def show(self, request: HttpRequest, form: SettingsForm | None = None) -> TemplateResponse:
        """Answer with the whole page."""
        return self._answer(request, "page.html", form)

    def live(self, request: HttpRequest) -> TemplateResponse:
        """Answer with what the page's script puts in place of what it has."""
        return self._answer(request, "live.html")

    def _answer(
        self, request: HttpRequest, template: str, form: SettingsForm | None = None
    ) -> TemplateResponse:
        room = self.room
        if not room.may_view(request):
            raise PermissionDenied
        request.current_app = room.site.name
        context = {
            **(room.site.each_context(request) if template == "page.html" else {}),
            **shown(request, room, form),
            **crumbs_context(crumbs_of(room)),
            "title": _("%(name)s: control room") % {"name": room.name},
        }
        return TemplateResponse(request, f"{TEMPLATES}/{template}", context)


def crumbs_of(room: Room, *more: Crumb) -> list[Crumb]:
    """Return the way from the index to the page, and on to *more*."""
    here = _("Control room")
    list_url = room.list_url()
    way = [Crumb(here, overview_url(room.site))] if not list_url else [Crumb(room.name, list_url)]
    own = here if list_url else room.name
    return [*way, Crumb(own, room.url() if more else ""), *more]


def order_message(worker: str, put_back: int | None) -> str:
    """Say what came of an order. No sentence begins with the name: the admin would capitalise it."""
    if put_back is None:
        return _("The worker process %(worker)s has been told.") % {"worker": worker}
    return ngettext(
        "Of the silent worker process %(worker)s, %(n)s row was put back.",
        "Of the silent worker process %(worker)s, %(n)s rows were put back.",
        put_back,
    ) % {"worker": worker, "n": words.number(put_back)}


class Actions:
    """What a person can do there."""

    def __init__(self, room: Room) -> None:
        self.room = room

    def _require(self, allowed: bool) -> None:
        if not allowed:
            raise PermissionDenied

    def _back(self) -> HttpResponseRedirect:
        return redirect(self.room.url())

    def switch(self, request: HttpRequest) -> HttpResponse:
        """Turn the model's switch; running rows finish, so nobody is asked twice."""
        self._require(self.room.may_operate(request))
        off, form = request.POST.get("turn") == "off", PauseForm(request.POST)
        if request.POST.get("turn") not in {"on", "off"} or not form.is_valid():
            messages.error(request, _("Nothing was changed: the form was not complete."))
            return self._back()
        turn_with_message(request, self.room.model, off=off, **form.cleaned_data)
        return self._back()

    def order(self, request: HttpRequest) -> HttpResponseBase:
        """Ask, and then tell one worker process to drain, stop or release."""
        self._require(self.room.may_operate(request))
        name, what = request.GET.get("worker", ""), request.GET.get("order", "")
        if what not in _ORDERS or not is_on(self.room.alias):
            raise Http404
        known = Asking(self.room.alias, "*").ask("workers", lambda: workers(self.room.alias))
        if known.value is None or known.late:
            messages.error(request, _("Nothing was changed: the database did not answer in time."))
            return self._back()
        worker = next((one for one in known.value if one.name == name), None)
        if worker is None:
            gone = _("Nothing was changed: no worker is listed as %(name)s any more.")
            messages.warning(request, gone % {"name": name})
            return self._back()
        return self._order(request, worker, what)

    def _order(self, request: HttpRequest, worker: Worker, what: str) -> HttpResponseBase:
        title, sentence, danger = _ORDERS[what]

        def run(answer: Mapping[str, Any]) -> HttpResponse:
            self._give_order(request, worker.name, what, answer["reason"])
            return self._back()

        return confirm(
            request,
            allowed=self._may_order(request, worker),
            title=str(title) % {"worker": worker.name},
            sentence=str(sentence),
            fields=ReasonForm,
            danger=danger,
            run=run,
            back=self.room.url(),
            crumbs=crumbs_of(self.room, Crumb(worker.name)),
            site=self.room.site,
        )

    def _may_order(self, request: HttpRequest, worker: Worker) -> bool:
        """Say whether the worker has to do with this model, and with none that the user may not operate on."""
        return worker.serves(self.room.model) and all(
            self.room.beside(model).may_operate(request) for model in models_of(worker)
        )

    def _give_order(self, request: HttpRequest, worker: str, what: str, reason: str) -> None:
        by, using = str(request.user), self.room.alias
        try:
            given = order(worker, what, by=by, user=request.user, reason=reason, using=using)
        except (ValidationError, WorkerProcess.DoesNotExist) as error:
            messages.error(request, " ".join(getattr(error, "messages", [str(error)])))
        except (Error, TaskClaimError) as error:
            messages.error(request, first_line(error))
        else:
            messages.success(request, order_message(worker, given.put_back))

    def settings(self, request: HttpRequest) -> HttpResponseBase:
        """Set the overrides that were changed, or show the form again with what is wrong."""
        self._require(self.room.may_configure(request))
        form = SettingsForm(self.room.model, request.POST)
        if form.is_valid() and self._change(request, form):
            messages.success(request, _("Workers follow within a few seconds."))
            return self._back()
        return Page(self.room).show(request, form)

    def _change(self, request: HttpRequest, form: SettingsForm) -> bool:
        facts = {"by": str(request.user), "reason": form.cleaned_data["reason"]}
        try:
            if form.values:
                change_overrides(self.room.model, form.values, user=request.user, **facts)
        except ValueError as error:
            form.add_error("lease", str(error))
        except (Error, TaskClaimError) as error:
            form.add_error(None, first_line(error))
        return not form.errors

    def first(self, request: HttpRequest, group: str) -> HttpResponse:
        """Reset the ten rows of the group that failed last, to see whether the cause is mended."""
        self._require(self.room.may_operate(request))
        return self._retry(request, group, lambda rows, found: [found.keys(FIRST)])

    def retry(self, request: HttpRequest, group: str) -> HttpResponseBase:
        """Ask, and then reset every failed row of the group."""
        size = int(conf.setting("CHUNK_SIZE"))
        return confirm(
            request,
            allowed=self.room.may_operate(request),
            title=_("Retry all failed rows of this group"),
            sentence=_(
                "Every failed row of %(name)s that failed like this is opened again, with all its tries."
            )
            % {"name": self.room.name},
            facts=lambda: self._facts(request, group),
            fields=ReasonForm,
            run=lambda answer: self._retry(
                request, group, lambda rows, found: keys_like(rows, found, size), answer["reason"]
            ),
            back=self.room.url(),
            crumbs=crumbs_of(self.room, Crumb(_("Retry"))),
            site=self.room.site,
        )

    def _failures(self, request: HttpRequest) -> Sample | None:
        room = self.room
        asking = Asking(room.alias, room.model._meta.label_lower)
        return ask_failures(asking, room.rows(request), room.onlooker(request)).value

    def _facts(self, request: HttpRequest, group: str) -> list[str]:
        """Tell which group that is, as far as it is known in time."""
        found = self._failures(request)
        more = "+" if found is not None and found.capped else ""
        return [
            f"{words.number(one.all)}{more} × {one.error}: {one.message}"
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
        found = next((one for one in (sample.groups if sample else []) if one.id == group), None)
        if found is None:
            messages.warning(request, _("Nothing was changed: no row has failed like this lately."))
            return self._back()
        rows = claims_of(self.room.rows(request))
        which = ", ".join(filter(None, [found.error, _("group %(group)s") % {"group": group}]))
        result = run_action(
            request,
            RESET_FAILED,
            rows,
            model_admin=self.room.model_admin,
            keys=keys_of(rows, found),
            recorded=" – ".join(filter(None, [which, why])),
        )
        return self._back() if result.is_over else redirect(request.get_full_path())

    def export(self, request: HttpRequest, group: str = "") -> HttpResponseBase:
        """Stream the failed rows as CSV."""
        self._require(self.room.may_view(request))
        lines = exported(self.room.rows(request), group)
        response = StreamingHttpResponse(lines, content_type="text/csv; charset=utf-8")
        name = f"{self.room.model._meta.model_name}-failures.csv"
        response["Content-Disposition"] = f'attachment; filename="{name}"'
        return response
