"""What the confirmation pages ask for beside a yes."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from django_taskclaim.control.actions import LOSE, NAMED, Action


class ActionForm(forms.Form):
    """Which rows an action shall change that it leaves alone unless they are named, and why."""

    running = forms.BooleanField(
        label=_("Take running rows from their holders, too"), required=False, help_text=LOSE
    )
    complete = forms.BooleanField(label=_("Include rows that are complete"), required=False)
    reason = forms.CharField(
        label=_("Reason"),
        required=False,
        max_length=500,
        help_text=_("For everybody who looks later; it is kept in the record."),
    )

    def __init__(
        self, *args: Any, action: Action, holder: str | None = None, **options: Any
    ) -> None:
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
