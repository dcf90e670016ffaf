"""The claim columns as HTML: pills, holders, tries, errors. Whatever a row holds is text and stays text."""

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_taskclaim.admin.localized import listed, number
from django_taskclaim.admin.rows import STATES, WAITING, RowFacts, holder_of
from django_taskclaim.control.actions import EXPIRED
from django_taskclaim.formatting import format_duration
from django_taskclaim.states import Status

#: So much of an error's text stands in a list.
GLIMPSE = 90

#: What a traceback begins with in the text that a row keeps.
TRACEBACK = "Traceback (most recent call last):"


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
    who = holder_of(facts.holder)
    if not facts.is_held:
        text = _("by %(holder)s") % {"holder": who}
        return format_html('<span class="taskclaim-quiet" title="{}">{}</span>', facts.holder, text)
    return format_html('<span title="{}">{}</span>', facts.holder, _held_now(facts, str(who)))


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
