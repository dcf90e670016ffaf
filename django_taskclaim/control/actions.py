"""Everything that an operator can do, each thing once: the admin, the control room, commands and audit read it here."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import Model
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, pgettext_lazy

from django_taskclaim.columns import claim_columns
from django_taskclaim.formatting import format_number
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.scope import is_waiting
from django_taskclaim.states import Status

Text = str | Promise

#: The rows of a state that an action changes only when it is named, and what its verb calls them.
NAMED: dict[str, str] = {Status.PROCESSING: "running", Status.COMPLETE: "complete"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One thing that an operator can do; by itself what is asked of workers: of one process, a model's, or all."""

    #: How the audit or the command stores it.
    name: str
    label: Text
    #: What the page that asks says.
    sentence: Text = ""
    #: What the record says of it: what has become of the rows, or what a worker was told.
    done: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Action(Instruction):
    """One thing that an operator can do to rows."""

    #: The states of rows that it changes, and those of which only when they are named.
    states: frozenset[str]
    named: tuple[str, ...] = ()
    verb: Callable[..., int]
    #: What else its verb is given, and which field of a form asks for it.
    asks: Mapping[str, str] = field(default_factory=dict)
    #: Whether it changes only open rows that wait.
    waiting: bool = False
    #: What the user needs of ``permissions.NEEDS``.
    needs: str = "operate"

    @property
    def slug(self) -> str:
        """How addresses of the admin name it."""
        return self.name.replace(" ", "-")

    def takes(self, status: str) -> bool:
        """Say whether it changes rows of this state, be it only when they are named."""
        return status in self.states or NAMED.get(status) in self.named

    def options(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Return what its verb is given of the *answer* to a form."""
        named = {name: True for name in self.named if answer.get(name)}
        return named | {option: answer[name] for option, name in self.asks.items()}

    def states_of(self, options: Iterable[str]) -> set[str]:
        """Return the states of rows that it changes, where its verb is given these *options*."""
        return {*self.states, *(state for state, name in NAMED.items() if name in options)}

    def chosen(self, rows: ClaimQuerySet[Any], options: Iterable[str] = ()) -> ClaimQuerySet[Any]:
        """Return those of *rows* that it changes."""
        columns = claim_columns(rows.model)
        found = rows.filter(**{f"{columns.status.name}__in": self.states_of(options)})
        return found.filter(is_waiting(columns)) if self.waiting else found

    def result(self, number: int, model: type[Model]) -> str:
        """Say how many rows of the model it was done to."""
        meta = model._meta
        rows = meta.verbose_name if number == 1 else meta.verbose_name_plural
        sentence = ngettext("%(n)s %(rows)s was %(done)s.", "%(n)s %(rows)s were %(done)s.", number)
        return sentence % {"n": format_number(number), "rows": rows, "done": self.done}


LOSE = _("The holder of a running row loses it, and late writes of that holder are refused.")

RESET = Action(
    name="reset",
    label=_("Reset"),
    sentence=_("A row that is reset is as good as new: open, with no tries counted and no error."),
    done=_("reset"),
    states=frozenset({Status.FAILED}),
    named=("running", "complete"),
    verb=ClaimQuerySet.reset,
)
RUN = Action(
    name="run",
    label=_("Run now"),
    sentence=_("A row that waits is due at once, or at the moment that you choose."),
    done=_("rescheduled"),
    states=frozenset({Status.OPEN}),
    verb=ClaimQuerySet.run_at,
    asks={"at": "at"},
    waiting=True,
)
PAUSE_ROWS = Action(
    name="pause rows",
    label=_("Pause"),
    sentence=_("A row that is paused is set aside: no worker claims it until it is resumed."),
    done=_("paused"),
    states=frozenset({Status.OPEN}),
    verb=ClaimQuerySet.pause_rows,
)
RESUME_ROWS = Action(
    name="resume rows",
    label=_("Resume"),
    sentence=_("A row that is resumed is open again, to be claimed by the next free worker."),
    done=_("resumed"),
    states=frozenset({Status.PAUSED}),
    verb=ClaimQuerySet.resume_rows,
)
RELEASE = Action(
    name="release",
    label=_("Release"),
    sentence=_("A row that is released is open again, and no try is counted."),
    done=_("released"),
    states=frozenset({Status.PROCESSING}),
    verb=ClaimQuerySet.take_back,
)
FAIL = Action(
    name="fail",
    label=_("Fail"),
    sentence=_("A row that is failed stays so until somebody resets it."),
    done=_("failed"),
    states=frozenset({Status.OPEN, Status.PAUSED}),
    named=("running", "complete"),
    verb=ClaimQuerySet.fail_rows,
    asks={"error": "reason"},
)

#: What can be done to rows from the admin, in the order of its menu.
ROW_ACTIONS = (RESET, RUN, PAUSE_ROWS, RESUME_ROWS, RELEASE, FAIL)

DELETE = Action(
    name="delete",
    label=_("Delete"),
    sentence=_("A row that is deleted is gone for ever, and what refers to it goes with it."),
    done=_("deleted"),
    states=frozenset({Status.FAILED}),
    verb=ClaimQuerySet.delete_failed,
    needs="delete",
)

#: What can be done to the rows of a group of failures, by the last part of its address.
GROUP_ACTIONS = {"retry": RESET, "delete": DELETE}

PRUNE = Action(
    name="prune",
    label=_("Prune"),
    done=_("deleted"),
    states=frozenset({Status.COMPLETE}),
    verb=ClaimQuerySet.prune,
)


# What workers are asked to do


PAUSE = Instruction(
    name="pause",
    label=_("Pause claiming"),
    sentence=_(
        "No worker will claim a row, on any host, until somebody resumes. Running rows finish; no row is changed."
    ),
    done=_("claiming paused"),
)
RESUME = Instruction(
    name="resume",
    label=_("Resume claiming"),
    sentence=_(
        "Workers will claim again within a few seconds. What was paused by itself stays so: rows, other models, or all"
        " models together."
    ),
    done=_("claiming resumed"),
)

DRAIN = Instruction(
    name="drain",
    label=pgettext_lazy("command", "drain"),
    sentence=_("It finishes the rows that it holds, claims no more, and leaves."),
    done=_("told to drain"),
)
STOP = Instruction(
    name="stop",
    label=pgettext_lazy("command", "stop"),
    sentence=_(
        "It gives back what it has not started; running rows get the grace period, then it leaves."
    ),
    done=_("told to stop"),
)

#: The commands that one worker process can be given, by name.
WORKER_COMMANDS = {one.name: one for one in (DRAIN, STOP)}

#: What was done, and what a worker was told, by the name that is stored; a project's own actions are not among them.
DONE: dict[str, Text] = {
    "settings": _("settings changed"),
    "worker command": _("command to worker"),
    "export": _("failures exported"),
    "mark as known": _("failures marked as known"),
    **{one.name: one.done for one in (*ROW_ACTIONS, DELETE, PRUNE, PAUSE, RESUME, DRAIN, STOP)},
}
