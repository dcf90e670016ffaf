"""``manage.py claimstatus``: how far each table has got, who works on it, and who holds what."""

import contextlib
import json
import textwrap
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandError
from django.db import Error, connections, models
from django.utils import timezone

from django_taskclaim.columns import has_ranges
from django_taskclaim.control.switch_changes import in_words
from django_taskclaim.doctor import Finding, Kind
from django_taskclaim.doctor.blockers import reasons
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import counted, first_line, format_duration, format_moment
from django_taskclaim.handlers import handler_for
from django_taskclaim.management.base import (
    USAGE,
    ClaimCommand,
    add_database,
    add_models,
    duration,
    lacking_tables,
    places,
)
from django_taskclaim.management.figures import FIGURES, Condition, conditions, figures_of
from django_taskclaim.management.terminal import Speed, can_draw_on, screen
from django_taskclaim.monitoring.overview import (
    Overview,
    Worker,
    created_column,
    last_errors,
    overview,
)
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.policy import policy_for
from django_taskclaim.ranges.manager import Strip, strip
from django_taskclaim.states import Status

#: How often --watch looks again by default, and how long the questions about one model may take then.
WATCH_EVERY = PATIENCE = timedelta(seconds=2)

#: So many holders and recent errors of a model are shown.
HOLDERS, ERRORS = 10, 3

#: Goes up when a key of the JSON is taken away or changes its meaning; new keys come without.
VERSION = 1

PROGRESS = ("MODEL", "OPEN", "RUNNING", "COMPLETE", "FAILED", "PAUSED", "TOTAL", "DONE")
WORKERS = ("NAME", "MODELS", "STATE", "HELD", "DONE", "FAILED", "SEEN", "UP")


@dataclass(slots=True)
class Seen:
    """What is shown of one model."""

    rows: Overview
    findings: list[Finding]
    errors: list[str]
    ranges: Strip | None


@dataclass(slots=True)
class Look:
    """One look at several models: what was seen, and what could not be read."""

    seen: list[Seen] = field(default_factory=list)
    #: Model, database, and the message of the database.
    refused: list[tuple[type[models.Model], str, str]] = field(default_factory=list)

    @property
    def workers(self) -> dict[str, list[Worker]]:
        """By database, the processes that serve one of the models, the living first."""
        found: dict[str, dict[str, Worker]] = {}
        for one in self.seen:
            workers = {worker.name: worker for worker in one.rows.workers}
            found.setdefault(one.rows.alias, {}).update(workers)
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
            with contextlib.suppress(Error):
                lacking = lacking_tables(model, alias)
            usual = f"{model._meta.label} on {alias!r} cannot be read: {message}"
            found.update(dict.fromkeys(lacking or [usual]))
        return list(found)


class Command(ClaimCommand):
    """Show the overview of each model."""

    writes = False
    help = """Show how far the rows of each model have got, what is stopped and why, who holds rows, and who works.

Reads without locks; counting reads every row of the table once, but for --watch, which estimates large tables (~)."""
    epilog = f"""examples:
  manage.py claimstatus                       every claimable model
  manage.py claimstatus photos.Photo --watch  drawn again every 2 seconds
  manage.py claimstatus --format json
  manage.py claimstatus -v 0 --fail-if "oldest_due>15m,failed>0,workers<1"     for monitors
  manage.py claimstatus photos.Photo --fail-if "unfinished>0,failed>0" && deploy

conditions of --fail-if are parted by commas and compare by > >= < <= = != a figure with a number or an age (15m):
{textwrap.indent(textwrap.fill(", ".join(FIGURES), 100), "  ")}"""
    exit_codes = """  0  shown, and no condition of --fail-if holds
  1  one does, or a model could not be read; the message says what
  2  wrong usage"""

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_models(parser, "the models to show (default: every claimable model)")
        add_database(parser, "where the router writes each model")
        parser.add_argument(
            "--format", choices=("text", "json"), default="text", help="for people, or for programs"
        )
        parser.add_argument(
            "--watch",
            nargs="?",
            type=duration,
            const=WATCH_EVERY,
            metavar="SECONDS",
            help="draw it again every 2 seconds, or as often as given here, until Ctrl-C",
        )
        parser.add_argument(
            "--fail-if",
            type=conditions,
            action="extend",
            default=[],
            metavar="CONDITIONS",
            help="exit with 1 if one of these holds for one of the models",
        )

    def handle(self, *, models: list[Any], database: str | None, **options: Any) -> None:
        where, asked = places(models, database), options["fail_if"]
        if options["watch"] is not None:
            if asked or options["format"] != "text" or not can_draw_on(self.stdout):
                text = "--watch needs a terminal to draw on, and no --format or --fail-if."
                raise CommandError(text, returncode=USAGE)
            self._watch(where, options["watch"])
            return
        look = look_at(where)
        failing = list(_reasons_to_fail(look, asked, named=bool(models)))
        if options["format"] == "json":
            self.stdout.write(as_json(look, failing))
        elif options["verbosity"]:
            self.stdout.write("\n".join(self._lines(look)))
        if any(one.figure == "oldest_due" for one in asked):
            self._warn_of_unknown_ages(look)
        if failing or look.refused:
            raise CommandError("\n".join(["; ".join(failing)] * bool(failing) + look.refusals))

    def _warn_of_unknown_ages(self, look: Look) -> None:
        for seen in (one.rows for one in look.seen):
            if seen.due and created_column(seen.model) is None:
                text = (
                    f"{seen.model._meta.label}: oldest_due covers only rows that were put off; a column with"
                    " auto_now_add would cover the others."
                )
                self.stderr.write(self.style.WARNING(text))

    def _watch(self, where: list[tuple[Any, str]], every: timedelta) -> None:
        speed, lines = Speed(), [""]
        with contextlib.suppress(KeyboardInterrupt), screen(self.stdout) as draw:
            while True:
                look = look_at(where, exact=False)
                refused = map(self.style.ERROR, look.refusals)
                lines = [*self._lines(look, speed), *refused]
                head = f"claimstatus every {format_duration(every)}, {format_moment(timezone.now())}. Ctrl-C ends it."
                draw([self.style.MIGRATE_LABEL(head), "", *lines])
                for connection in {connections[alias] for _model, alias in where}:
                    if not connection.in_atomic_block:
                        connection.close_if_unusable_or_obsolete()
                time.sleep(every.total_seconds())
        # What was seen last stays to be read.
        self.stdout.write("\n".join(lines))

    def _lines(self, look: Look, speed: Speed | None = None) -> Iterator[str]:
        """Yield what is shown, with the *speed* of each model where one is measured."""
        workers = look.workers
        if look.seen:
            rows = [_progress_cells(one.rows, several=len(workers) > 1) for one in look.seen]
            yield from self._table(PROGRESS, rows)
        elif not look.refused:
            yield "No installed model can be claimed; add django_taskclaim.models.TaskMixin to one."
        for one in look.seen:
            about = [speed.describe(one.rows)] if speed else []
            if details := [*filter(None, about), *self._details(one)]:
                yield from ("", self.style.MIGRATE_LABEL(one.rows.model._meta.label))
                yield from (f"  {line}" for line in details)
        now = {one.rows.alias: one.rows.now for one in look.seen}
        for alias, known in workers.items():
            title = f"Workers on {alias}" if len(workers) > 1 else "Workers"
            alive = any(worker.alive for worker in known)
            yield from ("", self.style.MIGRATE_LABEL(title if alive else f"{title}: none alive"))
            if known:
                cells = [_worker_cells(worker, now[alias]) for worker in known]
                yield from (f"  {line}" for line in self._table(WORKERS, cells))

    def _table(self, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
        """Yield aligned columns: texts to the left, numbers to the right."""
        columns = list(zip(*rows, strict=True))
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        right = [all(c.lstrip("~")[:1].isdigit() or c == "-" for c in cells) for cells in columns]
        for cells in (heads, *rows):
            padded = [
                cell.rjust(width) if to_the_right else cell.ljust(width)
                for cell, width, to_the_right in zip(cells, widths, right, strict=True)
            ]
            line = "  ".join(padded).rstrip()
            yield self.style.MIGRATE_HEADING(line) if cells is heads else line

    def _details(self, one: Seen) -> Iterator[str]:
        """Yield what else there is to know of a model."""
        seen = one.rows
        if one.ranges is not None:
            shown = one.ranges
            yield f"{counted(shown.rows_done, 'row')} done of about {shown.rows_planned:,}"
            if shown.text:
                yield f"[{shown.text}]  # done, > running, . open, = paused, x failed"
        for limits in seen.limits:
            yield f"all together keep to: {limits}"
        if seen.switch is not None and seen.switch.set_at is not None and seen.switch.overrides:
            who = f" by {seen.switch.set_by}" if seen.switch.set_by else ""
            since = format_moment(seen.switch.set_at)
            yield f"set{who} since {since}: {in_words(seen.switch.overrides)}"
        if seen.due_since is not None:
            yield f"longest due: {format_duration(seen.now - seen.due_since)} (oldest_due)"
        if note := policy_for(seen.model).completion.note:
            yield note
        style = {Kind.PROBLEM: self.style.ERROR, Kind.NOTE: self.style.WARNING}
        for finding in one.findings:
            if finding.kind in style:
                yield style[finding.kind](finding.message)
                if finding.advice:
                    yield f"  {finding.advice}"
        for error in one.errors:
            yield "last error: " + "".join(c if c.isprintable() else " " for c in error)
        width = max((len(holder.name) for holder in seen.holders[:HOLDERS]), default=0)
        for holder in seen.holders[:HOLDERS]:
            end = holder.next_expiry
            lease = "no lease" if end is None else f"a lease ends at {format_moment(end)}"
            rows = counted(holder.rows, "row").rjust(9)
            yield f"held by {holder.name.ljust(width)}  {rows}, {lease}"
        if rest := seen.holders[HOLDERS:]:
            rows = counted(sum(holder.rows for holder in rest), "row")
            yield f"and {counted(len(rest), 'more holder')} with {rows}"


def look_at(where: Sequence[tuple[Any, str]], *, exact: bool = True) -> Look:
    """Look at models, each on its database; one that cannot be read does not hide the others.

    Where it need not be *exact* the questions may not take long.
    """
    look = Look()
    for model, alias in where:
        limit = server_for(connections[alias]).time_limit(PATIENCE)
        try:
            with contextlib.nullcontext() if exact else limit:
                seen = overview(model, alias, exact=exact)
                ranges = strip(model, alias) if has_ranges(model) else None
                errors = last_errors(seen, ERRORS)[-ERRORS:]
                look.seen.append(Seen(seen, list(reasons(seen)), errors, ranges))
        except Error as error:
            look.refused.append((model, alias, first_line(error)))
    return look


def _reasons_to_fail(look: Look, asked: Sequence[Condition], *, named: bool) -> Iterator[str]:
    """Yield a sentence for each model for which conditions hold.

    Workers are asked of models that have a handler, because rows that people claim need none; of *named* ones always.
    """
    for seen in (one.rows for one in look.seen):
        figures = figures_of(seen)
        if not named and handler_for(seen.model) is None:
            figures["workers"] = None
        if found := [reason for one in asked if (reason := one.reason(figures))]:
            yield f"{seen.model._meta.label}: {', '.join(found)}"


def _progress_cells(seen: Overview, *, several: bool) -> list[str]:
    progress, label = seen.progress, seen.model._meta.label
    states = (Status.OPEN, Status.PROCESSING, Status.COMPLETE, Status.FAILED, Status.PAUSED)
    share = progress.complete / progress.total if progress.total else 0
    tells = progress.total and policy_for(seen.model).completion.keeps
    return [
        f"{label} ({seen.alias})" if several else label,
        *(f"{'~' * (one in seen.estimated)}{getattr(progress, one.value):,}" for one in states),
        f"{'~' * bool(seen.estimated)}{progress.total:,}",
        # Rounded down: never 100 % while other rows are there.
        f"{int(share * 1000) / 10:.1f} %" if tells else "-",
    ]


def _worker_cells(worker: Worker, now: datetime) -> list[str]:
    return [
        worker.name,
        ", ".join(worker.labels),
        worker.state if worker.alive else "silent",
        *(f"{number:,}" for number in (worker.held, worker.done, worker.failed)),
        f"{format_duration(now - worker.seen_at)} ago",
        format_duration(now - worker.started_at),
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
                **{
                    name: getattr(seen, name)
                    for name in ("pause", "throttles", "switch", "holders")
                },
            }
            for seen in (one.rows for one in look.seen)
        ],
        "workers": [
            {"database": alias, **asdict(worker)}
            for alias, known in look.workers.items()
            for worker in known
        ],
        "failing": failing,
        "unreadable": [
            {"model": model._meta.label, "database": alias, "error": message}
            for model, alias, message in look.refused
        ],
    }
    return json.dumps(facts, default=_plain, indent=2)


def _plain(value: Any) -> object:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return as_utc(value).isoformat()
    if isinstance(value, models.Model):
        return {one.name: getattr(value, one.attname) for one in value._meta.concrete_fields}
    return asdict(value)
