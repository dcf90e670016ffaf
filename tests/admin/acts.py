"""Every act of an operator on photos: where it is sent, what it changes, and what is recorded."""

from collections.abc import Callable
from typing import Any, NamedTuple

from django.contrib.admin.models import LogEntry
from django.test import Client

from django_taskclaim.control.models import LiveSettings, OperatorAct, WorkerOrder
from django_taskclaim.models import Switch, WorkerProcess
from django_taskclaim.switch import pause, pause_all, paused_by
from tests.admin.room import (
    CONFIGURE,
    OPERATE,
    SILENT,
    WORKER,
    act_on,
    address,
    chosen,
    group_of,
    order_url,
    overview,
    perform,
    photos,
    run_action,
    worker,
)
from tests.querysets.support import facts, set_raw
from tests.testapp.models import Photo

WHY = {"reason": "why"}
RUNNING = WHY | {"running": "on"}

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

    @property
    def rows(self) -> int:
        """How many rows it changes."""
        return len(self.changes.keys() - {"switch", "orders", "batch size"})

    def send(self, client: Client, rows: Rows) -> Any:
        """Act as a browser does that has shown the page."""
        return (run_action if self.action else perform)(client, self.where(rows), self.sent(rows))

    def sent(self, rows: Rows) -> dict[str, Any]:
        return (chosen(self.action, *rows.values()) if self.action else {}) | self.typed


def button(name: str, state: str, ends: str, record: str, typed: dict[str, str] = WHY) -> Act:
    """Return the act of a button of one row."""
    where = lambda rows: act_on(Photo, name, rows[state])  # noqa: E731
    return Act(f"button {name} of {state}", where, typed, {state: ends}, record)


def action(name: str, changes: dict[str, str], record: str, **typed: str) -> Act:
    """Return the act of an action of the list, on rows in all states."""
    where = lambda rows: address(Photo)  # noqa: E731
    return Act(f"{name} {' '.join(typed)}", where, typed, changes, record, action=name)


def listed(name: str, changes: dict[str, Any], record: str, **more: Any) -> Act:
    """Return the act of a button of the whole list."""
    return Act(f"list {name}", lambda rows: act_on(Photo, name), WHY, changes, record, **more)


def order(what: str, name: str = WORKER, **changes: Any) -> Act:
    """Return the act of an order to a worker process."""
    changes["orders"] = [(what, name, "ada", "why")]
    return Act(f"{what} {name}", lambda rows: order_url(what, name), WHY, changes, "worker order")


def group(page: str) -> Callable[[Rows], str]:
    return lambda rows: photos(page, group=rows["failed"].group)


def switch(rows: Rows) -> str:
    return photos("switch")


def to(state: str, *kinds: str) -> dict[str, Any]:
    return dict.fromkeys(kinds, state)


PAUSED = {"switch": ("testapp.photo", "ada", "why")}
ALL_PAUSED = {"switch": ("*", "ada", "why")}
RESUMED = {"switch": None}
IDLE = ("open", "waiting", "paused")
HELD = ("processing", "expired")

ACTS = [
    button("reset", "failed", "open", "reset"),
    button("pause-row", "open", "paused", "pause rows"),
    button("resume-row", "paused", "open", "resume rows"),
    button("take-back", "processing", "open", "release", RUNNING),
    button("fail", "waiting", "failed", "fail"),
    button("fail", "processing", "failed", "fail", RUNNING),
    action("claim_reset_failed", to("open", "failed"), "reset"),
    action("claim_reset", to("open", "failed", "complete"), "reset", complete="on"),
    action("claim_reset", to("open", "failed", *HELD), "reset", **RUNNING),
    action("claim_pause_rows", to("paused", "open", "waiting"), "pause rows"),
    action("claim_resume_rows", to("open", "paused"), "resume rows"),
    action("claim_release_expired", to("open", "expired"), "release expired"),
    action("claim_take_back", to("open", *HELD), "release", reason="why"),
    action("claim_fail", to("failed", *IDLE), "fail", reason="why"),
    action("claim_fail", to("failed", *IDLE, *HELD), "fail", **RUNNING),
    listed("pause", PAUSED, "pause"),
    listed("resume", RESUMED, "resume", first=lambda: pause(Photo)),
    listed("release-expired", to("open", "expired"), "release expired"),
    Act("pause", switch, WHY | {"turn": "off", "until": "900"}, PAUSED, "pause"),
    Act("resume", switch, {"turn": "on"}, RESUMED, "resume", first=lambda: pause(Photo)),
    order("drain"),
    order("stop"),
    order("release"),
    order("release", SILENT, processing="open"),
    Act("retry some", group("first"), {}, to("open", "failed"), "reset"),
    Act("retry all", group("retry"), WHY, to("open", "failed"), "reset"),
    Act(
        "settings",
        lambda rows: photos("settings"),
        WHY | {"batch_size": "7"},
        {"batch size": 7},
        "settings",
        needs=CONFIGURE,
    ),
    Act("pause all models", lambda rows: overview("pause"), WHY, ALL_PAUSED, "pause"),
    Act(
        "resume all models",
        lambda rows: overview("resume"),
        WHY,
        RESUMED,
        "resume",
        first=pause_all,
    ),
]


def scene(boss: Client, in_states: Any) -> Rows:
    """Make rows in all states and two workers, one of which has fallen silent with a row."""
    rows: Rows = in_states(Photo)
    set_raw(rows["processing"], "claimed_by", f"'{SILENT}#1'")
    worker()
    worker(SILENT, silent=True)
    rows["failed"].group = group_of(boss)
    return rows


def world(rows: Rows) -> dict[str, Any]:
    """Return all that an act could change."""
    switch = paused_by(Photo)
    stored = LiveSettings.objects.first()
    orders = WorkerOrder.objects.order_by("pk").values_list("order", "worker", "by", "reason")
    return {kind: facts(row).status for kind, row in rows.items()} | {
        "switch": switch and (switch.scope, switch.by, switch.reason),
        "orders": list(orders),
        "batch size": stored and stored.batch_size,
    }


def clear() -> None:
    """Forget all that a committed act has left."""
    for model in (Photo, WorkerProcess, WorkerOrder, LiveSettings, OperatorAct, LogEntry):
        model._default_manager.all().delete()
    for alias in ("default", "other"):
        Switch.objects.using(alias).all().delete()
