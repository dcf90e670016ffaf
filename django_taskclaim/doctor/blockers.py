"""Why nothing is moving, one sentence for each reason, and rows that contradict themselves.

``claimdoctor`` and the control room show them.
"""

from collections.abc import Iterator
from typing import Any

from django.core import checks
from django.db import connections, models
from django.db.models import Count, Q

from django_taskclaim import conf
from django_taskclaim.columns import claim_columns
from django_taskclaim.db.sql import real_name
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import counted, format_duration, format_moment, listed
from django_taskclaim.handlers import handler_for
from django_taskclaim.limits.key_limits import limits_over
from django_taskclaim.monitoring.overview import Overview
from django_taskclaim.policy import RENEWALS_PER_LEASE, policy_for
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.scope import in_state, is_open
from django_taskclaim.querysets.why_empty import WhyEmpty
from django_taskclaim.states import Status
from django_taskclaim.switch import describe_pause, paused_model

Reasons = Iterator[checks.CheckMessage]


def reasons(seen: Overview) -> Reasons:
    """Yield the reasons that an overview shows; an estimate has a ``~``."""
    why_not = (_nobody_works, _hidden, _limited) if seen.due else (_none_due,)
    looks = (_stopped, _expired, *why_not, _ended)
    found = [finding for look in looks for finding in look(seen)]
    due = _rows(seen, seen.due, Status.OPEN)
    yield from found or [checks.Info(f"{due} due, and workers are alive.")]


def _rows(seen: Overview, count: int, state: Status) -> str:
    """Return ``1,204 rows``, or ``~1,200,000 rows`` where that is an estimate."""
    return f"{'~' * (state in seen.progress.estimated)}{counted(count, 'row')}"


# What stops a model


def _stopped(seen: Overview) -> Reasons:
    if pause := seen.pause:
        text = f"{describe_pause(pause)}. Nothing is claimed meanwhile."
        yield checks.Warning(text, f"manage.py claimresume {paused_model(pause) or '--all'}")
    for source in dict.fromkeys(throttle.source for throttle in seen.throttles):
        same = [throttle for throttle in seen.throttles if throttle.source == source]
        processes = listed([throttle.process for throttle in same], 3)
        yield checks.Warning(
            f"{seen.model._meta.label} is throttled by {source} ({processes}): {same[0].reason},"
            f" until {format_moment(same[0].until)}.",
            "It ends by itself, when its cause ends.",
        )


def _expired(seen: Overview) -> Reasons:
    if not seen.expired:
        return
    renewal = (seen.switch.lease or policy_for(seen.model).lease) / RENEWALS_PER_LEASE
    late = None if seen.expired_since is None else seen.now - seen.expired_since
    first = "" if late is None else f", the first {format_duration(late)} ago"
    text = f"The leases of {counted(seen.expired, 'row')} have ended{first}, and nobody has put them back"
    if late is not None and late <= 3 * conf.duration("REAPER_INTERVAL") + renewal:
        yield checks.Warning(f"{text} yet.")
    else:
        yield checks.Error(
            f"{text}: no reaper runs, or the database refuses to have them written.",
            f"manage.py release_expired {seen.model._meta.label}, or start a worker.",
        )


# Why rows that are due are not claimed


def _nobody_works(seen: Overview) -> Reasons:
    label = seen.model._meta.label
    if handler_for(seen.model) is None:
        yield checks.Warning(
            f"{label} has no handler, so no worker can serve it.",
            f"Write one with @handler({seen.model.__name__}) in the claims.py of an installed app, unless people or"
            " your own code claim the rows.",
        )
    elif not seen.living:
        due = _rows(seen, seen.due, Status.OPEN)
        last = max((as_utc(worker.seen_at) for worker in seen.workers), default=None)
        ago = f"; one fell silent {format_duration(seen.now - last)} ago" if last else ""
        yield checks.Warning(
            f"{due} due, and no worker for {label} is alive{ago}.", f"manage.py claimworker {label}"
        )


def _hidden(seen: Overview) -> Reasons:
    """Rows that the worker's queryset leaves out are never claimed."""
    found, model = handler_for(seen.model), seen.model
    rows: Any = found.rows(seen.alias) if found else model._default_manager.using(seen.alias)
    # Nothing hides a row but a condition. Where open rows are too many to count, the hidden ones are too.
    if not rows.query.where or Status.OPEN in seen.progress.estimated:
        return
    # Only the open ones among them: PostgreSQL reads a long list again for each row.
    shown = rows.filter(is_open(claim_columns(model)))
    every: Any = ClaimQuerySet(model, using=seen.alias).due()
    if hidden := every.exclude(pk__in=shown.order_by().values("pk")).count():
        by = "handler's queryset" if found is not None and found.queryset else "default manager"
        yield checks.Warning(
            f"The {by} hides {counted(hidden, 'due row')} of {seen.due:,}, which no worker claims.",
            "Intended? Else give the handler queryset=… with a manager that shows them.",
        )


def _limited(seen: Overview) -> Reasons:
    """A limit, per key or for all who claim, keeps rows back."""
    stopped = (
        seen.pause or seen.throttles or {Status.OPEN, Status.PROCESSING} & seen.progress.estimated
    )
    if stopped or not (seen.limits or limits_over(seen.model)):
        return
    why = ClaimQuerySet[Any](seen.model, using=seen.alias).why_empty()
    if why.stopped or why.kept_back:
        yield checks.Warning(
            f"{why}.",
            "They follow as running rows end; a row of a serial key that has failed needs a reset."
            f" manage.py claimlimit {seen.model._meta.label} changes the limits of all.",
        )


# Why no row is due


def _none_due(seen: Overview) -> Reasons:
    held = seen.progress.processing - seen.expired
    if held or seen.waiting:
        ends = [holder.next_expiry for holder in seen.holders if holder.next_expiry is not None]
        why = WhyEmpty("", held, min(ends, default=None), seen.waiting, seen.next_due)
        yield checks.Warning(f"No row is due: {why}.")
    if seen.open_ended:
        yield checks.Warning(
            f"{counted(seen.open_ended, 'range')} not due yet: transactions that were open when the keys were read may"
            " still add rows there. Workers and claimplan look whether they have ended."
        )


def _ended(seen: Overview) -> Reasons:
    """Rows that somebody has to open again, and whether any others are left."""
    progress, label = seen.progress, seen.model._meta.label
    if progress.paused:
        rows = _rows(seen, progress.paused, Status.PAUSED)
        command = f"manage.py claimreset {label} --paused"
        yield checks.Warning(f"{rows} set aside (status paused).", command)
    if progress.failed:
        rows, errors = _rows(seen, progress.failed, Status.FAILED), _most_frequent_errors(seen)
        them = "it" if progress.failed == 1 else "them"
        text = f"{rows} failed, until somebody resets {them}{': ' if errors else ''}{errors}."
        yield checks.Warning(text, f"manage.py claimreset {label}")
    if not progress.total:
        yield checks.Info("There is nothing to do: the table is empty.")
    elif not progress.left:
        of = "" if seen.progress.estimated else f" of {progress.total:,}"
        rows = _rows(seen, progress.finished, Status.COMPLETE)
        yield checks.Info(f"Nothing is open or running: {rows}{of} finished.")


def _most_frequent_errors(seen: Overview) -> str:
    field = claim_columns(seen.model).error_class
    if field is None or Status.FAILED in seen.progress.estimated:
        return ""
    rows: Any = ClaimQuerySet(seen.model, using=seen.alias).failed().order_by()
    counts = rows.values_list(field.name).annotate(n=Count("*")).order_by("-n")[:3]
    return listed([f"{number:,} × {name or 'no class'}" for name, number in counts])


# Rows in combinations of claim columns that no verb leaves behind


def contradictions(model: type[models.Model], alias: str) -> Reasons:
    """Yield how many rows have a holder or a lease without running, and the statement that corrects them.

    A running row without a lease counts as expired, and is put back as such.
    """
    columns, quote = claim_columns(model), connections[alias].ops.quote_name
    held = [columns.claimed_by, columns.claimed_at, columns.expires_at]
    table, status, iteration = (
        quote(real_name(name))
        for name in (columns.owner._meta.db_table, columns.status.column, columns.iteration.column)
    )
    for states, fields in {
        (Status.OPEN, Status.PAUSED): held,
        (Status.COMPLETE, Status.FAILED): [columns.expires_at],
    }.items():
        is_set = Q(_connector=Q.OR, **{f"{field.name}__isnull": False for field in fields})
        rows: Any = ClaimQuerySet(columns.owner, using=alias)
        if found := rows.filter(in_state(columns, *states) & is_set).count():
            names = [quote(real_name(field.column)) for field in fields]
            # No token of before stands afterwards.
            changes = [f"{iteration} = {iteration} + 1", *(f"{name} = NULL" for name in names)]
            yield checks.Error(
                f"{counted(found, 'row')} of {model._meta.label} {' or '.join(states)} with a holder or a lease:"
                " something other than a verb wrote there.",
                f"UPDATE {table} SET {', '.join(changes)} WHERE {status} IN ('{states[0]}', '{states[1]}')"
                f" AND ({' OR '.join(f'{name} IS NOT NULL' for name in names)});",
            )
