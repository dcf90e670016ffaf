"""What an operator can do to rows from the admin: each act is a verb, the states that it changes, and its words."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.utils.translation import ngettext

from django_taskclaim.admin import phrases
from django_taskclaim.admin.rows import EXPIRED
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.states import Status

#: A verb over a queryset, which says how many rows it changed.
Verb = Callable[[ClaimQuerySet[Any]], int]


@dataclass(frozen=True, slots=True)
class Act:
    """One act on rows."""

    #: Its name in the records.
    name: str
    verb: Verb
    #: The states of rows that it changes; ``expired`` are running rows whose lease has ended.
    changes: frozenset[str]
    #: Given how many, says what was done.
    told: Callable[[int], str]


def _shown(number: int) -> dict[str, str]:
    return {"number": phrases.amount(number)}


def reset(*, running: bool = False, complete: bool = False) -> Act:
    """Make failed rows as good as new; complete and running ones only when named."""
    named = {Status.COMPLETE.value: complete, Status.PROCESSING.value: running}
    return Act(
        "reset",
        lambda rows: rows.reset(running=running, complete=complete),
        frozenset({Status.FAILED.value, *(state for state, is_named in named.items() if is_named)}),
        lambda number: (
            ngettext("%(number)s row was reset.", "%(number)s rows were reset.", number)
            % _shown(number)
        ),
    )


def fail(reason: str, *, running: bool = False, complete: bool = False) -> Act:
    """End rows badly, with a reason."""
    named = {Status.COMPLETE.value: complete, Status.PROCESSING.value: running}
    return Act(
        "fail",
        lambda rows: rows.fail_rows(reason, running=running, complete=complete),
        frozenset(
            {
                Status.OPEN.value,
                Status.PAUSED.value,
                *(state for state, is_named in named.items() if is_named),
            }
        ),
        lambda number: (
            ngettext("%(number)s row was failed.", "%(number)s rows were failed.", number)
            % _shown(number)
        ),
    )


def take_back() -> Act:
    """Put running rows back, whoever holds them."""
    return Act(
        "release",
        lambda rows: rows.take_back(),
        frozenset({Status.PROCESSING.value}),
        lambda number: (
            ngettext("%(number)s row was taken back.", "%(number)s rows were taken back.", number)
            % _shown(number)
        ),
    )


def release_expired() -> Act:
    """Put back rows whose lease has ended, as the reaper does."""
    return Act(
        "release expired",
        lambda rows: rows.release_expired(),
        frozenset({EXPIRED}),
        lambda number: (
            ngettext(
                "%(number)s row with an expired lease was put back.",
                "%(number)s rows with expired leases were put back.",
                number,
            )
            % _shown(number)
        ),
    )


def pause_rows() -> Act:
    """Take open rows out of the queue."""
    return Act(
        "pause rows",
        lambda rows: rows.pause_rows(),
        frozenset({Status.OPEN.value}),
        lambda number: (
            ngettext("%(number)s row was paused.", "%(number)s rows were paused.", number)
            % _shown(number)
        ),
    )


def resume_rows() -> Act:
    """Open paused rows again."""
    return Act(
        "resume rows",
        lambda rows: rows.resume_rows(),
        frozenset({Status.PAUSED.value}),
        lambda number: (
            ngettext("%(number)s row was resumed.", "%(number)s rows were resumed.", number)
            % _shown(number)
        ),
    )
