"""Every act of an operator on photos: where it is sent, what it changes, and what is recorded."""

from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from django_taskclaim.control.actions import NAMED, RESET, ROW_ACTIONS, Action
from django_taskclaim.control.models import OperatorAct
from django_taskclaim.control.reading import known_failures
from django_taskclaim.models import Switch, WorkerProcess
from django_taskclaim.switch import overrides_of, pause, pause_all, paused_by
from tests.admin.room import (
    CONFIGURE,
    OPERATE,
    SILENT,
    act_on,
    address,
    chosen,
    command_url,
    group_of,
    in_states,
    overview,
    perform,
    photos,
    run_action,
    worker,
)
from tests.querysets.support import clock, set_raw, stored
from tests.testapp.models import Photo

WHY = {"reason": "why"}

Rows = dict[str, Any]


class Act(NamedTuple):
    """One act. ``changes`` says which facts of ``world`` differ afterwards, ``record`` how the act is called."""

    name: str
    where: Callable[[Rows], str]
    typed: dict[str, Any]
    changes: dict[str, Any]
    record: str
    needs: tuple[str, ...] = OPERATE
    #: The name of an action of the list, which posts to the list itself.
    action: str = ""
    #: Done first: a pause that the act ends.
    first: Callable[[], Any] = lambda: None

    @property
    def is_of_all(self) -> bool:
        return "all models" in self.name

    def is_allowed(self, granted: Collection[str]) -> bool:
        """Say whether somebody with these permissions may do it; those of photos do not count for all models."""
        return {one for one in self.needs if not self.is_of_all or "photo" not in one} <= {*granted}

    @property
    def rows(self) -> int:
        """How many rows it changes."""
        return len(self.changes.keys() - {"switch", "commands", "batch size", "known"})

    def send(self, client: Client, rows: Rows) -> Any:
        """Act as a browser does that has shown the page."""
        return (run_action if self.action else perform)(client, self.where(rows), self.sent(rows))

    def sent(self, rows: Rows) -> dict[str, Any]:
        return (chosen(self.action, *rows.values()) if self.action else {}) | self.typed


def acts_of(action: Action) -> Iterator[Act]:
    """Yield every way to one action: of the list, of one row in each state, of all rows of the model."""
    end, slug = ENDS[action.name], action.slug
    kinds = KINDS | ({"open": ("waiting",)} if action.waiting else {})
    chosen = {kind: end for state in action.states for kind in kinds[state]}
    own = "claim_" + slug.replace("-", "_")
    always = {NAMED[state]: "on" for state in action.states if state in NAMED}
    for name in ("", *action.named):
        typed = (
            (WHY if action.takes("processing") else {}) | always | ({name: "on"} if name else {})
        )
        more = {kind: end for state in KINDS if NAMED.get(state) == name for kind in KINDS[state]}
        where = lambda rows: address(Photo)  # noqa: E731
        yield Act(f"{own} {name}", where, typed, chosen | more, action.name, action=own)
    states = {*action.states, *(state for state, name in NAMED.items() if name in action.named)}
    for state in sorted(states):
        kind = kinds[state][0]
        at = lambda rows, kind=kind: act_on(Photo, slug, rows[kind])  # noqa: E731
        typed = WHY | ({NAMED[state]: "on"} if state in NAMED else {})
        yield Act(f"button {slug} of {kind}", at, typed, {kind: end}, action.name)
    if action is RESET:
        yield Act(f"list {slug}", lambda rows: act_on(Photo, slug), WHY, chosen, action.name)


def command(what: str) -> Act:
    """Return the act of a command to a worker process."""
    return Act(what, lambda rows: command_url(what), WHY, {"commands": [what]}, "worker command")


def of_group(page: str) -> Callable[[Rows], str]:
    return lambda rows: photos(page, group=rows["failed"].group)


DELETE = (*OPERATE, "testapp.delete_photo")
PAUSED = {"switch": ("testapp.photo", "ada", "why")}
ALL_PAUSED = {"switch": ("*", "ada", "why")}
RESUME = (WHY, {"switch": None}, "resume")
#: The rows of the scene by the states that an action names.
KINDS = {
    "open": ("open", "waiting"),
    "paused": ("paused",),
    "processing": ("processing", "expired"),
    "failed": ("failed",),
    "complete": ("complete",),
}
#: In which state an action leaves a row.
ENDS = dict.fromkeys(["reset", "run", "resume rows", "release"], "open")
ENDS |= {"pause rows": "paused", "fail": "failed"}

ACTS = [
    *(act for action in ROW_ACTIONS for act in acts_of(action)),
    Act("pause", lambda rows: photos("pause"), WHY | {"until": "900"}, PAUSED, "pause"),
    Act("resume", lambda rows: photos("resume"), *RESUME, first=lambda: pause(Photo)),
    command("drain"),
    command("stop"),
    Act("retry some", of_group("retry"), WHY | {"first": "on"}, {"failed": "open"}, "reset"),
    Act("retry all", of_group("retry"), WHY, {"failed": "open"}, "reset"),
    Act("delete all", of_group("delete"), WHY, {"failed": "gone"}, "delete", needs=DELETE),
    Act("known", of_group("known"), WHY, {"known": "why"}, "mark as known"),
    Act(
        "settings",
        lambda rows: photos("settings"),
        WHY | {"batch_size": "7"},
        {"batch size": 7},
        "settings",
        needs=CONFIGURE,
    ),
    Act("pause all models", lambda rows: overview("pause"), WHY, ALL_PAUSED, "pause"),
    Act("resume all models", lambda rows: overview("resume"), *RESUME, first=pause_all),
]


def scene(boss: Client) -> Rows:
    """Make rows in all states and two workers, one of which has fallen silent with a row; they stay so for an hour."""
    rows: Rows = in_states(Photo)
    set_raw(rows["processing"], "claimed_by", f"'{SILENT}#1'")
    set_raw(rows["processing"], "expires_at", clock("+1 HOUR"))
    set_raw(rows["waiting"], "not_before", clock("+1 HOUR"))
    worker(seen_at=timezone.now() + timedelta(hours=1))
    worker(SILENT, silent=True)
    rows["failed"].group = group_of(boss)
    return rows


def world(rows: Rows) -> dict[str, Any]:
    """Return all that an act could change."""
    switch = paused_by(Photo)
    commands = WorkerProcess.objects.exclude(command="").values_list("command", flat=True)
    waiting = {row.pk for row in Photo.objects.open()} - {row.pk for row in Photo.objects.due()}
    status = {kind: stored(row).get("Photo.status", "gone") for kind, row in rows.items()}
    return {kind: "waiting" if rows[kind].pk in waiting else status[kind] for kind in rows} | {
        "switch": switch and (switch.scope, switch.by, switch.reason),
        "commands": list(commands),
        "batch size": overrides_of(Photo, using="default").get("batch_size"),
        "known": "".join(mark.reason for mark in known_failures(Photo, using="default").values()),
    }


def clear() -> None:
    """Forget all that a committed act has left."""
    for model in (Photo, WorkerProcess, OperatorAct, LogEntry):
        model._default_manager.all().delete()
    for alias in ("default", "other"):
        Switch.objects.using(alias).all().delete()
