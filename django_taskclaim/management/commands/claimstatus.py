"""``manage.py claimstatus``: how far each table has got, who works on it, and who holds what."""

from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from django.core.management.base import CommandError
from django.db import Error

from django_taskclaim.columns import has_ranges
from django_taskclaim.management.arguments import add_database, add_models, places
from django_taskclaim.management.base import ClaimCommand
from django_taskclaim.overview import Overview, Worker, overview, throttles_by_source, workers
from django_taskclaim.policy import policy_for
from django_taskclaim.ranges import strip
from django_taskclaim.wording import counted, first_line, lasting, listed, moment

#: Of the processes that are throttled for one cause that many are named.
PROCESSES_NAMED = 3

#: Of the holders of a model that many are named.
NAMED = 10

Style = Callable[[str], str]


class Command(ClaimCommand):
    """Show the overview of each model."""

    help = """Show how far the rows of each model have got, what is stopped and why, who holds rows, and who works.

Reads without locks; counting reads every row of the table once."""
    epilog = """examples:
  manage.py claimstatus                       every claimable model
  manage.py claimstatus photos.Photo
  watch manage.py claimstatus photos.Photo    again every 2 seconds

exit codes:
  0  shown
  1  a model could not be read; the message says why
  2  wrong usage"""

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_models(parser, "the models to show (default: every claimable model)")
        add_database(parser, "where the router writes each model")

    def handle(self, *, models: list[Any], database: str | None, **options: Any) -> None:
        seen, refused = [], []
        where = places(models, database)
        for model, alias in where:
            try:
                seen.append(overview(model, alias))
            except Error as error:
                refused.append(
                    f"{model._meta.label} on {alias!r} cannot be read: {first_line(error)}"
                )
        if not where:
            self.stdout.write(
                "No installed model can be claimed; add django_taskclaim.models.TaskMixin to one."
            )
        self._progress(seen)
        for one in seen:
            self._details(one)
        for alias in dict.fromkeys(one.alias for one in seen):
            self._workers(workers(alias), alias, seen)
        if refused:
            raise CommandError("\n".join([*refused, "manage.py claimdoctor says more."]))

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
        # Never "100 %" while rows are left.
        tells = progress.total and policy_for(seen.model).completion.keeps
        share = f"{int(progress.fraction * 1000) / 10:.1f} %" if tells else "-"
        done = progress.total > 0 and progress.finished == progress.total
        return [
            (name, plain),
            (f"{progress.open:,}", plain),
            (f"{progress.processing:,}", plain),
            (f"{progress.complete:,}", plain),
            (f"{progress.failed:,}", self.style.ERROR if progress.failed else plain),
            (f"{progress.paused:,}", self.style.WARNING if progress.paused else plain),
            (f"{progress.total:,}", plain),
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
            all(cell[:1].isdigit() or cell == "-" for cell in column)
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

    def _details(self, seen: Overview) -> None:
        lines = [
            *_ranges(seen),
            *self._paused(seen),
            *self._throttled(seen),
            *self._waiting(seen),
            *_done(seen),
            *self._expired(seen),
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
        since = f" since {moment(pause.paused_at)}" if pause.paused_at is not None else ""
        end = f" until {moment(pause.until)}" if pause.until is not None else ""
        reason = f": {pause.reason}" if pause.reason else ""
        yield self.style.WARNING(f"{what}{who}{since}{end}{reason}")

    def _throttled(self, seen: Overview) -> Iterator[str]:
        """Yield a line for each cause, with the reason of the process that it holds up longest."""
        for source, same in throttles_by_source(seen).items():
            who = listed([throttle.process for throttle in same], PROCESSES_NAMED)
            since = moment(min(throttle.since_at for throttle in same))
            yield self.style.WARNING(
                f"THROTTLED on {who} by {source} since {since}: {same[0].reason}, until {moment(same[0].until)}"
            )

    def _waiting(self, seen: Overview) -> Iterator[str]:
        if seen.due_since is not None:
            since = lasting(seen.now - seen.due_since)
            yield f"of the due rows that had been put off, the first has been due for {since}"
        if seen.next_due is not None:
            waiting = counted(seen.waiting - seen.unsettled, "open row")
            yield f"{waiting} not due yet, the first in {lasting(seen.next_due - seen.now)}"
        if seen.unsettled:
            yield f"{counted(seen.unsettled, 'range')} not due before transactions end that may still add rows there"

    def _expired(self, seen: Overview) -> Iterator[str]:
        if seen.expired:
            ago = (
                f", the first {lasting(seen.now - seen.expired_since)} ago"
                if seen.expired_since
                else ""
            )
            yield self.style.ERROR(
                f"{counted(seen.expired, 'lease')} expired{ago}; manage.py release_expired"
            )

    # Workers

    def _workers(self, known: Sequence[Worker], alias: str, seen: Sequence[Overview]) -> None:
        several = len({one.alias for one in seen}) > 1
        title = f"Workers on {alias}" if several else "Workers"
        now = next(one.now for one in seen if one.alias == alias)
        living = [worker for worker in known if worker.alive]
        self.stdout.write("")
        self.stdout.write(self.style.MIGRATE_LABEL(title if living else f"{title}: none alive"))
        if living:
            heads = ("NAME", "MODELS", "STATE", "HELD", "DONE", "FAILED", "SEEN", "UP")
            self._table(heads, [self._worker_row(worker, now) for worker in living], indent="  ")
        for worker in known:
            if not worker.alive:
                silence = f"{worker.name} was last seen {lasting(now - worker.seen_at)} ago and has not signed off"
                self.stdout.write("  " + self.style.WARNING(silence))

    def _worker_row(self, worker: Worker, now: Any) -> list[tuple[str, Style]]:
        return [
            (worker.name, str),
            (", ".join(worker.labels), str),
            (worker.state, self.style.WARNING if worker.state != "running" else str),
            (f"{worker.held:,}", str),
            (f"{worker.done:,}", str),
            (f"{worker.failed:,}", self.style.ERROR if worker.failed else str),
            (f"{lasting(now - worker.seen_at)} ago", str),
            (lasting(now - worker.started_at), str),
        ]


def _texts(rows: Sequence[Sequence[tuple[str, Style]]]) -> list[list[str]]:
    return [[text for text, _ in row] for row in rows]


def _done(seen: Overview) -> Iterator[str]:
    """Say why there is no share of rows that are done, where the policy keeps none."""
    if told := policy_for(seen.model).completion.told:
        yield told


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
            lease = f"next lease ends in {lasting(end - seen.now)}"
        else:
            lease = f"a lease ended {lasting(seen.now - end)} ago"
        yield f"held by {holder.name.ljust(width)}  {counted(holder.rows, 'row').rjust(9)}, {lease}"
    rest = seen.holders[NAMED:]
    if rest:
        yield f"and {counted(len(rest), 'more holder')} with {counted(sum(holder.rows for holder in rest), 'row')}"
