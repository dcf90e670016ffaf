"""What became of a row that somebody thought was theirs, and what they wrote beside what is stored by now."""

from dataclasses import dataclass
from typing import Any

from django import forms
from django.db import models
from django.utils.translation import gettext as _

from django_taskclaim.columns import claim_columns
from django_taskclaim.fields import AnyField
from django_taskclaim.formatting import format_clock_time
from django_taskclaim.holders import name_of
from django_taskclaim.states import Status


@dataclass(frozen=True, slots=True)
class Outcome:
    """Who holds a row, or what became of it."""

    #: One of ``Status``; "" for a row that is gone.
    status: str
    #: Who holds or finished it, as people speak of them, and whether that is the one who asks.
    name: str
    is_own: bool
    sentence: str


def outcome_of(row: models.Model | None, asked_by: str) -> Outcome:
    """Return what the stored *row* means for *asked_by*, the name of a holder; None is a row that is gone."""
    if row is None:
        return Outcome("", "", is_own=False, sentence=_("It is gone."))
    columns = claim_columns(type(row))

    def time(field: AnyField | None) -> str:
        moment = None if field is None else getattr(row, field.attname)
        return format_clock_time(moment) if moment else ""

    status, holder = (getattr(row, one.attname) for one in (columns.status, columns.claimed_by))
    is_own, name = holder == asked_by, name_of(holder or "") or _("Somebody")
    finished = time(columns.completed_at) if status == Status.COMPLETE else ""
    words = {
        "name": name,
        "when": finished or time(columns.claimed_at) or "?",
        "until": time(columns.expires_at) or "?",
    }
    return Outcome(status, name, is_own, _sentence(status, is_own=is_own) % words)


def _sentence(status: str, *, is_own: bool) -> str:
    if status == Status.PROCESSING:
        if is_own:
            return _("You have held it again since %(when)s: open it again.")
        return _("%(name)s has held it since %(when)s, and keeps it until %(until)s at least.")
    if status == Status.COMPLETE:
        return (
            _("You finished it at %(when)s.") if is_own else _("%(name)s finished it at %(when)s.")
        )
    return {
        Status.OPEN.value: _("It was put back, and nobody holds it now."),
        Status.PAUSED.value: _("It was set aside, and nobody works on it."),
    }.get(status, _("It was given up."))


# What was written


@dataclass(frozen=True, slots=True)
class Written:
    """One field of a form as a widget: what was sent, and what is stored now; None where the row is gone."""

    label: str
    mine: str
    theirs: str | None
    differs: bool


def written(form: Any, stored: Any) -> list[Written]:
    """Return each visible field of the bound *form* beside that of *stored*, a form of the row as it is, or None."""
    fields = [one for one in form.visible_fields() if not _is_secret(one)]
    return [_written(field, None if stored is None else stored[field.name]) for field in fields]


def _is_secret(field: Any) -> bool:
    return isinstance(field.field.widget, forms.PasswordInput)


def _written(field: Any, there: Any) -> Written:
    label = str(field.label)
    mine = field.as_widget(attrs=_attrs(label))
    if there is None:
        return Written(label, mine, None, differs=bool(field.data))
    differs = there.field.has_changed(_bare(there.initial), _bare(field.data))
    return Written(label, mine, there.as_widget(attrs=_attrs(label)), differs)


def _attrs(label: str) -> dict[str, Any]:
    return {"readonly": True, "required": False, "aria-label": label}


def _bare(value: Any) -> Any:
    """Return a text without what a browser and a form change of it by themselves: line ends, and space around it."""
    return value.replace("\r\n", "\n").strip() if isinstance(value, str) else value
