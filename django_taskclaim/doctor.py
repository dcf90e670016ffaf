"""What is wrong with one model's claims on one database, and what to do about it; nothing is changed.

What it finds are Django's check messages: an error is a problem, a warning is worth knowing (why nothing moves, or what
could be better), and an Info says that something is in order. ``claimdoctor`` prints all of it; ``claimstatus`` and the
control room show the reasons why nothing moves.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.core import checks
from django.db import DatabaseError, connections, models, router
from django.db.models import Q

from django_taskclaim import conf
from django_taskclaim.checks import OUR_APPS, check_servers
from django_taskclaim.columns import (
    claim_columns,
    has_ranges,
    is_claimable,
    is_companion,
    source_link,
)
from django_taskclaim.contention import Meaning, meaning_of
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import counted, first_line, format_duration, format_moment, listed
from django_taskclaim.handlers import handler_for
from django_taskclaim.indexes import ClaimIndex
from django_taskclaim.limits.key_limits import limits_over
from django_taskclaim.monitoring.overview import Overview, overview
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.monitoring.server.base import TAG
from django_taskclaim.policy import RENEWALS_PER_LEASE, policy_for
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.isolating import savepoint_in
from django_taskclaim.querysets.scope import ClaimTarget, in_state, is_open
from django_taskclaim.querysets.why_empty import WhyEmpty
from django_taskclaim.ranges.keys import source_of
from django_taskclaim.states import UNKNOWN, Status
from django_taskclaim.switch import describe_pause, paused_model

Model = type[models.Model]
Findings = Iterator[checks.CheckMessage]

#: Dead rows that are too many to wait for before a vacuum.
TOO_MANY_DEAD = 50_000

#: A transaction that is open for longer keeps what 100,000 claimed rows leave behind.
LONG = timedelta(minutes=1)


def examine(model: Model, alias: str) -> Findings:
    """Yield what is wrong with *model* on the database *alias*, the gravest first."""
    if absent := list(missing_table(model, alias)):
        yield from absent
        return
    for look in (_missing_index, _dead_rows, _contradictions):
        yield from look(model, alias)
    yield from reasons(overview(model, alias))


# Tables, columns and an index


def missing_table(model: Model, alias: str) -> Findings:
    """Yield the first table that cannot be read with its columns; without it no row can be claimed and read.

    Raises the error of a database that does not answer.
    """
    for one, at in _needed(model, alias):
        connection = connections[at]
        connection.ensure_connection()
        try:
            with savepoint_in(connection):
                list(models.QuerySet(one, using=at).extra(where=["1 = 0"]).order_by())
        except DatabaseError as error:
            if meaning_of(error) is not Meaning.REFUSAL:
                raise
            text = f"The table {one._meta.db_table} on {at!r} cannot be read"
            yield checks.Error(f"{text}: {first_line(error)}.", _how_to_make(one, at))
            return


def _needed(model: Model, alias: str) -> list[tuple[Model, str]]:
    """Return whose tables are needed on which database: those of *model*, ours, and the source of its rows."""
    concrete: Any = model._meta.concrete_model
    needed = [*concrete._meta.all_parents, concrete]
    for label in OUR_APPS:
        if label in apps.app_configs and (label == TAG or router.allow_migrate(alias, label)):
            needed += apps.get_app_config(label).get_models()
    places = [(one, alias) for one in needed]
    # A system check reports a source that does not exist.
    with suppress(TypeError):
        if is_companion(model):
            link = source_link(model)
            places.append((link.source, link.alias_beside(alias)))
        elif has_ranges(model):
            places.append((source_of(model), alias))
    return places


def _how_to_make(model: Model, alias: str) -> str:
    """Return the commands that make the table of *model* as it has to be."""
    meta = model._meta
    if not meta.managed:
        return "Look at db_table and at DATABASES: migrations do not make this table (managed = False)."
    migrate = f"Run: manage.py migrate {meta.app_label} --database {alias}"
    if is_claimable(model):
        new = f"manage.py makemigrations {meta.app_label} for a new table"
        old = f"manage.py claimadopt {meta.label} for one with rows"
        return f"{migrate}. If that finds no migration, first {new}, or {old}"
    return migrate


def _missing_index(model: Model, alias: str) -> Findings:
    """Yield the claim index with the statement that creates it, where the table has none that fits."""
    target, server = ClaimTarget.of(model, alias), server_for(connections[alias])
    owner: Any = target.columns.owner._meta
    index = next(one for one in owner.indexes if isinstance(one, ClaimIndex))
    wanted = [(owner.get_field(name).column, order or "ASC") for name, order in index.fields_orders]
    # An index of any name that begins with these columns serves.
    if any(known[: len(wanted)] == wanted for known in server.indexes(target.table)):
        return
    with connections[alias].schema_editor(collect_sql=True, atomic=False) as editor:
        editor.add_index(target.columns.owner, index)
    statements = "\n".join(editor.collected_sql)
    yield checks.Error(
        f"The table {owner.db_table} has no index on {listed([name for name, _ in wanted])}: every claim"
        " reads and sorts all open rows.",
        "Create it (PostgreSQL, while the table is in use: CREATE INDEX CONCURRENTLY), or run makemigrations and"
        f" migrate:\n{statements}",
    )


# What a server keeps of rows that have changed; claims read past it


def _dead_rows(model: Model, alias: str) -> Findings:
    """Yield that the table of *model* has many dead rows, where the server counts them."""
    target = ClaimTarget.of(model, alias)
    living, dead = server_for(connections[alias]).dead_rows(target.table)
    if dead >= TOO_MANY_DEAD and dead > living * 0.2:
        yield checks.Warning(
            f"The table {target.columns.owner._meta.db_table} has {dead:,} dead rows beside {living:,}"
            " living: each claim may read past many of them.",
            "Look for a transaction that still needs them (above), then VACUUM the table. docs/performance.md has"
            " settings that make a vacuum come sooner.",
        )


def server_findings(alias: str) -> Findings:
    """Yield what the system checks find on the server of one database, and a transaction that is open for long."""
    yield from check_servers(databases=[alias])
    server = server_for(connections[alias])
    # On MySQL the user needs the privilege PROCESS for that, and the list may be refused for a moment.
    with suppress(DatabaseError):
        question = server.oldest_transaction
        for seconds, holder, remedy in server.ask(question) if question else []:
            if (age := timedelta(seconds=float(seconds))) > LONG:
                yield checks.Warning(
                    f"The oldest transaction has been open for {format_duration(age)} ({holder}): the server keeps old"
                    " versions of rows for it, and claims read past them.",
                    f"End it, or let it commit more often: {remedy}",
                )


# Why nothing moves


def reasons(seen: Overview) -> Findings:
    """Yield the reasons that an overview shows; an estimate has a ``~``."""
    why_not = (_nobody_works, _hidden, _limited) if seen.due else (_none_due,)
    looks = (_unknown, _stopped, _expired, *why_not, _ended)
    found = [finding for look in looks for finding in look(seen)]
    due = _rows(seen, seen.due, Status.OPEN)
    yield from found or [checks.Info(f"{due} due, and workers are alive.")]


def _rows(seen: Overview, count: int, state: str) -> str:
    """Return ``1,204 rows``, or ``~1,200,000 rows`` where that is an estimate."""
    return f"{'~' * (state in seen.progress.estimated)}{counted(count, 'row')}"


# What stops a model


def _stopped(seen: Overview) -> Findings:
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


def _expired(seen: Overview) -> Findings:
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


def _nobody_works(seen: Overview) -> Findings:
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


def _hidden(seen: Overview) -> Findings:
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


def _limited(seen: Overview) -> Findings:
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


def _none_due(seen: Overview) -> Findings:
    # The number of running rows may be an estimate.
    held = max(0, seen.progress.processing - seen.expired)
    if held or seen.waiting:
        ends = [holder.next_expiry for holder in seen.holders if holder.next_expiry is not None]
        why = WhyEmpty("", held, min(ends, default=None), seen.waiting, seen.next_due)
        yield checks.Warning(f"No row is due: {why}.")
    if seen.open_ended:
        yield checks.Warning(
            f"{counted(seen.open_ended, 'range')} not due yet: transactions that were open when the keys were read may"
            " still add rows there. Workers and claimplan look whether they have ended."
        )


def _ended(seen: Overview) -> Findings:
    """Rows that somebody has to open again, and whether any others are left."""
    progress, label = seen.progress, seen.model._meta.label
    if progress.paused:
        rows = _rows(seen, progress.paused, Status.PAUSED)
        command = f"manage.py claimreset {label} --paused"
        yield checks.Warning(f"{rows} set aside (status paused).", command)
    if progress.failed:
        rows = _rows(seen, progress.failed, Status.FAILED)
        text = f"{rows} failed; a reset opens failed rows again."
        yield checks.Warning(text, f"manage.py claimreset {label}")
    if not progress.total:
        yield checks.Info("There is nothing to do: the table is empty.")
    elif not progress.left:
        of = "" if seen.progress.estimated else f" of {progress.total:,}"
        rows = _rows(seen, progress.finished, Status.COMPLETE)
        yield checks.Info(f"Nothing is open or running: {rows}{of} finished.")


# Rows in combinations of claim columns that no verb leaves behind


def _contradictions(model: Model, alias: str) -> Findings:
    """Yield how many rows have a holder or a lease without running, and the statement that corrects them.

    A running row without a lease counts as expired, and is put back as such.
    """
    columns, table = claim_columns(model), ClaimTarget.of(model, alias).table
    held = [columns.claimed_by, columns.claimed_at, columns.expires_at]
    iteration, status = map(table.column, (columns.iteration, columns.status))
    for states, fields in {
        (Status.OPEN, Status.PAUSED): held,
        (Status.COMPLETE, Status.FAILED): [columns.expires_at],
    }.items():
        is_set = Q(_connector=Q.OR, **{f"{field.name}__isnull": False for field in fields})
        rows: Any = ClaimQuerySet(columns.owner, using=alias)
        if found := rows.filter(in_state(columns, *states) & is_set).count():
            names = [table.column(field) for field in fields]
            # No token of before stands afterwards.
            changes = [f"{iteration} = {iteration} + 1", *(f"{name} = NULL" for name in names)]
            yield checks.Error(
                f"{counted(found, 'row')} of {model._meta.label} {' or '.join(states)} with a holder or a lease:"
                " something other than a verb wrote there.",
                f"UPDATE {table.name} SET {', '.join(changes)} WHERE {status} IN ('{states[0]}', '{states[1]}')"
                f" AND ({' OR '.join(f'{name} IS NOT NULL' for name in names)});",
            )


def _unknown(seen: Overview) -> Findings:
    """Rows whose status is none of the five: a person decides, so the statement sets them aside."""
    if not seen.progress.unknown:
        return
    columns, table = claim_columns(seen.model), ClaimTarget.of(seen.model, seen.alias).table
    iteration, status = map(table.column, (columns.iteration, columns.status))
    held = (columns.claimed_by, columns.claimed_at, columns.expires_at)
    changes = [f"{status} = '{Status.PAUSED}'", f"{iteration} = {iteration} + 1"]
    changes += [f"{table.column(field)} = NULL" for field in held]
    states = ", ".join(f"'{state}'" for state in Status)
    yield checks.Error(
        f"{_rows(seen, seen.progress.unknown, UNKNOWN)} of {seen.model._meta.label} with a status that is none of"
        f" {listed(Status.values)}: something other than a verb wrote there, and nobody claims such a row. The"
        " statement sets them aside (paused).",
        f"UPDATE {table.name} SET {', '.join(changes)} WHERE {status} NOT IN ({states});",
    )
