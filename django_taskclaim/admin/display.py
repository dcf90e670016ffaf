"""The claim columns as people read them, in a list and on a page. All that a row holds is text and stays text."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_taskclaim.admin.localized import listed, number
from django_taskclaim.admin.rows import (
    STATES,
    WAITING,
    RowFacts,
    facts_of,
    holder_text,
    look_of,
)
from django_taskclaim.admin.timeline import timeline
from django_taskclaim.columns import source_key_text
from django_taskclaim.control.actions import EXPIRED
from django_taskclaim.formatting import format_duration
from django_taskclaim.states import Status

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Any]
else:
    Base = object

#: So much of an error's text stands in a list.
GLIMPSE = 90

#: What a traceback begins with in the text that a row keeps.
TRACEBACK = "Traceback (most recent call last):"


class ClaimDisplay(Base):
    """The columns that lists and pages show of a claim, of a companion's source, and of a range of keys."""

    @admin.display(description=gettext_lazy("state"))
    def claim_state(self, obj: Any) -> SafeString:
        return pill(facts_of(obj).kind)

    @admin.display(description=gettext_lazy("holder"))
    def claim_holder(self, obj: Any) -> str:
        return held(facts_of(obj)) or self.get_empty_value_display()

    @admin.display(description=gettext_lazy("tries"))
    def claim_tries(self, obj: Any) -> str:
        return tried(facts_of(obj)) or self.get_empty_value_display()

    @admin.display(description=gettext_lazy("claim"))
    def claim_summary(self, obj: Any) -> SafeString:
        """State, holder, tries and error in one column."""
        return summary(facts_of(obj))

    @admin.display(description=gettext_lazy("error"))
    def claim_error(self, obj: Any) -> str:
        return error_glimpse(facts_of(obj)) or self.get_empty_value_display()

    @admin.display(description=gettext_lazy("error"))
    def claim_error_in_full(self, obj: Any) -> str:
        return error_in_full(facts_of(obj)) or self.get_empty_value_display()

    @admin.display(description=gettext_lazy("timeline"))
    def claim_timeline(self, obj: Any) -> str:
        return timeline(obj, look_of(obj).alias) or self.get_empty_value_display()

    @admin.display(description=gettext_lazy("source"))
    def claim_source(self, obj: Any) -> str:
        """Return the key of a companion's source, in a list; nothing is asked for it."""
        return source_key_text(obj) or self.get_empty_value_display()

    @admin.display(description=gettext_lazy("source"))
    def claim_lost_source(self, obj: Any) -> str:
        return _("%(key)s, whose row is gone") % {"key": source_key_text(obj)}

    @admin.display(description=gettext_lazy("begins"))
    def range_begins(self, obj: Any) -> str:
        if obj.lower_key is None:
            return _("with the first row")
        return _("behind %(key)s") % {"key": _key_text(obj.lower_key)}

    @admin.display(description=gettext_lazy("ends with"))
    def range_ends(self, obj: Any) -> str:
        return _key_text(obj.upper_key)

    @admin.display(description=gettext_lazy("done up to"))
    def range_done_to(self, obj: Any) -> str:
        key = obj.checkpoint_key
        return self.get_empty_value_display() if key is None else _key_text(key)

    @admin.display(description=gettext_lazy("rows done"))
    def range_rows(self, obj: Any) -> str:
        done, planned = number(obj.rows_done), number(obj.rows_planned)
        return _("%(done)s of about %(planned)s") % {"done": done, "planned": planned}


def _key_text(key: Any) -> str:
    # A key is no count: 4711, not 4,711.
    return ", ".join(str(part) for part in key) if isinstance(key, tuple) else str(key)


def pill(kind: str) -> SafeString:
    """Return the state as a pill; its word is always there, for colour alone tells nobody everything."""
    return format_html(
        '<span class="taskclaim-pill taskclaim-is-{}">{}</span>',
        kind,
        STATES.get(kind, kind),
    )


def held(facts: RowFacts) -> str:
    """Return who has the row and for how long, or who had it last; nothing where nobody did."""
    if not facts.holder:
        return ""
    who = holder_text(facts.holder)
    if not facts.is_held:
        text = _("by %(holder)s") % {"holder": who}
        return format_html('<span class="taskclaim-quiet" title="{}">{}</span>', facts.holder, text)
    return format_html('<span title="{}">{}</span>', facts.holder, _held_now(facts, who))


def _held_now(facts: RowFacts, who: str) -> str:
    if facts.left is None:
        return _("held by %(holder)s, without an end") % {"holder": who}
    words = {"holder": who, "time": format_duration(facts.left)}
    if facts.kind == EXPIRED:
        return _("held by %(holder)s, lease ended %(time)s ago") % words
    return _("held by %(holder)s, %(time)s left") % words


def tried(facts: RowFacts) -> str:
    """Return how often the row was tried and when it will be again."""
    parts = [_tries(facts)]
    if facts.open_ended:
        parts.append(_("waits for rows that may still be committed"))
    elif facts.kind == WAITING and facts.wait is not None:
        parts.append(_("next in %(time)s") % {"time": format_duration(facts.wait)})
    if facts.crashed:
        parts.append(_("next alone, its worker died"))
    return listed([part for part in parts if part])


def _tries(facts: RowFacts) -> str:
    if facts.attempts is None:
        return _put_back(facts.iteration)
    counts = {"tries": facts.attempts, "most": facts.max_attempts}
    if facts.is_held:
        return _("try %(tries)s of %(most)s") % {**counts, "tries": facts.attempts + 1}
    if not facts.attempts:
        return ""
    if facts.status == Status.COMPLETE:
        return _("done at try %(tries)s") % {"tries": facts.attempts + 1}
    return _("tried %(tries)s of %(most)s") % counts


def _put_back(iteration: int) -> str:
    """Return what is known of tries where nobody counts them."""
    if not iteration:
        return ""
    return _("put back %(times)s×") % {"times": number(iteration)}


def error_glimpse(facts: RowFacts) -> str:
    """Return error class and message in one line, cut short; all of the first line shows on hovering."""
    kind, message, _folded = error_parts(facts)
    if not (kind or message):
        return ""
    short = message if len(message) <= GLIMPSE else message[: GLIMPSE - 1] + "…"
    return format_html(
        '<span class="taskclaim-error" title="{}"><b>{}</b> {}</span>',
        facts.error_class or "",
        kind,
        short,
    )


def summary(facts: RowFacts) -> SafeString:
    """Return all that a list tells of a claim: its state, and below it a line for each thing."""
    lines = [line for line in (held(facts), tried(facts), error_glimpse(facts)) if line]
    lines.insert(0, pill(facts.kind))
    spans = format_html_join("", "<span>{}</span>", ((line,) for line in lines))
    return format_html('<div class="taskclaim-told">{}</div>', spans)


def error_in_full(facts: RowFacts) -> str:
    """Return error class and message, with the rest of the text, the traceback, folded away."""
    kind, message, folded = error_parts(facts)
    if not (kind or message):
        return ""
    head = format_html(
        '<div class="taskclaim-error"><b title="{}">{}</b> {}</div>',
        facts.error_class or "",
        facts.error_class or "",
        message,
    )
    if not folded:
        return head
    label = _("Traceback") if TRACEBACK in folded else _("The whole text")
    return format_html(
        '{}<details class="taskclaim-folded"><summary>{}</summary><pre>{}</pre></details>',
        head,
        label,
        folded,
    )


def error_parts(facts: RowFacts) -> tuple[str, str, str]:
    """Return the class without its module, the first line of the text, and what follows it."""
    kind = (facts.error_class or "").rpartition(".")[2]
    message, _newline, rest = (facts.last_error or "").strip().partition("\n")
    return kind, message.strip(), rest.strip("\n")
