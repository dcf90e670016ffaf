"""Whether claims of a model flow, and if not, who or what stopped them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_taskclaim.admin.control_room import words
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import listed
from django_taskclaim.limits.model_limits import ModelLimits
from django_taskclaim.models import Switch, Throttle
from django_taskclaim.monitoring.overview import Overview, Worker
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
    def told(self) -> str:
        """What a screen reader says when it changes."""
        return f"{self.word}. {self.sentence}"


def state_of(seen: Overview | None, workers: Sequence[Worker] | None) -> State:
    """Return the state of a model's claims."""
    if seen is None:
        return State("unknown", _("UNKNOWN"), _("The database has not answered in time yet."))
    limits = [_limited(limits) for limits in seen.limits]
    if seen.pause is not None:
        return _paused(seen, seen.pause, limits)
    if workers is None:
        sentence = _("The switch is on; who works is not known yet.")
        return State("unknown", _("UNKNOWN"), sentence, tuple(limits))
    living = [worker for worker in workers if worker.alive]
    if not living:
        sentence = _("The switch is on, and no worker is alive.")
        return State("ready", _("READY"), sentence, tuple(limits))
    ends = _held_until(seen.throttles, living)
    lines = _held([one for one in seen.throttles if one.process in ends], len(living)) + limits
    if len(ends) == len(living):
        until = words.clock(min(ends.values()))
        return State("held", _("HELD until %(time)s") % {"time": until}, lines[0], tuple(lines[1:]))
    return State("running", _("RUNNING"), _at_work(living), tuple(lines))


def _limited(limits: ModelLimits) -> str:
    """Return what all workers keep to together, in a sentence."""
    parts = []
    if limits.rate is not None:
        parts.append(_("a rate of %(rate)s") % {"rate": limits.rate})
    if limits.max_running is not None:
        rows = words.number(limits.max_running)
        parts.append(_("%(rows)s running at once") % {"rows": rows})
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


def _at_work(living: Sequence[Worker]) -> str:
    count = len(living)
    return ngettext(
        "%(n)s worker process is alive.", "%(n)s worker processes are alive.", count
    ) % {"n": words.number(count)}


def _paused(seen: Overview, pause: Switch, limits: Sequence[str]) -> State:
    running = seen.progress.processing
    every = pause.scope == EVERY_MODEL
    word = _("PAUSING") if running else _("PAUSED")
    left = ngettext("%(n)s row still running", "%(n)s rows still running", running)
    still = [left % {"n": words.number(running)}] if running else []
    all_of_them = [_("All models are paused, not only this one.")] if every else []
    return State(
        "pausing" if running else "paused",
        word,
        pause_sentence(pause),
        (*still, *all_of_them, *limits),
        is_paused=not every,
        all_are_paused=every,
    )


def pause_sentence(pause: Switch) -> str:
    """Return ``by Ada since 14:02 “deploy”, until 15:00``."""
    by = _("by %(who)s") % {"who": pause.by} if pause.by else ""
    since = _since(None if pause.paused_at is None else as_utc(pause.paused_at))
    reason = f"“{pause.reason}”" if pause.reason else ""
    until = ""
    if pause.until is not None:
        until = _("until %(time)s") % {"time": words.clock(as_utc(pause.until))}
    sentence = " ".join(part for part in (by, since, reason) if part)
    return ", ".join(part for part in (sentence, until) if part)


def _since(moment: datetime | None) -> str:
    return "" if moment is None else _("since %(time)s") % {"time": words.clock(moment)}


def _held(throttles: Sequence[Throttle], living: int) -> list[str]:
    """Return a line for each cause of an automatic stop, with the end of the one that lasts longest."""
    by_source: dict[str, list[str]] = {}
    reasons: dict[str, str] = {}
    for throttle in throttles:
        by_source.setdefault(throttle.source, []).append(throttle.process)
        until = words.clock(as_utc(throttle.until))
        reasons.setdefault(
            throttle.source,
            _("%(reason)s, until %(time)s") % {"reason": throttle.reason, "time": until},
        )
    return [
        _("Held by %(source)s on %(processes)s: %(reason)s")
        % {
            "source": source,
            "processes": _("all processes") if len(names) >= living else listed(names, 3),
            "reason": reasons[source],
        }
        for source, names in by_source.items()
    ]
