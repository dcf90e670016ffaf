"""Why nothing is moving, in sentences: those of the control room, in the language that is active as they are made."""

from collections.abc import Callable, Iterator
from typing import Any

from django.db import models
from django.db.models import Count
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_taskclaim import conf
from django_taskclaim.columns import claim_columns
from django_taskclaim.doctor.findings import Finding
from django_taskclaim.handlers import handler_for
from django_taskclaim.links import is_companion, source_link
from django_taskclaim.localized import lasting, listed, moment, number
from django_taskclaim.overview import Overview, overview, throttles_by_source, workers
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets import ClaimQuerySet, CompanionQuerySet
from django_taskclaim.querysets.limits import limits_over, without_room
from django_taskclaim.querysets.refusals import REFUSED
from django_taskclaim.querysets.scope import Desk
from django_taskclaim.querysets.serial import InTurn
from django_taskclaim.states import Status
from django_taskclaim.switch import paused_model


def why_nothing_moves(model: type[models.Model], alias: str) -> Iterator[Finding]:
    """Yield every reason for which rows of *model* stay where they are, or that work goes on."""
    seen = overview(model, alias)
    # The doctor has told of them as a contradiction.
    told_already = list(_endless(seen))
    yield from (finding for finding in reasons(seen) if finding not in told_already)
    yield from _orphaned(model, alias)


def _orphaned(model: type[models.Model], alias: str) -> Iterator[Finding]:
    """Tell of companions whose source is gone, where their own database knows: one subquery, as dear as a count."""
    if not is_companion(model) or source_link(model).alias_beside(alias) != alias:
        return
    orphans = CompanionQuerySet(model, using=alias).orphans().count()
    if orphans:
        yield Finding.note(
            ngettext(
                "%(number)s row without a source.", "%(number)s rows without a source.", orphans
            )
            % {"number": number(orphans)},
            f"manage.py claimpopulate {model._meta.label} --remove-orphans",
        )


def reasons(seen: Overview) -> Iterator[Finding]:
    """Yield the same of what was seen before; estimates are told as such."""
    found = [
        *_paused(seen),
        *_throttled(seen),
        *_expired(seen),
        *_endless(seen),
        *_waiting(seen),
        *_held(seen),
        *_nobody_works(seen),
        *_refused(seen),
        *_hidden(seen),
        *_limited(seen),
        *_full(seen),
        *_set_aside(seen),
        *_failed(seen),
        *_nothing_to_do(seen),
    ]
    if not found:
        due = _("%(rows)s due, and workers are alive.") % {
            "rows": _rows(seen, seen.due, Status.OPEN)
        }
        found = [Finding.fine(capfirst(due))]
    yield from found


def _told_rows(count: int) -> str:
    return ngettext("%(number)s row", "%(number)s rows", count) % {"number": number(count)}


def _told_open_rows(count: int) -> str:
    told = ngettext("%(number)s open row", "%(number)s open rows", count)
    return told % {"number": number(count)}


def _rows(
    seen: Overview, count: int, state: Status, told: Callable[[int], str] = _told_rows
) -> str:
    """Return ``1,204 rows``, or ``about 1,200,000 rows`` where that is an estimate."""
    if state not in seen.estimated:
        return told(count)
    return _("about %(rows)s") % {"rows": told(round(count, -max(0, len(str(count)) - 2)))}


def _paused(seen: Overview) -> Iterator[Finding]:
    pause = seen.pause
    if pause is None:
        return
    label = paused_model(pause)
    who = {"model": label, "who": pause.by or _("somebody")}
    told = _("%(model)s is paused by %(who)s") if label else _("All models are paused by %(who)s")
    told %= who
    if pause.paused_at is not None:
        told = " ".join([told, _("since %(moment)s") % {"moment": moment(pause.paused_at)}])
    if pause.until is not None:
        told = _("%(pause)s, until %(moment)s") % {"pause": told, "moment": moment(pause.until)}
    if pause.reason:
        told = f"{told}: {pause.reason}"
    yield Finding.note(
        _("%(pause)s. Nothing is claimed meanwhile.") % {"pause": told},
        f"manage.py claimresume {label or '--all'}",
    )


def _throttled(seen: Overview) -> Iterator[Finding]:
    for source, same in throttles_by_source(seen).items():
        throttle = {
            "model": seen.model._meta.label,
            "processes": listed([throttle.process for throttle in same], 3),
            "source": source,
            "reason": same[0].reason,
            "moment": moment(same[0].until),
        }
        yield Finding.note(
            _(
                "%(model)s is throttled on %(processes)s by %(source)s: %(reason)s, until %(moment)s."
            )
            % throttle,
            _("It ends by itself, when its cause does."),
        )


def _expired(seen: Overview) -> Iterator[Finding]:
    if seen.expired_since is None:
        return
    late = seen.now - seen.expired_since
    leases = {
        "rows": _at_least(seen, seen.expired - seen.endless),
        "ago": _("%(time)s ago") % {"time": lasting(late)},
    }
    if late > 3 * conf.duration("REAPER_INTERVAL") + policy_for(seen.model).renewal_interval:
        yield Finding.problem(
            _(
                "The leases of %(rows)s have ended, the first %(ago)s, and nobody has put them back: no reaper runs, or"
                " the database refuses to have them written."
            )
            % leases,
            _("manage.py release_expired %(model)s, or start a worker.")
            % {"model": seen.model._meta.label},
        )
    else:
        yield Finding.note(
            _(
                "The leases of %(rows)s have ended, the first %(ago)s, and nobody has put them back yet."
            )
            % leases
        )


def _endless(seen: Overview) -> Iterator[Finding]:
    """Tell of rows that nothing but a reaper or a repair takes out of their state."""
    if seen.endless:
        told = ngettext(
            "%(rows)s is processing without an end of the lease: something that is no verb of ours wrote there.",
            "%(rows)s are processing without an end of the lease: something that is no verb of ours wrote there.",
            seen.endless,
        )
        yield Finding.problem(
            capfirst(told % {"rows": _at_least(seen, seen.endless)}),
            f"manage.py claimdoctor {seen.model._meta.label} --repair",
        )


def _at_least(seen: Overview, count: int) -> str:
    """Return ``3 rows``, or ``at least 3 rows`` where only the first running ones were looked at."""
    rows = _told_rows(count)
    if Status.PROCESSING in seen.estimated:
        return _("at least %(rows)s") % {"rows": rows}
    return rows


def _waiting(seen: Overview) -> Iterator[Finding]:
    if seen.progress.open and not seen.due and seen.next_due is not None:
        wait = {
            "rows": _rows(seen, seen.progress.open, Status.OPEN, _told_open_rows),
            "time": lasting(seen.next_due - seen.now),
            "moment": moment(seen.next_due),
        }
        told = _("The one open row waits until %(moment)s, %(time)s from now.")
        if seen.progress.open > 1:
            told = _("All %(rows)s wait; the first is due in %(time)s (at %(moment)s).")
        yield Finding.note(told % wait)
    if seen.unsettled:
        told = ngettext(
            "%(number)s range not due yet: transactions that were open when the keys were read may still add rows"
            " there. Workers and claimplan look whether they have ended.",
            "%(number)s ranges not due yet: transactions that were open when the keys were read may still add rows"
            " there. Workers and claimplan look whether they have ended.",
            seen.unsettled,
        )
        if not seen.due:
            yield Finding.note(told % {"number": number(seen.unsettled)})


def _held(seen: Overview) -> Iterator[Finding]:
    running = seen.progress.processing - seen.expired
    if seen.progress.open or running <= 0:
        return
    more = "+" if Status.PROCESSING in seen.estimated else ""
    names = listed([f"{holder.name} ({number(holder.rows)}{more})" for holder in seen.holders])
    told = _("All rows left are held, by %(holders)s.")
    free = seen.next_free
    if free is not None and free > seen.now:
        told = _("All rows left are held, by %(holders)s; the next lease ends in %(time)s.")
    yield Finding.note(
        told % {"holders": names, "time": "" if free is None else lasting(free - seen.now)}
    )


def _nobody_works(seen: Overview) -> Iterator[Finding]:
    label = seen.model._meta.label
    if handler_for(seen.model) is None:
        if seen.due:
            yield Finding.note(
                _("%(model)s has no handler, so no worker can serve it.") % {"model": label},
                _(
                    "Write one with %(code)s in the claims.py of an installed app, unless people or your own code claim"
                    " the rows."
                )
                % {"code": f"@handler({seen.model.__name__})"},
            )
        return
    known = workers(seen.alias)
    if seen.due and not any(worker.alive and worker.serves(seen.model) for worker in known):
        gone = [worker for worker in known if worker.serves(seen.model)]
        last = max((worker.seen_at for worker in gone), default=None)
        idle = ngettext(
            "%(rows)s is due, and no worker for %(model)s is alive",
            "%(rows)s are due, and no worker for %(model)s is alive",
            seen.due,
        ) % {"rows": _rows(seen, seen.due, Status.OPEN), "model": label}
        idle = told = capfirst(idle)
        if last is not None:
            heard = {"finding": idle, "time": lasting(seen.now - last)}
            told = _("%(finding)s; the last was heard of %(time)s ago") % heard
        yield Finding.note(f"{told}.", f"manage.py claimworker {label}", headline=idle)


def _refused(seen: Overview) -> Iterator[Finding]:
    """Tell what workers report of rows that nobody can write; which rows, not everybody may know."""
    label = seen.model._meta.label
    if not seen.due and not seen.expired:
        return
    reports = [worker.last_error for worker in workers(seen.alias) if worker.alive]
    if any(f" {label} " in report and REFUSED in report for report in reports):
        told = _(
            "The database refuses to have rows of %(model)s written; workers go on without them."
        )
        yield Finding.note(told % {"model": label}, f"manage.py claimdoctor {label}")


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
        counts = {"hidden": number(hidden), "due": number(seen.due)}
        has_own = found is not None and found.queryset is not None
        yield Finding.note(
            (_hidden_by_handler if has_own else _hidden_by_manager)(hidden) % counts,
            _("Intended? Else give the handler %(code)s with a manager that shows them.")
            % {"code": "queryset=…"},
        )


def _limited(seen: Overview) -> Iterator[Finding]:
    """Rows of a key that has used up its limit wait for those that run."""
    if not seen.due or {Status.OPEN, Status.PROCESSING} & seen.estimated:
        return
    try:
        full = without_room(Desk.of(seen.model, seen.alias))
    except ValueError as error:
        yield Finding.problem(
            str(error), _("Until the handler names a column, nothing is claimed.")
        )
        return
    rows: Any = ClaimQuerySet(seen.model, using=seen.alias)
    kept_back = rows.due().filter(full).count() if full else 0
    limits = limits_over(seen.model)
    names = [limit.field.name for limit in limits]
    if kept_back and any(isinstance(limit, InTurn) for limit in limits):
        yield Finding.note(
            ngettext(
                "%(rows)s may have to wait for its turn (%(names)s): one of its key is running, waits, is paused or"
                " has failed.",
                "%(rows)s may have to wait for their turn (%(names)s): one of their key is running, waits, is paused"
                " or has failed.",
                kept_back,
            )
            % {"rows": _told_due_rows(kept_back), "names": listed(names)},
            _("They follow once that one is done; one that has failed needs a reset."),
        )
    elif kept_back:
        yield Finding.note(
            ngettext(
                "%(rows)s is kept back by a limit per key (%(names)s): others of its key are running.",
                "%(rows)s are kept back by a limit per key (%(names)s): others of their keys are running.",
                kept_back,
            )
            % {"rows": _told_due_rows(kept_back), "names": listed(names)},
            _(
                "They follow as those end; the rows of a worker that was killed end with their lease."
            ),
        )


def _full(seen: Overview) -> Iterator[Finding]:
    """As many rows run as may run at once, over all workers."""
    most = [limits.max_running for limits in seen.limits if limits.max_running is not None]
    if seen.due and most and seen.progress.processing >= min(most):
        running = {"rows": number(seen.progress.processing), "most": number(min(most))}
        yield Finding.note(
            _("%(rows)s rows are running, and no more than %(most)s may at once.") % running,
            _("Others follow as those end; manage.py claimlimit %(model)s --max-running lets more.")
            % {"model": seen.model._meta.label},
        )


def _told_due_rows(count: int) -> str:
    told = ngettext("%(number)s due row", "%(number)s due rows", count)
    return told % {"number": number(count)}


def _hidden_by_handler(hidden: int) -> str:
    return ngettext(
        "The handler's queryset hides %(hidden)s due row of %(due)s, so no worker claims it.",
        "The handler's queryset hides %(hidden)s due rows of %(due)s, so no worker claims them.",
        hidden,
    )


def _hidden_by_manager(hidden: int) -> str:
    return ngettext(
        "The default manager hides %(hidden)s due row of %(due)s, so no worker claims it.",
        "The default manager hides %(hidden)s due rows of %(due)s, so no worker claims them.",
        hidden,
    )


def _set_aside(seen: Overview) -> Iterator[Finding]:
    paused = seen.progress.paused
    if paused:
        told = ngettext(
            "%(rows)s is set aside (status paused).",
            "%(rows)s are set aside one by one (status paused).",
            paused,
        )
        yield Finding.note(
            capfirst(told % {"rows": _rows(seen, paused, Status.PAUSED)}),
            f"manage.py claimresume {seen.model._meta.label} --rows",
        )


def _failed(seen: Overview) -> Iterator[Finding]:
    count = seen.progress.failed
    if not count:
        return
    told = ngettext(
        "%(rows)s has failed and waits for a reset",
        "%(rows)s have failed and wait for a reset",
        count,
    ) % {"rows": _rows(seen, count, Status.FAILED)}
    errors = _most_frequent_errors(seen)
    yield Finding.note(
        capfirst(f"{told}: {errors}." if errors else f"{told}."),
        f"manage.py claimreset {seen.model._meta.label}",
    )


def _most_frequent_errors(seen: Overview) -> str:
    field = claim_columns(seen.model).error_class
    if field is None or Status.FAILED in seen.estimated:
        return ""
    rows: Any = ClaimQuerySet(seen.model, using=seen.alias).failed().order_by()
    counts = rows.values_list(field.name).annotate(n=Count("*")).order_by("-n")[:3]
    return listed([f"{number(n)} × {name or _('no class')}" for name, n in counts])


def _nothing_to_do(seen: Overview) -> Iterator[Finding]:
    progress = seen.progress
    if progress.open or progress.processing:
        return
    if not progress.total:
        yield Finding.fine(_("There is nothing to do: the table is empty."))
        return
    told = _("There is nothing to do: %(rows)s of %(total)s finished.")
    if seen.estimated:
        told = _("There is nothing to do: %(rows)s finished.")
    rows = {
        "rows": _rows(seen, progress.finished, Status.COMPLETE),
        "total": number(progress.total),
    }
    yield Finding.fine(told % rows)
