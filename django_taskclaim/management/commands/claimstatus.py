"""Show how far the rows of each model have got, what is stopped and why, who holds rows, and who works.

Reads without locks. Large tables are estimated (~), unless --format json or a condition needs the exact numbers.

Examples:
  manage.py claimstatus                       every claimable model
  manage.py claimstatus photos.Photo --watch  drawn again every 2 seconds
  manage.py claimstatus --format json
  manage.py claimstatus -v 0 --fail-if "oldest_due>15m,failed>0,workers<1"     for monitors
  manage.py claimstatus photos.Photo --require-complete && deploy

Conditions of --fail-if are separated by commas and compare by > >= < <= = != a figure with a number or an age (15m):
  open, processing, complete, failed, paused, unknown, total, unfinished, due, waiting, expired, throttles, workers,
  oldest_due, oldest_expired, paused_for

Exit codes:
  0    shown, and no condition of --fail-if holds
  1    one does, or a database refused; the message says what
  2    wrong usage, or tables are not there yet
  130  stopped by Ctrl-C without --watch

"""

import contextlib
import json
import re
import shutil
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter, eq, ge, gt, le, lt, ne
from typing import Any, NamedTuple

from django.core.checks import WARNING
from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, Error, close_old_connections
from django.utils import timezone

from django_taskclaim.columns import has_ranges
from django_taskclaim.control.audit import overrides_text
from django_taskclaim.doctor import reasons
from django_taskclaim.error_text import one_line
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import counted, format_duration, format_moment, plain, with_source
from django_taskclaim.handlers import handler_for
from django_taskclaim.management.base import ClaimCommand, UsageError, duration, lacking
from django_taskclaim.models import WorkerProcess
from django_taskclaim.monitoring.errors import latest_failures
from django_taskclaim.monitoring.overview import Overview, overview
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.ranges import row_counts
from django_taskclaim.states import UNKNOWN, Status

#: So many holders and failed rows of a model are shown.
HOLDERS, ERRORS = 10, 3

#: Clears the screen, begins at its top, and has the terminal cut off what is too long for a line; and no longer.
CLEAR, WRAP = "\033[2J\033[H\033[?7l", "\033[?7h"

#: The conditions that hold while a row is not complete.
UNDONE = "unfinished>0,failed>0"

PROGRESS = ("MODEL", "OPEN", "RUNNING", "COMPLETE", "FAILED", "PAUSED", "TOTAL", "DONE")
WORKERS = ("NAME", "MODELS", "HELD", "DONE", "FAILED", "SEEN", "UP")


# The figures: what --fail-if compares and --format json contains. Their names and the grammar of conditions are part of
# the interface: new ones may come, none goes, none changes its meaning.

#: A number of rows or workers, a duration, or None where there is none of it.
Figure = int | timedelta | None

FIGURES: Mapping[str, Callable[[Overview], Figure]] = {
    **{state: attrgetter(f"progress.{state}") for state in (*Status.values, UNKNOWN, "total")},
    "unfinished": lambda seen: seen.progress.total - seen.progress.finished,
    "due": attrgetter("due"),
    "waiting": attrgetter("waiting"),
    "expired": attrgetter("expired"),
    "throttles": lambda seen: len(seen.throttles),
    # Rows that people claim need none.
    "workers": lambda seen: len(seen.living) if handler_for(seen.model) else None,
    "oldest_due": lambda seen: _age(seen, seen.due_since),
    "oldest_expired": lambda seen: _age(seen, seen.expired_since),
    "paused_for": lambda seen: _age(seen, seen.pause.paused_at if seen.pause else None),
}
#: Those of them that are durations.
AGES = ("oldest_due", "oldest_expired", "paused_for")


def values_of(seen: Overview) -> dict[str, Figure]:
    """Return all figures of one model."""
    return {name: read(seen) for name, read in FIGURES.items()}


def _age(seen: Overview, since: datetime | None) -> timedelta | None:
    return None if since is None else max(seen.now - as_utc(since), timedelta(0))


COMPARISONS = {">": gt, ">=": ge, "<": lt, "<=": le, "=": eq, "!=": ne}


class Condition(NamedTuple):
    """One comparison of a figure with a number, or with an age."""

    text: str
    figure: str
    holds: Callable[[Any, Any], bool]
    value: int | timedelta


def conditions(text: str) -> list[Condition]:
    """Parse ``oldest_due>15m,failed>0``; ArgumentTypeError, in one sentence, for what is no condition."""
    found = []
    for part in "".join(text.split()).split(","):
        match = re.fullmatch(r"(\w+)([<>]=?|!?=)([\w.]+)", part)
        figure, sign, value = match.groups() if match else ("", "", "")
        limit: int | timedelta
        if figure in AGES:
            limit = timedelta(0) if value == "0" else duration(value)
        elif figure in FIGURES and value.isascii() and value.isdecimal():
            limit = int(value)
        else:
            raise ArgumentTypeError(
                f"{part!r} is no condition; compare a figure with a whole number or an age, as in failed>0 or"
                f" oldest_due>15m. The figures are {', '.join(FIGURES)}"
            )
        found.append(Condition(part, figure, COMPARISONS[sign], limit))
    return found


# The command


class Command(ClaimCommand):
    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        add("--format", choices=("text", "json"), default="text", help="for people or programs")
        text = "draw it again every 2 seconds, or as often as given here, until Ctrl-C"
        every = timedelta(seconds=2)
        add("--watch", nargs="?", type=duration, const=every, metavar="SECONDS", help=text)
        text = "exit with 1 if one of these holds for one of the models"
        fails: dict[str, Any] = {"type": conditions, "action": "extend", "default": []}
        add("--fail-if", **fails, metavar="CONDITIONS", help=text)
        text = f'exit with 1 if a row is not complete: short for --fail-if "{UNDONE}"'
        add("--require-complete", action="store_true", help=text)

    def handle(self, *, fail_if: list[Condition], **options: Any) -> None:
        asked = [*fail_if, *(conditions(UNDONE) if options["require_complete"] else [])]
        is_json = options["format"] == "json"
        if options["watch"] is not None:
            if asked or is_json or not self.stdout.isatty():
                raise UsageError("--watch needs a terminal, and no --format or --fail-if.")
            with contextlib.suppress(KeyboardInterrupt):
                self._watch(options["watch"])
            return
        looks = self._look(exact=is_json or bool(asked))
        failing = list(_reasons_to_fail(looks, asked))
        if is_json:
            facts = {"models": [_facts(seen) for seen in looks], "failing": failing}
            # Durations are seconds.
            self.stdout.write(json.dumps(facts, default=timedelta.total_seconds, indent=2))
        elif options["verbosity"]:
            self.stdout.write("\n".join(self._lines(looks)))
        if failing:
            raise CommandError("\n".join(failing))

    def _watch(self, every: timedelta) -> None:
        how = f"every {format_duration(every)}. Ctrl-C ends it."
        while True:
            head = self.style.MIGRATE_LABEL(f"{format_moment(timezone.now())}, {how}")
            try:
                lines = [head, "", *self._lines(self._look(exact=False))]
            except Error as error:
                known = (line for one in lacking(self.where) for line in (one.msg, one.hint))
                lines = [head, "", *(dict.fromkeys(known) or map(plain, str(error).splitlines()))]
            # What the screen has no room for is left out: scrolled away, it would stay above.
            shown = "\n".join(lines[: shutil.get_terminal_size().lines - 1])
            self.stdout.write(f"{CLEAR}{shown}{WRAP}")
            self.stdout.flush()
            # Unless the database has ended them.
            close_old_connections()
            time.sleep(every.total_seconds())

    def _look(self, *, exact: bool) -> list[Overview]:
        return [overview(model, alias, exact=exact) for model, alias in self.where]

    def _lines(self, looks: Sequence[Overview]) -> Iterator[str]:
        yield from self._table(1, PROGRESS, *map(_progress_cells, looks))
        for seen in looks:
            if details := list(self._details(seen)):
                yield from ("", self.style.MIGRATE_LABEL(seen.model._meta.label))
                yield from (f"  {line}" for line in details)
        # A process that serves several of the models is one line.
        workers = {(seen.alias, one.name): (one, seen.now) for seen in looks for one in seen.living}
        yield from ("", self.style.MIGRATE_LABEL("Workers" if workers else "Workers: none alive"))
        if workers:
            cells = [_worker_cells(*pair) for pair in workers.values()]
            yield from (f"  {line}" for line in self._table(2, WORKERS, *cells))

    def _table(self, left: int, *rows: Sequence[str]) -> Iterator[str]:
        """Yield aligned columns under the heads in the first row, so many to the *left* and the others to the right."""
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        places = [f"{{:{'<' if n < left else '>'}{width}}}" for n, width in enumerate(widths)]
        head, *lines = ("  ".join(places).format(*map(plain, cells)) for cells in rows)
        yield from (self.style.MIGRATE_HEADING(head), *lines)

    def _details(self, seen: Overview) -> Iterator[str]:
        """Yield what else there is to know of a model."""
        if has_ranges(seen.model):
            planned, done = row_counts(seen.model, seen.alias)
            yield f"{counted(done, 'row')} done of about {planned:,}"
        if seen.switch.overrides:
            who = seen.switch.set_by or "somebody"
            yield f"set by {plain(who)}: {overrides_text(seen.switch.overrides)}"
        if seen.due_since is not None:
            yield f"longest due: {format_duration(seen.now - seen.due_since)} (oldest_due)"
        if note := policy_for(seen.model).completion.note:
            yield note
        for finding in reasons(seen):
            if finding.level >= WARNING:
                yield from self.finding_lines(finding)
        for row in latest_failures(ClaimQuerySet(seen.model, using=seen.alias), ERRORS):
            if text := one_line(row.error, row.text):
                yield plain(f"failed: {with_source(str(row.key), row.source)}: {text}")
        for holder in seen.holders[:HOLDERS]:
            end = holder.next_expiry
            lease = "no lease" if end is None else f"a lease ends at {format_moment(end)}"
            yield f"held by {plain(holder.name)}: {counted(holder.rows, 'row')}, {lease}"
        if (more := len(seen.holders) - HOLDERS) > 0:
            yield f"and by {more:,} more"


def _reasons_to_fail(looks: Sequence[Overview], asked: Sequence[Condition]) -> Iterator[str]:
    """Yield a sentence for each model for which conditions hold."""
    for seen in looks:
        figures = values_of(seen)
        found = [
            f"{one.figure} is {_shown(value)} ({one.text})"
            for one in asked
            if (value := figures[one.figure]) is not None and one.holds(value, one.value)
        ]
        if found:
            yield f"{seen.model._meta.label}: {', '.join(found)}"


def _shown(figure: int | timedelta) -> str:
    return format_duration(figure) if isinstance(figure, timedelta) else f"{figure:,}"


def _progress_cells(seen: Overview) -> list[str]:
    progress, label = seen.progress, seen.model._meta.label
    share = progress.complete / progress.total if progress.total else 0
    tells = progress.total and not policy_for(seen.model).completion.note
    return [
        label if seen.alias == DEFAULT_DB_ALIAS else f"{label} ({seen.alias})",
        *(f"{'~' * (one in seen.progress.estimated)}{getattr(progress, one):,}" for one in Status),
        f"{'~' * bool(seen.progress.estimated)}{progress.total:,}",
        # Rounded down: never 100 % while other rows are there.
        f"{int(share * 1000) / 10:.1f} %" if tells else "-",
    ]


def _worker_cells(worker: WorkerProcess, now: datetime) -> list[str]:
    return [
        worker.name,
        ", ".join(worker.labels),
        *(f"{number:,}" for number in (worker.rows_held, worker.rows_done, worker.rows_failed)),
        f"{format_duration(now - as_utc(worker.seen_at))} ago",
        format_duration(now - as_utc(worker.started_at)),
    ]


def _facts(seen: Overview) -> dict[str, object]:
    """Return what --format json says of one model."""
    label, at = seen.model._meta.label, seen.now.isoformat()
    return {"model": label, "database": seen.alias, "at": at, "figures": values_of(seen)}
