"""``manage.py claimstatus``: how far each table has got, who works on it, and who holds what."""

import contextlib
import io
import shutil
import textwrap
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError, OutputWrapper
from django.core.management.color import no_style
from django.db import Error, connections
from django.utils import timezone

from django_taskclaim.columns import has_ranges
from django_taskclaim.control.switch_changes import in_words
from django_taskclaim.error_text import one_line
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import counted, first_line, format_duration, format_moment, listed
from django_taskclaim.links import is_companion
from django_taskclaim.management.arguments import add_database, add_models, duration, places
from django_taskclaim.management.base import USAGE, ClaimCommand
from django_taskclaim.management.figures import (
    AGAIN,
    FIGURES,
    Look,
    ages_are_known,
    as_json,
    conditions,
    incomplete,
    look_at,
    oldest_due,
    reasons_to_fail,
    unknown_ages,
)
from django_taskclaim.management.terminal import (
    Speed,
    bar,
    draw,
    legend,
    moves_cursor,
    other_screen,
    percent,
    rows_of,
)
from django_taskclaim.monitoring.overview import Overview, Worker, first_failed, throttles_by_source
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.policy import policy_for
from django_taskclaim.ranges.strip import strip
from django_taskclaim.states import Status

#: How often --watch looks again by default.
WATCH_EVERY = timedelta(seconds=2)

#: Of the processes that are throttled for one cause that many are named.
PROCESSES_NAMED = 3

#: Of the holders of a model that many are named.
NAMED = 10

#: Of the failed companions that many are named.
FAILED_NAMED = 3

#: Seconds between two lines of a drain, or of --watch on a terminal that cannot be drawn on.
LINE_EVERY = 5.0

#: Characters of the bar in such a line, with the numbers behind it.
BAR = 50

#: How many of the last errors are shown, and how many are remembered, so that an old one is not taken for a new one.
ERRORS_SHOWN, ERRORS_KNOWN = 3, 200

Style = Callable[[str], str]


class Command(ClaimCommand):
    """Show the overview of each model."""

    writes = False
    help = """Show how far the rows of each model have got, what is stopped and why, who holds rows, and who works.

Reads without locks; counting reads every row of the table once, but for --watch, which estimates large tables (~)."""
    in_english = True
    epilog = f"""examples:
  manage.py claimstatus                       every claimable model
  manage.py claimstatus photos.Photo --watch  drawn again every 2 seconds
  manage.py claimstatus --format json
  manage.py claimstatus -v 0 --fail-if "oldest_due>15m,failed>0,workers<1"     for monitors
  manage.py claimstatus photos.Photo --require-complete && deploy

conditions of --fail-if are parted by commas and compare by > >= < <= = != a figure with a number or an age (15m):
{textwrap.indent(textwrap.fill(", ".join(FIGURES), 100), "  ")}

exit codes:
  0  shown, and nothing is as --fail-if and --require-complete forbid
  1  it is, or a model could not be read; the message says what
  2  wrong usage"""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._speed = Speed()
        #: What went wrong since the first look, each once, in the order in which it was seen.
        self._errors: dict[str, None] = {}

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
        parser.add_argument(
            "--require-complete",
            action="store_true",
            help="exit with 1 unless every row of the models is complete",
        )

    def handle(self, *, models: list[Any], database: str | None, **options: Any) -> None:
        where = places(models, database)
        if options["watch"] is not None:
            self._watch(where, options)
            return
        look = look_at(where)
        failing = reasons_to_fail(look, options["fail_if"], named=bool(models))
        if options["require_complete"]:
            failing += incomplete(look)
        if options["format"] == "json":
            self.stdout.write(as_json(look, failing))
        elif options["verbosity"]:
            self._show(look)
        for sentence in unknown_ages(look, options["fail_if"]):
            self.stderr.write(self.style.WARNING(sentence))
        self._end(look, failing)

    def _end(self, look: Look, failing: list[str]) -> None:
        """Raise what has to be known."""
        refusals = look.refusals
        if failing or refusals:
            raise CommandError("\n".join(["; ".join(failing)] * bool(failing) + refusals))

    def _show(self, look: Look) -> None:
        if not look.seen and not look.refused:
            self.stdout.write(
                "No installed model can be claimed; add django_taskclaim.models.TaskMixin to one."
            )
        self._progress(look.seen)
        for one in look.seen:
            self._details(one)
        for alias in dict.fromkeys(one.alias for one in look.seen):
            self._workers(look, alias)

    # Again and again

    def _watch(self, where: list[tuple[Any, str]], options: dict[str, Any]) -> None:
        if options["format"] != "text" or options["fail_if"] or options["require_complete"]:
            text = "--watch is for people to look at; leave out --format, --fail-if and --require-complete."
            raise CommandError(text, returncode=USAGE)
        if not self.stdout.isatty():
            raise CommandError("--watch needs a terminal to draw on.", returncode=USAGE)
        every = options["watch"]
        if not moves_cursor(self.stdout):
            self.style = no_style()
            with contextlib.suppress(KeyboardInterrupt):
                while True:
                    self._print_lines(where)
                    time.sleep(max(LINE_EVERY, every.total_seconds()))
            return
        terminal, picture = self.stdout, [""]
        with contextlib.suppress(KeyboardInterrupt), other_screen(terminal):
            while True:
                picture = self._picture(self._look(where), shutil.get_terminal_size().columns)
                head = f"claimstatus every {format_duration(every)}, {format_moment(timezone.now())}. Ctrl-C ends it."
                draw(terminal, [self.style.MIGRATE_LABEL(head), "", *picture])
                time.sleep(every.total_seconds())
        # What was seen last stays to be read.
        terminal.write("\n".join(picture))

    def _look(self, where: list[tuple[Any, str]]) -> Look:
        """Look once more; a database that is away is part of the picture."""
        look = look_at(where, exact=False)
        for seen in look.seen:
            self._speed.note(seen)
        for model, failure in look.errors:
            said = "".join(
                c if c.isprintable() else " " for c in one_line(failure.error, failure.text)
            )
            self._errors.setdefault(f"{model._meta.label} {failure.key}: {said}", None)
        for old in list(self._errors)[:-ERRORS_KNOWN]:
            del self._errors[old]
        for connection in {connections[alias] for _model, alias in where}:
            if not connection.in_atomic_block:
                connection.close_if_unusable_or_obsolete()
        return look

    def _picture(self, look: Look, width: int) -> list[str]:
        """Return the lines that show how the work goes on."""
        written = io.StringIO()
        terminal, self.stdout = self.stdout, OutputWrapper(written)
        try:
            for seen in look.seen:
                lines = [*self._bar(seen, width - 2), *self._speed.describe(seen)]
                with self._asking(seen.alias):
                    self._details(seen, lines)
            for sentence in look.refusals:
                self.stdout.write(self.style.ERROR(sentence))
            if self._errors:
                self.stdout.write("")
                self.stdout.write(self.style.MIGRATE_LABEL("Last errors"))
                for said in list(self._errors)[-ERRORS_SHOWN:]:
                    self.stdout.write(f"  {said}")
            for alias in dict.fromkeys(one.alias for one in look.seen):
                with self._asking(alias):
                    self._workers(look, alias)
        finally:
            self.stdout = terminal
        return written.getvalue().strip("\n").splitlines()

    @contextlib.contextmanager
    def _asking(self, alias: str) -> Iterator[None]:
        """Let what the block asks take a moment at most, and show what the database says against that."""
        try:
            with server_for(connections[alias]).time_limit(AGAIN):
                yield
        except Error as error:
            self.stdout.write(self.style.ERROR(first_line(error)))

    def _bar(self, seen: Overview, width: int) -> Iterator[str]:
        if not seen.progress.total:
            yield "no rows"
            return
        yield bar(seen, width, coloured=self._coloured)
        yield from legend(seen, width, coloured=self._coloured)

    @property
    def _coloured(self) -> bool:
        return self.style.ERROR("") != ""

    def _print_lines(self, where: list[tuple[Any, str]]) -> None:
        """Print how the work goes on, in one line for each model."""
        look = self._look(where)
        for seen in look.seen:
            failed = seen.progress.failed
            wrong = [f"{failed:,} failed"] if failed else []
            parts = [*wrong, *self._speed.describe(seen), *self._paused(seen)]
            share = (
                bar(seen, BAR, coloured=self._coloured) if seen.progress.total else rows_of(seen)
            )
            text = f"{seen.model._meta.label}: {', '.join([share, *parts])}"
            self.stdout.write(f"{format_moment(timezone.now())} {text}")
        for sentence in look.refusals:
            self.stdout.write(sentence)
        self.stdout.flush()

    # One line a model

    def _progress(self, seen: Sequence[Overview]) -> None:
        if not seen:
            return
        heads = ("MODEL", "OPEN", "RUNNING", "COMPLETE", "FAILED", "PAUSED", "TOTAL", "DONE")
        self._table(
            heads, [self._progress_row(one, len({s.alias for s in seen}) > 1) for one in seen]
        )

    def _progress_row(self, seen: Overview, several: bool) -> list[tuple[str, Style]]:
        progress, plain = seen.progress, str
        name = f"{seen.model._meta.label} ({seen.alias})" if several else seen.model._meta.label
        tells = progress.total and policy_for(seen.model).completion.keeps
        share = percent(progress) if tells else "-"
        done = progress.total > 0 and progress.complete == progress.total
        return [
            (name, plain),
            (_number(seen, Status.OPEN), plain),
            (_number(seen, Status.PROCESSING), plain),
            (_number(seen, Status.COMPLETE), plain),
            (_number(seen, Status.FAILED), self.style.ERROR if progress.failed else plain),
            (_number(seen, Status.PAUSED), self.style.WARNING if progress.paused else plain),
            (f"{'~' if seen.estimated else ''}{progress.total:,}", plain),
            (share, self.style.SUCCESS if done else plain),
        ]

    def _table(
        self, heads: Sequence[str], rows: Sequence[Sequence[tuple[str, Style]]], indent: str = ""
    ) -> None:
        """Write aligned columns: texts to the left, numbers to the right."""
        widths = [
            max(len(cell) for cell in column) for column in zip(heads, *_texts(rows), strict=True)
        ]
        right = [
            all(cell.lstrip("~")[:1].isdigit() or cell == "-" for cell in column)
            for column in zip(*_texts(rows), strict=True)
        ]
        line = self._line(heads, widths, right, [self.style.MIGRATE_HEADING] * len(heads))
        self.stdout.write(indent + line)
        for row in rows:
            styles = [style for _, style in row]
            self.stdout.write(indent + self._line([text for text, _ in row], widths, right, styles))

    @staticmethod
    def _line(
        cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], styles: Sequence[Style]
    ) -> str:
        padded = [
            cell.rjust(width) if to_the_right else cell.ljust(width)
            for cell, width, to_the_right in zip(cells, widths, right, strict=True)
        ]
        # Coloured after padding: colour codes have a length, but no width.
        return "  ".join(style(cell) for style, cell in zip(styles, padded, strict=True)).rstrip()

    # What else there is to know of a model

    def _details(self, seen: Overview, first: Sequence[str] = ()) -> None:
        lines = [
            *first,
            *_ranges(seen),
            *self._paused(seen),
            *self._throttled(seen),
            *(f"all together keep to: {limits}" for limits in seen.limits),
            *_settings(seen),
            *self._waiting(seen),
            *_done(seen),
            *self._expired(seen),
            *self._failed(seen),
            *_held(seen),
        ]
        if lines:
            self.stdout.write("")
            self.stdout.write(self.style.MIGRATE_LABEL(seen.model._meta.label))
            for line in lines:
                self.stdout.write(f"  {line}")

    def _paused(self, seen: Overview) -> Iterator[str]:
        pause = seen.pause
        if pause is None:
            return
        what = "PAUSED (with all models)" if pause.scope == "*" else "PAUSED"
        who = f" by {pause.by}" if pause.by else ""
        since = f" since {format_moment(pause.paused_at)}" if pause.paused_at is not None else ""
        end = f" until {format_moment(pause.until)}" if pause.until is not None else ""
        reason = f": {pause.reason}" if pause.reason else ""
        yield self.style.WARNING(f"{what}{who}{since}{end}{reason}")

    def _throttled(self, seen: Overview) -> Iterator[str]:
        """Yield a line for each cause, with the reason of the process that it holds up longest."""
        for source, same in throttles_by_source(seen).items():
            who = listed([throttle.process for throttle in same], PROCESSES_NAMED)
            since = format_moment(min(throttle.since_at for throttle in same))
            yield self.style.WARNING(
                f"THROTTLED on {who} by {source} since {since}: {same[0].reason}, until {format_moment(same[0].until)}"
            )

    def _waiting(self, seen: Overview) -> Iterator[str]:
        if Status.OPEN not in seen.estimated and ages_are_known(seen.model):
            if (age := oldest_due(seen)) is not None:
                yield f"longest due: {format_duration(age)} (oldest_due)"
        elif seen.due_since is not None:
            since = format_duration(seen.now - seen.due_since)
            yield f"longest due of the rows that were put off: {since} (oldest_due)"
        if seen.next_due is not None:
            waiting = counted(seen.waiting - seen.open_ended, "open row")
            yield f"{waiting} not due yet, the first in {format_duration(seen.next_due - seen.now)}"
        if seen.open_ended:
            yield f"{counted(seen.open_ended, 'range')} not due before transactions end that may still add rows there"

    def _expired(self, seen: Overview) -> Iterator[str]:
        if seen.expired:
            ago = (
                f", the first {format_duration(seen.now - seen.expired_since)} ago"
                if seen.expired_since
                else ""
            )
            yield self.style.ERROR(
                f"{counted(seen.expired, 'lease')} expired{ago}; manage.py release_expired"
            )

    def _failed(self, seen: Overview) -> Iterator[str]:
        """Name failed companions by what people know: the rows of another table."""
        failed = seen.progress.failed
        if not failed or not is_companion(seen.model):
            return
        names = first_failed(seen.model, seen.alias, FAILED_NAMED)
        more = [""] * max(0, failed - len(names))
        yield self.style.ERROR(f"failed: {listed([*names, *more], len(names))}")

    # Workers

    def _workers(self, look: Look, alias: str) -> None:
        known = look.workers[alias]
        title = f"Workers on {alias}" if len(look.workers) > 1 else "Workers"
        now = next(one.now for one in look.seen if one.alias == alias)
        living = [worker for worker in known if worker.alive]
        self.stdout.write("")
        self.stdout.write(self.style.MIGRATE_LABEL(title if living else f"{title}: none alive"))
        if living:
            heads = ("NAME", "MODELS", "STATE", "HELD", "DONE", "FAILED", "SEEN", "UP")
            self._table(heads, [self._worker_row(worker, now) for worker in living], indent="  ")
        for worker in known:
            if not worker.alive:
                unseen = format_duration(now - worker.seen_at)
                silence = f"{worker.name} was last seen {unseen} ago and has not signed off"
                self.stdout.write("  " + self.style.WARNING(silence))
        names = {worker.name for worker in known}
        for one in look.commands[alias]:
            if one.worker in names:
                text = f"{one.worker} was told by {one.by} at {format_moment(as_utc(one.at))} to {one.command}"
                self.stdout.write("  " + self.style.WARNING(text))

    def _worker_row(self, worker: Worker, now: Any) -> list[tuple[str, Style]]:
        return [
            (worker.name, str),
            (", ".join(worker.labels), str),
            (worker.state, self.style.WARNING if worker.state != "running" else str),
            (f"{worker.held:,}", str),
            (f"{worker.done:,}", str),
            (f"{worker.failed:,}", self.style.ERROR if worker.failed else str),
            (f"{format_duration(now - worker.seen_at)} ago", str),
            (format_duration(now - worker.started_at), str),
        ]


def _texts(rows: Sequence[Sequence[tuple[str, Style]]]) -> list[list[str]]:
    return [[text for text, _ in row] for row in rows]


def _number(seen: Overview, state: Status) -> str:
    """Return how many rows are in a state; what is estimated is marked."""
    sign = "~" if state in seen.estimated else ""
    return f"{sign}{getattr(seen.progress, state.value):,}"


def _settings(seen: Overview) -> Iterator[str]:
    """Say what replaces options of handlers and command lines, and who has set that."""
    switch = seen.switch
    if switch is None or switch.set_at is None or not switch.overrides:
        return
    who = f" by {switch.set_by}" if switch.set_by else ""
    yield f"set{who} since {format_moment(as_utc(switch.set_at))}: {in_words(switch.overrides)}"


def _done(seen: Overview) -> Iterator[str]:
    """Say why there is no share of rows that are done, where the policy keeps none."""
    if note := policy_for(seen.model).completion.note:
        yield note


def _ranges(seen: Overview) -> Iterator[str]:
    """Yield the strip of a model of ranges, from the first key to the last."""
    if not has_ranges(seen.model):
        return
    shown = strip(seen.model, seen.alias)
    yield f"{counted(shown.rows_done, 'row')} done of about {shown.rows_planned:,}"
    if shown.text:
        yield f"[{shown.text}]  # done, > running, . open, = paused, x failed"


def _held(seen: Overview) -> Iterator[str]:
    width = max((len(holder.name) for holder in seen.holders[:NAMED]), default=0)
    for holder in seen.holders[:NAMED]:
        end = holder.next_expiry
        if end is None:
            lease = "no lease"
        elif end > seen.now:
            lease = f"next lease ends in {format_duration(end - seen.now)}"
        else:
            lease = f"a lease ended {format_duration(seen.now - end)} ago"
        yield f"held by {holder.name.ljust(width)}  {counted(holder.rows, 'row').rjust(9)}, {lease}"
    rest = seen.holders[NAMED:]
    if rest:
        yield f"and {counted(len(rest), 'more holder')} with {counted(sum(holder.rows for holder in rest), 'row')}"
