"""What a person is asked before something is done, and what a person can fill in on a page of the control room.

``Question`` is the one way in which a person acts from a page: a GET asks and changes nothing, a POST acts.

    def pause_view(request):
        question = Question(request, ReasonForm, allowed=may(request, "operate", Photo))
        if question.answer is not None:
            pause(Photo, reason=question.answer["reason"])
            return redirect("admin:photos_photo_changelist")
        return question.page(
            title=_("Pause photos"),
            sentence=_("No worker claims a photo until somebody resumes. What runs finishes."),
            back=reverse("admin:photos_photo_changelist"),
            site=admin.site,
        )

The view runs again for the POST, so the permission that it hands over as ``allowed`` is asked again. ``admin_view`` of
the site asks for the CSRF token.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import django
from django import forms
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.utils.text import format_lazy
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from django_taskclaim import conf
from django_taskclaim.control.actions import NAMED, Action
from django_taskclaim.handlers import handler_for
from django_taskclaim.policy import policy_for
from django_taskclaim.switch import override_as_text, override_from_text
from django_taskclaim.tables import LIMITS, OVERRIDES

Answer = Mapping[str, Any]

#: In a form that was posted before it was shown (an action of the list), says that this POST is the answer.
CONFIRMED = "taskclaim_confirmed"


class Crumb(NamedTuple):
    """One step of the way from the index to this page; the last has no address."""

    title: str
    url: str = ""


class Question:
    """What a request asks of a person before something is done, and what it has been answered."""

    def __init__(
        self,
        request: HttpRequest,
        form: Callable[..., forms.Form] = forms.Form,
        *,
        allowed: bool,
        hidden: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Read the answer of a POST whose *form* is valid; PermissionDenied, for a GET too, unless *allowed*.

        *allowed* is the caller's answer to "may this user do this to that?". *hidden* is what the page shows the state
        of: it counts as answered only when that comes back unchanged. If it has changed, the page says so.
        """
        if not allowed:
            raise PermissionDenied
        self._request, self._hidden = request, hidden or {}
        given = request.method == "POST" and (not self._hidden or CONFIRMED in request.POST)
        answered = given and all(
            request.POST.getlist(name) == shown for name, shown in self._hidden.items()
        )
        self._has_changed = given and not answered
        typed = {"reason": request.POST.get("reason", "")}
        self._form = form(request.POST if answered else None, initial=typed)
        #: What the person has filled in; None until then, and nothing may be done.
        self.answer: Answer | None = None
        if self._form.is_valid():
            self.answer = self._form.cleaned_data

    def page(
        self,
        *,
        title: str,
        sentence: str,
        site: AdminSite,
        back: str,
        crumbs: Sequence[Crumb] = (),
        warning: str = "",
        facts: Sequence[str] = (),
        can_act: bool = True,
    ) -> HttpResponseBase:
        """Show what is about to happen, with the form; under a *warning* the button is red.

        Without the form where nobody *can_act*; then the warning says why.
        """
        self._request.current_app = site.name
        context = {
            **site.each_context(self._request),
            "title": title,
            "sentence": sentence,
            "warning": warning,
            "changed": self._has_changed,
            "can_act": can_act,
            "facts": facts,
            "form": self._form,
            "hidden": {**self._hidden, CONFIRMED: ["yes"]}.items(),
            "back": back,
            "crumbs": [*crumbs, Crumb(title)],
            "crumbs_are_listed": django.VERSION >= (6, 1),
        }
        return TemplateResponse(self._request, "admin/taskclaim/confirmation.html", context)


# What a person can fill in


#: So many rows of a group of failures are tried first, if somebody wants that.
FIRST = 10

UNTIL = [
    ("", pgettext_lazy("paused", "until resumed")),
    ("900", _("for 15 minutes")),
    ("3600", _("for an hour")),
    ("14400", _("for 4 hours")),
    ("86400", _("for a day")),
]


class ReasonForm(forms.Form):
    """Why, for the record and for the next person who looks."""

    reason = forms.CharField(
        label=_("Reason"),
        max_length=500,
        required=False,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )


class ActionForm(ReasonForm):
    """Which rows an action shall change that it leaves alone unless they are named, and why."""

    running = forms.BooleanField(label=_("Take running rows from their holders"))
    complete = forms.BooleanField(label=_("Include rows that are complete"))
    at = forms.DateTimeField(
        label=_("Not now, but at"),
        required=False,
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
    )
    field_order = (*NAMED.values(), "at", "reason")

    def __init__(self, *args: Any, action: Action, states: Collection[str], **options: Any):
        """*states* are those of the rows; nothing is asked about others."""
        super().__init__(*args, **options)
        for state, name in NAMED.items():
            self.fields[name].required = state in action.states
            if state not in states or not action.takes(state):
                del self.fields[name]
        if "at" not in action.asks:
            del self.fields["at"]
        if "error" in action.asks:
            self.fields["reason"].required = True
            self.fields["reason"].help_text = gettext("Stored as the error of each row.")


class PauseForm(ReasonForm):
    """Why, and for how long."""

    #: As a duration; None until somebody resumes.
    until = forms.TypedChoiceField(
        label=_("How long"),
        choices=UNTIL,
        required=False,
        coerce=lambda seconds: timedelta(seconds=float(seconds)),
        empty_value=None,
    )


class RetryForm(ReasonForm):
    """Why, and whether only a few rows are tried."""

    first = forms.BooleanField(
        label=format_lazy(_("Only the {n} rows that failed last"), n=FIRST),
        required=False,
        help_text=_("To see whether the cause is mended."),
    )
    #: Their keys as the page has found them, in JSON: a form that is sent twice tries no others.
    latest = forms.CharField(required=False, widget=forms.HiddenInput)


class OverrideField(forms.CharField):
    """One override, as a person writes it; the command ``claimlimit`` reads the same."""

    def __init__(self, name: str, label: Any) -> None:
        super().__init__(label=label, max_length=40, required=False, show_hidden_initial=True)
        self.name = name

    def clean(self, value: object) -> object:
        """Return what is stored; None follows the handler."""
        try:
            return override_from_text(self.name, super().clean(value))
        except ValueError as error:
            raise ValidationError(str(error)) from error


class SettingsForm(ReasonForm):
    """The overrides of one model; an empty field follows the handler and the command line.

    The form brings along what it showed, so that only what a person changed is sent on: two people who change
    different settings at the same time both get their way.
    """

    batch_size = OverrideField("batch_size", _("Batch size"))
    lease = OverrideField("lease", _("Lease, such as 90s"))
    rate = OverrideField("rate", _("Rate, such as 100/m"))
    max_running = OverrideField("max_running", _("Rows at once"))
    hours = OverrideField("hours", _("Hours, such as 22:00-06:00"))
    field_order = OVERRIDES

    def __init__(
        self,
        model: type[models.Model],
        data: Any = None,
        stored: Mapping[str, object] | None = None,
    ) -> None:
        """Show what is *stored* for *model*, and in empty fields what holds without it."""
        initial = {name: override_as_text(value) for name, value in (stored or {}).items()}
        super().__init__(data, initial=initial, auto_id="tc-set-%s")
        for name, text in _without_overrides(model).items():
            self.fields[name].widget.attrs |= {"autocomplete": "off", "placeholder": text}

    @property
    def values(self) -> dict[str, Any]:
        """The overrides that were changed."""
        return {name: self.cleaned_data[name] for name in self.changed_data if name != "reason"}


def _without_overrides(model: type[models.Model]) -> dict[str, str]:
    """Return what holds for each field where nothing is stored."""
    handler, policy = handler_for(model), policy_for(model)
    values = {name: override_as_text(getattr(policy, name) or "") for name in LIMITS}
    values["lease"] = override_as_text(policy.lease)
    values["batch_size"] = str(handler.batch_size if handler else conf.setting("BATCH_SIZE"))
    is_given = conf.is_given("BATCH_SIZE") or (handler and handler.own_batch_size)
    if handler and not (is_given or handler.batch or handler.has_ranges):
        values["batch_size"] = gettext("rows for a second")
    return values
