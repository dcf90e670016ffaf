"""What the confirmation pages ask for beside a yes."""

from datetime import timedelta

from django import forms
from django.utils.translation import gettext_lazy as _


class ReasonForm(forms.Form):
    """Why; kept in the record of acts."""

    reason = forms.CharField(
        label=_("Reason"),
        required=False,
        max_length=500,
        help_text=_("For everybody who looks later; it is kept in the record."),
    )


class FailForm(forms.Form):
    """Why rows are failed: it becomes their error."""

    reason = forms.CharField(
        label=_("Reason"), max_length=500, help_text=_("It is stored as the error of each row.")
    )


class PauseForm(ReasonForm):
    """Why, and for how long."""

    LENGTHS = {
        "": None,
        "15m": timedelta(minutes=15),
        "1h": timedelta(hours=1),
        "4h": timedelta(hours=4),
        "1d": timedelta(days=1),
    }

    lasts = forms.ChoiceField(
        label=_("For how long"),
        required=False,
        choices=[
            ("", _("until somebody resumes")),
            ("15m", _("15 minutes")),
            ("1h", _("1 hour")),
            ("4h", _("4 hours")),
            ("1d", _("1 day")),
        ],
    )

    field_order = ("lasts", "reason")

    def clean_lasts(self) -> timedelta | None:
        return self.LENGTHS[self.cleaned_data["lasts"]]


class Also(forms.Form):
    """Which rows an act shall touch that it leaves alone unless it is told."""

    field_order = ("running", "complete", "reason")

    running = forms.BooleanField(
        label=_("Take running rows from their holders, too"),
        required=False,
        help_text=_("Their holders will lose them, and what they write afterwards is refused."),
    )
    complete = forms.BooleanField(label=_("Include rows that are complete"), required=False)


class ResetForm(Also, ReasonForm):
    """Which rows to reset beside failed ones."""


class FailManyForm(Also, FailForm):
    """Which rows to fail beside open and paused ones."""


def taking(base: type[forms.Form], holder: str) -> type[forms.Form]:
    """Return *base* with a box that must be ticked before the row is taken from its holder."""
    box = forms.BooleanField(
        label=_("Take the row from %(holder)s") % {"holder": holder},
        error_messages={"required": _("Tick this, or the row stays with its holder.")},
    )
    made: type[forms.Form] = type(
        "Taking", (base,), {"running": box, "field_order": ("running", "reason")}
    )
    return made
