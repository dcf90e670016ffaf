"""What a person can fill in on a page of the control room."""

from datetime import timedelta
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

UNTIL = [
    ("", pgettext_lazy("paused", "until resumed")),
    ("900", _("for 15 minutes")),
    ("3600", _("for an hour")),
    ("14400", _("for 4 hours")),
    ("86400", _("for a day")),
]


class ReasonForm(forms.Form):
    """Why, for the record and for whoever looks next."""

    reason = forms.CharField(
        label=_("Reason"),
        max_length=500,
        required=False,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )


class PauseForm(ReasonForm):
    """Why, and for how long."""

    until = forms.ChoiceField(label=_("How long"), choices=UNTIL, required=False)

    def clean_until(self) -> timedelta | None:
        """Return how long the pause lasts; None until somebody resumes."""
        until = self.cleaned_data["until"]
        return timedelta(seconds=float(until)) if until else None


class SettingsForm(forms.Form):
    """What claims of one model follow; an empty field follows the handler and the command line.

    The form brings along what it showed, so that only what a person changed is sent on: two people who change
    different settings at the same time both get their way. Sense is judged where the settings are stored, so that a
    shell is told the same.
    """

    batch_size = forms.IntegerField(label=_("Batch size"), required=False)
    lease = forms.FloatField(label=_("Lease, seconds"), required=False)
    rate = forms.CharField(label=_("Rate, such as 100/m"), max_length=40, required=False)
    max_running = forms.CharField(label=_("Rows at once"), max_length=20, required=False)
    hours = forms.CharField(label=_("Hours, such as 22:00-06:00"), max_length=40, required=False)
    reason = forms.CharField(label=_("Reason"), max_length=500, required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, field in self.fields.items():
            field.widget.attrs["autocomplete"] = "off"
            field.show_hidden_initial = name != "reason"

    @property
    def values(self) -> dict[str, Any]:
        """What was changed, without the reason."""
        changed = [name for name in self.changed_data if name != "reason"]
        return {name: self.cleaned_data[name] for name in changed}
