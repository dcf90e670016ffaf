"""Show how far the rows of each model have got, what is stopped and why, who holds rows, and who works.

Reads without locks; counting reads every row of the table once, but for --watch, which estimates large tables (~).

Examples:
  manage.py claimstatus                       every claimable model
  manage.py claimstatus photos.Photo --watch  drawn again every 2 seconds
  manage.py claimstatus --format json
  manage.py claimstatus -v 0 --fail-if "oldest_due>15m,failed>0,workers<1"     for monitors
  manage.py claimstatus photos.Photo --require-complete && deploy

Conditions of --fail-if are parted by commas and compare by > >= < <= = != a figure with a number or an age (15m):
  open, due, waiting, processing, complete, failed, paused, total, unfinished, expired, throttles, workers, oldest_due,
  oldest_expired, paused_for

Exit codes:
  0    shown, and no condition of --fail-if holds
  1    one does, or a model could not be read; the message says what
  2    wrong usage
  130  stopped by Ctrl-C without --watch

"""

import contextlib
import json
import shutil
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from django.core.checks import WARNING
from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, Error, connections, models
from django.utils import timezone

from django_taskclaim.columns import has_ranges
from django_taskclaim.control.audit import in_words
from django_taskclaim.doctor.blockers import reasons
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import counted, first_line, format_duration, format_moment
from django_taskclaim.handlers import handler_for
from django_taskclaim.management.base import (
    USAGE,
    ClaimCommand,
    Model,
    duration,
    lacking_of,
)
from django_taskclaim.management.figures import Condition, conditions, figures_of
from django_taskclaim.models import WorkerProcess
from django_taskclaim.monitoring.errors import last_errors
from django_taskclaim.monitoring.overview import Overview, overview
from django_taskclaim.policy import policy_for
from django_taskclaim.ranges import row_counts
from django_taskclaim.states import Status

#: How often --watch looks again by default, and how long it has looked before it says how fast rows are done.
WATCH_EVERY, SPEED_AFTER = timedelta(seconds=2), timedelta(seconds=10)

#: So many holders and recent errors of a model are shown.
HOLDERS, ERRORS = 10, 3

#: The conditions that hold while a row is not complete.
UNDONE = "unfinished>0,failed>0"

#: Goes up when a key of the JSON is taken away or changes its meaning; new keys come without.
VERSION = 1

#: Tells a terminal to begin again on an empty screen.
CLEAR = "\x1b[H\x1b[2J"

PROGRESS = ("MODEL", "OPEN", "RUNNING", "COMPLETE", "FAILED", "PAUSED", "TOTAL", "DONE")
WORKERS = ("NAME", "MODELS", "STATE", "HELD", "DONE", "FAILED", "SEEN", "UP")


@dataclass(slots=True)
class Look:
    """One look at several models: what was seen, with the details for people, and what could not be read."""

    seen: list[tuple[Overview, list[str]]] = field(default_factory=list)
    #: Model, database and error, as the JSON has them.
    unreadable: list[dict[str, str]] = field(default_factory=list)

    @property
    def workers(self) -> list[WorkerProcess]:
        """The processes that serve one of the models, the living first."""
        found = {(seen.alias, one.name): one for seen, _ in self.seen for one in seen.workers}
        return sorted(found.values(), key=lambda worker: (not worker.alive, worker.name))

    @property
    def refusals(self) -> list[str]:
        """What could not be read, a sentence each."""
        lines = (line for one in self.unreadable for line in one["error"].splitlines())
        return list(dict.fromkeys(lines))


class Speed:
    """How fast the workers that serve one model alone have done its rows since the first look at them."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[datetime, int]] = {}

    def describe(self, seen: Overview) -> Iterator[str]:
        """Yield the speed and how long the rest takes, once they are known."""
        rate = 0.0
        for worker in seen.living:
            done = worker.rows_done + worker.rows_failed
            began, before = self._first.setdefault(worker.name, (seen.now, done))
            span = seen.now - began
            if span >= SPEED_AFTER and len(worker.model_labels) == 1:
                rate += (done - before) / span.total_seconds()
        if rate:
            left = timedelta(seconds=min(seen.progress.left / rate, 1e9))
            yield f"{rate:,.1f} rows/s since this began, about {format_duration(left)} left"


class Command(ClaimCommand):
    help = __doc__
    writes = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        add("--format", choices=("text", "json"), default="text", help="for people or programs")
        text = "draw it again every 2 seconds, or as often as given here, until Ctrl-C"
        add("--watch", nargs="?", type=duration, const=WATCH_EVERY, metavar="SECONDS", help=text)
        text = "exit with 1 if one of these holds for one of the models"
        fails: dict[str, Any] = {"dest": "fail_if", "default": []}
        add(
            "--fail-if",
            **fails,
            type=conditions,
            action="append",
            metavar="CONDITIONS",
            help=text,
        )
        text = f'exit with 1 if a row is not complete: short for --fail-if "{UNDONE}"'
        undone = conditions(UNDONE)
        add("--require-complete", **fails, action="append_const", const=undone, help=text)

    def handle(
        self, *, models: list[Model], fail_if: list[list[Condition]], **options: Any
    ) -> None:
        if options["watch"] is not None:
            if fail_if or options["format"] != "text" or not self.stdout.isatty():
                text = "--watch needs a terminal to draw on, and no --format or --fail-if."
                raise CommandError(text, returncode=USAGE)
            with contextlib.suppress(KeyboardInterrupt):
                self._watch(options["watch"])
            return
        look = self._look()
        failing = list(_reasons_to_fail(look, list(chain(*fail_if)), named=bool(models)))
        if options["format"] == "json":
            self.stdout.write(as_json(look, failing))
        elif options["verbosity"]:
            self.stdout.write("\n".join(self._lines(look)))
        if failing or look.unreadable:
            raise CommandError("\n".join(filter(None, ["; ".join(failing), *look.refusals])))

    def _look(self, speed: Speed | None = None) -> Look:
        """Look at the models, each on its database; one that cannot be read does not hide the others.

        Where a *speed* is measured, large tables are not counted in full.
        """
        look = Look()
        for model, alias in self.where:
            try:
                seen = overview(model, alias, exact=speed is None)
                measured = speed.describe(seen) if speed else ()
                look.seen.append((seen, [*measured, *self._details(seen)]))
            except Error as error:
                lacking = "\n".join(lacking_of([(model, alias)]))
                usual = f"{model._meta.label} on {alias!r} cannot be read: {first_line(error)}"
                facts = {"model": model._meta.label, "database": alias, "error": lacking or usual}
                look.unreadable.append(facts)
        return look

    def _watch(self, every: timedelta) -> None:
        speed = Speed()
        while True:
            look = self._look(speed)
            head = f"claimstatus every {format_duration(every)}, {format_moment(timezone.now())}. Ctrl-C ends it."
            refused = map(self.style.ERROR, look.refusals)
            lines = [self.style.MIGRATE_LABEL(head), "", *self._lines(look), *refused]
            # What the screen has no room for is left out: scrolled away, it would stay above.
            picture = "\n".join(lines[: shutil.get_terminal_size().lines - 1])
            self.stdout.write(f"{CLEAR}{picture}")
            self.stdout.flush()
            for alias in {alias for _, alias in self.where}:
                connections[alias].close_if_unusable_or_obsolete()
            time.sleep(every.total_seconds())

    def _lines(self, look: Look) -> Iterator[str]:
        """Yield what is shown."""
        if not look.seen:
            return
        yield from self._table(1, PROGRESS, *(_progress_cells(seen) for seen, _ in look.seen))
        for seen, details in look.seen:
            if details:
                yield from ("", self.style.MIGRATE_LABEL(seen.model._meta.label))
                yield from (f"  {line}" for line in details)
        alive = any(worker.alive for worker in look.workers)
        yield from ("", self.style.MIGRATE_LABEL("Workers" if alive else "Workers: none alive"))
        if look.workers:
            now = look.seen[0][0].now
            cells = [_worker_cells(worker, now) for worker in look.workers]
            yield from (f"  {line}" for line in self._table(3, WORKERS, *cells))

    def _table(self, left: int, *rows: Sequence[str]) -> Iterator[str]:
        """Yield aligned columns under the heads in the first row, so many to the *left* and the others to the right."""
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for number, cells in enumerate(rows):
            padded = [
                cell.ljust(width) if place < left else cell.rjust(width)
                for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ]
            line = "  ".join(padded)
            yield line if number else self.style.MIGRATE_HEADING(line)

    def _details(self, seen: Overview) -> Iterator[str]:
        """Yield what else there is to know of a model."""
        if has_ranges(seen.model):
            planned, done = row_counts(seen.model, seen.alias)
            yield f"{counted(done, 'row')} done of about {planned:,}"
        for limits in seen.limits:
            yield f"all together keep to: {limits}"
        if seen.switch is not None and seen.switch.overrides:
            who = seen.switch.set_by or "somebody"
            yield f"set by {who}: {in_words(seen.switch.overrides)}"
        if seen.due_since is not None:
            yield f"longest due: {format_duration(seen.now - seen.due_since)} (oldest_due)"
        if note := policy_for(seen.model).completion.note:
            yield note
        for finding in reasons(seen):
            if finding.level >= WARNING:
                yield from self.finding_lines(finding)
        for error in last_errors(seen, ERRORS)[-ERRORS:]:
            yield "last error: " + "".join(c if c.isprintable() else " " for c in error)
        for holder in seen.holders[:HOLDERS]:
            end = holder.next_expiry
            lease = "no lease" if end is None else f"a lease ends at {format_moment(end)}"
            yield f"held by {holder.name}: {counted(holder.rows, 'row')}, {lease}"
        if rest := seen.holders[HOLDERS:]:
            rows = counted(sum(holder.rows for holder in rest), "row")
            yield f"and {counted(len(rest), 'more holder')} with {rows}"


def _reasons_to_fail(look: Look, asked: Sequence[Condition], *, named: bool) -> Iterator[str]:
    """Yield a sentence for each model for which conditions hold.

    Workers are asked of models that have a handler, because rows that people claim need none; of *named* ones always.
    """
    for seen, _ in look.seen:
        figures = figures_of(seen)
        if not named and handler_for(seen.model) is None:
            figures["workers"] = None
        if found := [reason for one in asked if (reason := one.reason(figures))]:
            yield f"{seen.model._meta.label}: {', '.join(found)}"


def _progress_cells(seen: Overview) -> list[str]:
    progress, label = seen.progress, seen.model._meta.label
    states = (Status.OPEN, Status.PROCESSING, Status.COMPLETE, Status.FAILED, Status.PAUSED)
    share = progress.complete / progress.total if progress.total else 0
    tells = progress.total and policy_for(seen.model).completion.keeps
    return [
        label if seen.alias == DEFAULT_DB_ALIAS else f"{label} ({seen.alias})",
        *(f"{'~' * (one in seen.estimated)}{getattr(progress, one.value):,}" for one in states),
        f"{'~' * bool(seen.estimated)}{progress.total:,}",
        # Rounded down: never 100 % while other rows are there.
        f"{int(share * 1000) / 10:.1f} %" if tells else "-",
    ]


def _worker_cells(worker: WorkerProcess, now: datetime) -> list[str]:
    return [
        worker.name,
        ", ".join(worker.model_labels),
        worker.state if worker.alive else "silent",
        *(f"{number:,}" for number in (worker.rows_held, worker.rows_done, worker.rows_failed)),
        f"{format_duration(now - as_utc(worker.seen_at))} ago",
        format_duration(now - as_utc(worker.started_at)),
    ]


def as_json(look: Look, failing: Sequence[str]) -> str:
    """Return all that was seen, with the reasons to fail; moments are ISO 8601 in UTC, durations are seconds."""
    facts = {
        "version": VERSION,
        "at": timezone.now(),
        "models": [
            {
                "model": seen.model._meta.label,
                "database": seen.alias,
                "at": seen.now,
                "figures": figures_of(seen),
                "pause": seen.pause,
                "switch": seen.switch,
                "throttles": seen.throttles,
                "holders": seen.holders,
            }
            for seen, _ in look.seen
        ],
        "workers": [
            {
                **_stored(worker),
                "labels": worker.model_labels,
                "alive": worker.alive,
                "database": worker._state.db,
            }
            for worker in look.workers
        ],
        "failing": failing,
        "unreadable": look.unreadable,
    }
    return json.dumps(facts, default=_plain, indent=2)


def _plain(value: Any) -> object:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return as_utc(value).isoformat()
    if isinstance(value, models.Model):
        return _stored(value)
    return asdict(value)


def _stored(row: models.Model) -> dict[str, object]:
    return {one.name: getattr(row, one.attname) for one in row._meta.concrete_fields}
