"""Why nothing is moving, in sentences."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.db import models
from django.db.models import Count

from django_taskclaim import conf
from django_taskclaim.columns import claim_columns
from django_taskclaim.doctor.findings import Finding
from django_taskclaim.handlers import handler_for
from django_taskclaim.links import is_companion, source_link
from django_taskclaim.overview import Overview, overview, throttles_by_source, workers
from django_taskclaim.querysets import ClaimQuerySet, CompanionQuerySet
from django_taskclaim.states import Status
from django_taskclaim.wording import counted, lasting, listed, moment


def why_nothing_moves(model: type[models.Model], alias: str) -> Iterator[Finding]:
    """Yield every reason for which rows of *model* stay where they are, or that work goes on."""
    yield from reasons(overview(model, alias))
    yield from _orphaned(model, alias)


def _orphaned(model: type[models.Model], alias: str) -> Iterator[Finding]:
    """Tell of companions whose source is gone, where their own database knows: one subquery, as dear as a count."""
    if not is_companion(model) or source_link(model).alias_beside(alias) != alias:
        return
    orphans = CompanionQuerySet(model, using=alias).orphans().count()
    if orphans:
        yield Finding.note(
            f"{counted(orphans, 'row')} without a source.",
            f"manage.py claimpopulate {model._meta.label} --remove-orphans",
        )


def reasons(seen: Overview) -> Iterator[Finding]:
    """Yield the same of what was seen before; estimates are told as such."""
    found = [
        *_paused(seen),
        *_throttled(seen),
        *_expired(seen),
        *_waiting(seen),
        *_held(seen),
        *_nobody_works(seen),
        *_hidden(seen),
        *_set_aside(seen),
        *_failed(seen),
        *_nothing_to_do(seen),
    ]
    if not found:
        due = _rows(seen, seen.due, Status.OPEN)
        found = [Finding.fine(f"{due} due, and workers are alive.")]
    yield from found


def _rows(seen: Overview, number: int, state: Status, what: str = "row") -> str:
    """Return ``1,204 rows``, or ``About 1,200,000 rows`` where that is an estimate."""
    if state not in seen.estimated:
        return counted(number, what)
    digits = max(0, len(str(number)) - 2)
    return f"About {counted(round(number, -digits), what)}"


def _paused(seen: Overview) -> Iterator[Finding]:
    pause = seen.pause
    if pause is None:
        return
    everything = pause.scope == "*"
    since = "" if pause.paused_at is None else f" since {moment(pause.paused_at)}"
    end = f", until {moment(pause.until)}" if pause.until is not None else ""
    reason = f": {pause.reason}" if pause.reason else ""
    what = "All models are" if everything else f"{seen.model._meta.label} is"
    yield Finding.note(
        f"{what} paused by {pause.by or 'somebody'}{since}{end}{reason}. Nothing is claimed meanwhile.",
        f"manage.py claimresume {'--all' if everything else seen.model._meta.label}",
    )


def _throttled(seen: Overview) -> Iterator[Finding]:
    label = seen.model._meta.label
    for source, same in throttles_by_source(seen).items():
        who = listed([throttle.process for throttle in same], 3)
        yield Finding.note(
            f"{label} is throttled on {who} by {source}: {same[0].reason}, until {moment(same[0].until)}.",
            "It ends by itself, when its cause does.",
        )


def _expired(seen: Overview) -> Iterator[Finding]:
    if not seen.expired:
        return
    late = timedelta(0) if seen.expired_since is None else seen.now - seen.expired_since
    ago = "at an unknown time" if seen.expired_since is None else f"{lasting(late)} ago"
    overdue = seen.expired_since is None or late > 3 * conf.duration("REAPER_INTERVAL")
    least = "at least " if Status.PROCESSING in seen.estimated else ""
    rows = f"{least}{counted(seen.expired, 'row')}"
    text = f"The leases of {rows} have ended, the first {ago}, and nobody has put them back"
    if overdue:
        yield Finding.problem(
            f"{text}: no reaper runs.",
            f"manage.py release_expired {seen.model._meta.label}, or start a worker.",
        )
    else:
        yield Finding.note(f"{text} yet.")


def _waiting(seen: Overview) -> Iterator[Finding]:
    if seen.progress.open and not seen.due and seen.next_due is not None:
        yield Finding.note(
            f"All {_rows(seen, seen.progress.open, Status.OPEN, 'open row').lower()} wait; the first is due in"
            f" {lasting(seen.next_due - seen.now)} (at {moment(seen.next_due)})."
            if seen.progress.open > 1
            else f"The one open row waits until {moment(seen.next_due)}, {lasting(seen.next_due - seen.now)} from now."
        )
    if seen.unsettled and not seen.due:
        yield Finding.note(
            f"{counted(seen.unsettled, 'range')} not due yet: transactions that were open when the keys were read may"
            " still add rows there. Workers and claimplan look whether they have ended."
        )


def _held(seen: Overview) -> Iterator[Finding]:
    running = seen.progress.processing - seen.expired
    if seen.progress.open or running <= 0:
        return
    more = "+" if Status.PROCESSING in seen.estimated else ""
    names = [f"{holder.name} ({holder.rows:,}{more})" for holder in seen.holders]
    free = seen.next_free
    when = (
        f"; the next lease ends in {lasting(free - seen.now)}"
        if free is not None and free > seen.now
        else ""
    )
    yield Finding.note(f"All rows left are held, by {listed(names)}{when}.")


def _nobody_works(seen: Overview) -> Iterator[Finding]:
    label = seen.model._meta.label
    if handler_for(seen.model) is None:
        if seen.due:
            yield Finding.note(
                f"{label} has no handler, so no worker can serve it.",
                f"Write one with @handler({seen.model.__name__}) in the claims.py of an installed app, unless people"
                " or your own code claim the rows.",
            )
        return
    known = workers(seen.alias)
    if seen.due and not any(worker.alive and worker.serves(seen.model) for worker in known):
        gone = [worker for worker in known if worker.serves(seen.model)]
        last = max((worker.seen_at for worker in gone), default=None)
        heard = (
            f"; the last was heard of {lasting(seen.now - last)} ago" if last is not None else ""
        )
        are = "is due" if seen.due == 1 else "are due"
        idle = f"{_rows(seen, seen.due, Status.OPEN)} {are}, and no worker for {label} is alive"
        yield Finding.note(f"{idle}{heard}.", f"manage.py claimworker {label}", headline=idle)


def _hidden(seen: Overview) -> Iterator[Finding]:
    """Rows that the worker's queryset does not show are never claimed."""
    found = handler_for(seen.model)
    rows: Any = (
        found.rows(seen.alias)
        if found is not None
        else seen.model._default_manager.using(seen.alias)
    )
    # Where open rows are too many to count, the hidden ones are too.
    if not seen.due or not hasattr(rows, "due") or Status.OPEN in seen.estimated:
        return
    hidden = seen.due - rows.due().count()
    if hidden > 0:
        them = "it" if hidden == 1 else "them"
        whose = (
            "handler's queryset"
            if found is not None and found.queryset is not None
            else "default manager"
        )
        yield Finding.note(
            f"The {whose} hides {counted(hidden, 'due row')} of {seen.due:,}, so no worker claims {them}.",
            "Intended? Else give the handler queryset=… with a manager that shows them.",
        )


def _set_aside(seen: Overview) -> Iterator[Finding]:
    if seen.progress.paused:
        yield Finding.note(
            f"{_rows(seen, seen.progress.paused, Status.PAUSED)} are set aside one by one (status paused)."
            if seen.progress.paused > 1
            else "1 row is set aside (status paused).",
            f"{seen.model.__name__}.objects.resume_rows()",
        )


def _failed(seen: Overview) -> Iterator[Finding]:
    count = seen.progress.failed
    if not count:
        return
    verb = "has failed and waits" if count == 1 else "have failed and wait"
    told = _most_frequent_errors(seen)
    yield Finding.note(
        f"{_rows(seen, count, Status.FAILED)} {verb} for a reset{told}.",
        f"{seen.model.__name__}.objects.failed().reset()",
    )


def _most_frequent_errors(seen: Overview) -> str:
    field = claim_columns(seen.model).error_class
    if field is None or Status.FAILED in seen.estimated:
        return ""
    rows: Any = ClaimQuerySet(seen.model, using=seen.alias).failed().order_by()
    counts = rows.values_list(field.name).annotate(n=Count("*")).order_by("-n")[:3]
    return ": " + listed([f"{n:,} × {name or 'no class'}" for name, n in counts])


def _nothing_to_do(seen: Overview) -> Iterator[Finding]:
    progress = seen.progress
    if progress.open or progress.processing:
        return
    if progress.total:
        yield Finding.fine(
            f"There is nothing to do: {counted(progress.finished, 'row')} of {progress.total:,} finished."
            if not seen.estimated
            else f"There is nothing to do: {_rows(seen, progress.finished, Status.COMPLETE).lower()} finished."
        )
    else:
        yield Finding.fine("There is nothing to do: the table is empty.")
