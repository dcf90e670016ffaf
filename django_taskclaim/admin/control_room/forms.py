"""What a person can fill in on a page of the control room."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db import models
from django.utils.text import format_lazy
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from django_taskclaim import conf
from django_taskclaim.handlers import handler_for
from django_taskclaim.policy import policy_for
from django_taskclaim.switch import override_as_text, override_from_text
from django_taskclaim.tables import LIMITS, OVERRIDES

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
