"""Whether claims of a model flow, and if not, who or what stopped them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_taskclaim.admin.localized import clock, number
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import listed
from django_taskclaim.limits.model_limits import ModelLimits
from django_taskclaim.models import Switch, Throttle
from django_taskclaim.monitoring.overview import Summary, Worker
from django_taskclaim.tables import EVERY_MODEL

_LAMPS = {"running": "▶", "ready": "▷", "held": "◔", "unknown": "?"}


@dataclass(frozen=True, slots=True)
class State:
    """One word, and the sentences that go with it."""

    #: ``running``, ``ready``, ``pausing``, ``paused``, ``held`` or ``unknown``: also the name of its look.
    kind: str
    word: str
    sentence: str
    lines: tuple[str, ...] = ()
    #: Whether the model's own switch is off, so that "resume" turns it on.
    is_paused: bool = False
    #: Whether the switch of all models is off.
    all_are_paused: bool = False

    @property
    def lamp(self) -> str:
        """The sign beside the word, so that colour is not all that tells states apart."""
        return _LAMPS.get(self.kind, "❚❚")

    @property
    def announcement(self) -> str:
        """What a screen reader says when it changes."""
        return f"{self.word}. {self.sentence}"


def state_of(seen: Summary | None) -> State:
    """Return the state of a model's claims; None is what was never read."""
    if seen is None:
        return State("unknown", _("UNKNOWN"), _("The database has not answered in time yet."))
    limits = [_limited(limits) for limits in seen.limits]
    if seen.pause is not None:
        return _paused(seen.progress.processing, seen.pause, limits)
    living = seen.living
    if not living:
        sentence = _("The switch is on, and no worker is alive.")
        return State("ready", _("READY"), sentence, tuple(limits))
    ends = _held_until(seen.throttles, living)
    lines = _held([one for one in seen.throttles if one.process in ends], len(living)) + limits
    if len(ends) == len(living):
        until = clock(min(ends.values()))
        return State("held", _("HELD until %(time)s") % {"time": until}, lines[0], tuple(lines[1:]))
    alive = ngettext(
        "%(n)s worker process is alive.", "%(n)s worker processes are alive.", len(living)
    )
    return State("running", _("RUNNING"), alive % {"n": number(len(living))}, tuple(lines))


def _limited(limits: ModelLimits) -> str:
    """Return what all workers keep to together, in a sentence."""
    parts = []
    if limits.rate is not None:
        parts.append(_("a rate of %(rate)s") % {"rate": limits.rate})
    if limits.max_running is not None:
        parts.append(_("%(rows)s running at once") % {"rows": number(limits.max_running)})
    if limits.hours is not None:
        parts.append(_("the hours %(hours)s") % {"hours": limits.hours})
    return _("All together keep to: %(limits)s") % {"limits": ", ".join(parts)}


def _held_until(throttles: Sequence[Throttle], living: Sequence[Worker]) -> dict[str, datetime]:
    """Return when each of the living that is throttled may claim again: once the last of its throttles has ended."""
    names = {worker.name for worker in living}
    ends: dict[str, datetime] = {}
    for throttle in throttles:
        if throttle.process in names:
            until = as_utc(throttle.until)
            ends[throttle.process] = max(until, ends.get(throttle.process, until))
    return ends


def _held(throttles: Sequence[Throttle], living: int) -> list[str]:
    """Return a line for each cause of an automatic stop, with the end of the one that lasts longest."""
    by_source: dict[str, list[Throttle]] = {}
    for throttle in throttles:
        by_source.setdefault(throttle.source, []).append(throttle)
    return [
        _("Held by %(source)s on %(processes)s: %(reason)s, until %(time)s")
        % {
            "source": source,
            "processes": _("all processes")
            if len(same) >= living
            else listed([one.process for one in same], 3),
            "reason": same[0].reason,
            "time": clock(same[0].until),
        }
        for source, same in by_source.items()
    ]


def _paused(running: int, pause: Switch, limits: Sequence[str]) -> State:
    every = pause.scope == EVERY_MODEL
    left = ngettext("%(n)s row still running", "%(n)s rows still running", running)
    lines = [left % {"n": number(running)}] if running else []
    if every:
        lines.append(_("All models are paused, not only this one."))
    return State(
        "pausing" if running else "paused",
        _("PAUSING") if running else _("PAUSED"),
        pause_sentence(pause),
        (*lines, *limits),
        is_paused=not every,
        all_are_paused=every,
    )


def pause_sentence(pause: Switch) -> str:
    """Return ``by Ada since 14:02 “deploy”, until 15:00``."""
    parts = []
    if pause.by:
        parts.append(_("by %(who)s") % {"who": pause.by})
    if pause.paused_at is not None:
        parts.append(_("since %(time)s") % {"time": clock(pause.paused_at)})
    if pause.reason:
        parts.append(f"“{pause.reason}”")
    sentence = " ".join(parts)
    if pause.until is not None:
        until = _("until %(time)s") % {"time": clock(pause.until)}
        sentence = f"{sentence}, {until}" if sentence else until
    return sentence
