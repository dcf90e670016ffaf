"""What ``claimstatus`` has seen, in figures: the names that ``--fail-if`` and ``--format json`` share.

The names, the keys of the JSON and the grammar of conditions are part of the interface: new ones may come, none goes,
none changes its meaning.
"""

import json
import operator
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import Error, connections, models
from django.db.models import Min
from django.utils import timezone

from django_taskclaim.columns import claim_columns
from django_taskclaim.control.actions import NAMED
from django_taskclaim.control.commands import open_commands
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import first_line, format_duration
from django_taskclaim.handlers import handler_for
from django_taskclaim.management.arguments import duration
from django_taskclaim.management.base import lacking_tables
from django_taskclaim.monitoring.overview import (
    Failure,
    Overview,
    Worker,
    last_errors,
    overview,
)
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.conditions import never_waited
from django_taskclaim.states import Status
from django_taskclaim.tables import OVERRIDES

#: How long the questions about one model may take, and those about workers, where they are asked again and again.
AGAIN = timedelta(seconds=2)

#: The number of recent errors that are read of each model.
ERRORS = 5

#: A number of rows or workers, a duration, or None where there is none of it.
Figure = int | timedelta | None

#: The figures that are durations, and all of them.
AGES = ("oldest_due", "oldest_expired", "paused_for")
FIGURES = (
    *("open", "due", "waiting", "processing", "complete", "failed", "paused", "total"),
    *("unfinished", "expired", "throttles", "workers"),
    *AGES,
)

#: Goes up when a key of the JSON is taken away or changes its meaning; new keys come without.
VERSION = 1


@dataclass(slots=True)
class Look:
    """One look at several models: what was seen, who works there, and what could not be read."""

    seen: list[Overview] = field(default_factory=list)
    #: By database: what workers were told to do, in the control room for example, and have not done yet.
    commands: dict[str, list[Any]] = field(default_factory=dict)
    #: The recent errors of each model, the latest last, where they were asked for.
    errors: list[tuple[type[models.Model], Failure]] = field(default_factory=list)
    #: Model, database, and the message of the database.
    refused: list[tuple[type[models.Model], str, str]] = field(default_factory=list)

    @property
    def workers(self) -> dict[str, list[Worker]]:
        """By database, the processes that serve one of the models, the living first."""
        found: dict[str, dict[str, Worker]] = {}
        for seen in self.seen:
            found.setdefault(seen.alias, {}).update({one.name: one for one in seen.workers})
        return {
            alias: sorted(known.values(), key=lambda one: (not one.alive, one.name))
            for alias, known in found.items()
        }

    @property
    def refusals(self) -> list[str]:
        """What could not be read, a sentence each."""
        found: dict[str, None] = {}
        for model, alias, message in self.refused:
            lacking: list[str] = []
            with suppress(Error):
                lacking = lacking_tables(model, alias)
            usual = f"{model._meta.label} on {alias!r} cannot be read: {message}"
            found.update(dict.fromkeys(lacking or [usual]))
        return list(found)


def look_at(where: Sequence[tuple[Any, str]], *, exact: bool = True) -> Look:
    """Look at models, each on its database; one that cannot be read does not hide the others.

    Where it need not be *exact* the questions may not take long, and the recent errors are among them.
    """
    look = Look()
    for model, alias in where:
        try:
            limit = server_for(connections[alias]).time_limit(AGAIN)
            with nullcontext() if exact else limit:
                if alias not in look.commands:
                    look.commands[alias] = open_commands(alias)
                seen = overview(model, alias, exact=exact)
                look.seen.append(seen)
                if not exact:
                    look.errors += [(model, one) for one in last_errors(seen, ERRORS)]
        except Error as error:
            look.refused.append((model, alias, first_line(error)))
    return look


def figures_of(seen: Overview) -> dict[str, Figure]:
    """Return all figures of one model."""
    progress, pause = seen.progress, seen.pause
    paused_at = None if pause is None or pause.paused_at is None else as_utc(pause.paused_at)
    return {
        **{state.value: getattr(progress, state.value) for state in Status},
        "due": seen.due,
        "waiting": seen.waiting,
        "total": progress.total,
        "unfinished": progress.total - progress.finished,
        "expired": seen.expired,
        "throttles": len(seen.throttles),
        "workers": len(seen.living),
        "oldest_due": oldest_due(seen),
        "oldest_expired": _since(seen, seen.expired_since),
        "paused_for": _since(seen, paused_at),
    }


# Since when


def oldest_due(seen: Overview) -> timedelta | None:
    """Return how long the oldest due row has been due; None where no row is due, or nothing says since when.

    A row that had to wait is due since ``not_before``. For one that never had to, only a column of the user's with
    ``auto_now_add`` says when it was created.
    """
    if not seen.due:
        return None
    ages = (_since(seen, seen.due_since), _since(seen, _first_created(seen)))
    return max((age for age in ages if age is not None), default=None)


def ages_are_known(model: type[models.Model]) -> bool:
    """Say whether a column says since when a row is due that never had to wait."""
    return _created_at(model) is not None


def _created_at(model: type[models.Model]) -> Any:
    """Return the first column of the claim table that keeps when a row was created."""
    dates = [
        one
        for one in claim_columns(model).owner._meta.local_concrete_fields
        if isinstance(one, models.DateTimeField) and getattr(one, "auto_now_add", False)
    ]
    return next(iter(dates), None)


def _first_created(seen: Overview) -> Any:
    """Return when the oldest open row was created that never had to wait."""
    columns, created = claim_columns(seen.model), _created_at(seen.model)
    if created is None:
        return None
    rows: Any = ClaimQuerySet(columns.owner, using=seen.alias).open()
    first = rows.filter(never_waited(columns)).aggregate(first=Min(created.name))["first"]
    # A column of the user's: without time zones it has the project's time.
    return timezone.make_aware(first) if first is not None and timezone.is_naive(first) else first


def _since(seen: Overview, moment: Any) -> timedelta | None:
    return None if moment is None else max(seen.now - moment, timedelta(0))


# Conditions

_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a figure with a number, or with an age, and its text."""

    figure: str
    compare: Callable[[Any, Any], bool]
    value: int | timedelta
    text: str

    def reason(self, figures: Mapping[str, Figure]) -> str:
        """Return ``failed is 3 (failed>0)`` where the condition holds, else nothing; what is None fulfils none."""
        found = figures[self.figure]
        if found is None or not self.compare(found, self.value):
            return ""
        shown = format_duration(found) if isinstance(found, timedelta) else f"{found:,}"
        return f"{self.figure} is {shown} ({self.text})"


def conditions(text: str) -> list[Condition]:
    """Parse ``oldest_due>15m,failed>0``; ArgumentTypeError, in one sentence, for what is no condition."""
    return [_condition(part) for part in text.split(",")]


def _condition(text: str) -> Condition:
    match = re.fullmatch(r"\s*(\w+)\s*([<>!=]+)\s*([\w.]+)\s*", text)
    if match is None:
        raise ArgumentTypeError(
            f"{text.strip()!r} is no condition; write failed>0, or several as in oldest_due>15m,workers<1"
        )
    figure, sign, value = match.groups()
    if figure not in FIGURES:
        raise ArgumentTypeError(f"there is no figure {figure!r}; there are {', '.join(FIGURES)}")
    if sign not in _OPERATORS:
        raise ArgumentTypeError(f"{sign!r} compares nothing; there are {', '.join(_OPERATORS)}")
    written = "".join(text.split())
    return Condition(figure, _OPERATORS[sign], _value(figure, value), written)


def _value(figure: str, text: str) -> int | timedelta:
    if figure in AGES:
        return timedelta(0) if text == "0" else duration(text)
    if not (text.isascii() and text.isdecimal()):
        raise ArgumentTypeError(f"{figure} is compared with a whole number, not {text!r}")
    return int(text)


def reasons_to_fail(look: Look, asked: Sequence[Condition], *, named: bool) -> list[str]:
    """Return a sentence for each model for which conditions hold.

    Workers are asked of models that have a handler, because rows that people claim need none; of *named* ones always.
    """
    reasons = []
    for seen in look.seen:
        figures = figures_of(seen)
        if not named and handler_for(seen.model) is None:
            figures["workers"] = None
        found = [reason for one in asked if (reason := one.reason(figures))]
        if found:
            reasons.append(f"{seen.model._meta.label}: {', '.join(found)}")
    return reasons


def incomplete(look: Look) -> Iterator[str]:
    """Yield a sentence for each model with rows that are not complete."""
    for seen in look.seen:
        counts = {state: getattr(seen.progress, state.value) for state in Status}
        left = [
            f"{n:,} {NAMED.get(state, state.value)}"
            for state, n in counts.items()
            if n and state != Status.COMPLETE
        ]
        if left:
            yield f"{seen.model._meta.label} is not complete: {', '.join(left)}"


def unknown_ages(look: Look, asked: Sequence[Condition]) -> Iterator[str]:
    """Yield of which models ``oldest_due`` is asked although it covers only rows that were put off."""
    if all(one.figure != "oldest_due" for one in asked):
        return
    for seen in look.seen:
        if seen.due and not ages_are_known(seen.model):
            yield (
                f"{seen.model._meta.label}: oldest_due covers only rows that were put off; a column with auto_now_add"
                " would cover the others."
            )


# JSON


def as_json(look: Look, failing: Sequence[str]) -> str:
    """Return all that was seen, with the reasons to fail; moments are ISO 8601 in UTC, durations are seconds."""
    facts = {
        "version": VERSION,
        "at": timezone.now(),
        "models": [_model_facts(seen) for seen in look.seen],
        "workers": [
            _worker_facts(look, one, alias)
            for alias, known in look.workers.items()
            for one in known
        ],
        "failing": list(failing),
        "unreadable": [
            {"model": model._meta.label, "database": alias, "error": message}
            for model, alias, message in look.refused
        ],
    }
    return json.dumps(facts, default=_plain, indent=2)


def _model_facts(seen: Overview) -> dict[str, object]:
    pause, switch = seen.pause, seen.switch
    is_set = switch is not None and switch.set_at is not None
    return {
        "model": seen.model._meta.label,
        "database": seen.alias,
        "at": seen.now,
        "figures": figures_of(seen),
        "pause": pause and _values(pause, "scope", "by", "reason", "until", since="paused_at"),
        "throttles": [
            _values(one, "process", "source", "reason", "until", since="since_at")
            for one in seen.throttles
        ],
        "settings": _values(switch, *OVERRIDES, "set_by", "set_at") if is_set else None,
        "holders": [asdict(one) for one in seen.holders],
    }


def _worker_facts(look: Look, worker: Worker, alias: str) -> dict[str, object]:
    same = ("name", "state", "alive", "held", "done", "failed", "host", "pid", "version")
    commands = [one for one in look.commands[alias] if one.worker == worker.name]
    return {
        "database": alias,
        **_values(worker, *same, "last_error", models="labels", started="started_at"),
        "seen": worker.seen_at,
        "commands": [_values(one, "command", "by", "reason", "at") for one in commands],
    }


def _values(of: object, *names: str, **renamed: str) -> dict[str, object]:
    pairs = {**dict(zip(names, names, strict=True)), **renamed}
    return {key: getattr(of, name) for key, name in pairs.items()}


def _plain(value: object) -> object:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return as_utc(value).isoformat() if isinstance(value, datetime) else str(value)
