"""What the oracle reads: the history that triggers write, the effects of handlers, and the acts of the runner.

One more trigger refuses the completion of rows with the act "refuse", with an error of Django's OperationalError.
"""

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from django.db import connection
from django.db.models import F, Max

from django_taskclaim.db import DatabaseLater, DatabaseNow
from tests.chaos.app.models import TRACKED, Act, Effect, History, Orphan, Work

VENDOR = connection.vendor

#: The clock of the database at the start of the statement, the one that claims are decided by.
NOW = {
    "postgresql": "STATEMENT_TIMESTAMP()",
    "mysql": "UTC_TIMESTAMP(6)",
    "sqlite": "STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', 'now')",
}[VENDOR]

#: Raises an error of Django's OperationalError; RAISE() of SQLite would be an IntegrityError.
REFUSE = {
    "postgresql": "RAISE EXCEPTION 'the trigger refuses this result' USING ERRCODE = '54000'",
    "mysql": "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the trigger refuses this result'",
    "sqlite": "SELECT JSON('the trigger refuses this result')",
}[VENDOR]


def later(moment: str, seconds: float | str) -> str:
    """Return *moment* (an expression) so many seconds later; *seconds* may be an expression too."""
    return {
        "postgresql": f"({moment} + ({seconds}) * INTERVAL '1 second')",
        "mysql": f"({moment} + INTERVAL ROUND(({seconds}) * 1000000) MICROSECOND)",
        "sqlite": f"STRFTIME('%%Y-%%m-%%d %%H:%%M:%%f', {moment}, ({seconds}) || ' seconds')",
    }[VENDOR]


def differs(left: str, right: str) -> str:
    """Compare two values of which either may be NULL."""
    return {
        "postgresql": f"{left} IS DISTINCT FROM {right}",
        "mysql": f"NOT ({left} <=> {right})",
        "sqlite": f"{left} IS NOT {right}",
    }[VENDOR]


def ask(statement: str, params: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """Send a statement and return its rows, if it has any."""
    with connection.cursor() as cursor:
        cursor.execute(statement, tuple(params))
        if cursor.description is None:
            return []
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


# The triggers


def watch() -> None:
    """Put the triggers on the work table, and begin a new file of effects."""
    uninstall()
    changed = " OR ".join(differs(f"OLD.{name}", f"NEW.{name}") for name in COLUMNS)
    _trigger("insert", "AFTER INSERT", "TRUE", _copy("I", "", "NEW"))
    _trigger("update", "AFTER UPDATE", changed, _copy("U", "OLD", "NEW"))
    _trigger("delete", "AFTER DELETE", "TRUE", _copy("D", "OLD", ""))
    refused = "NEW.status = 'complete' AND NEW.act = 'refuse'"
    _trigger("refuse", "BEFORE UPDATE", refused, REFUSE)
    Path(ledger()).unlink(missing_ok=True)


def _trigger(name: str, when: str, condition: str, statement: str) -> None:
    body = f"BEGIN IF {condition} THEN {statement}; END IF;"
    if VENDOR == "postgresql":
        function = f"chaos_{name}() RETURNS trigger LANGUAGE plpgsql"
        ask(f"CREATE FUNCTION {function} AS $$ {body} RETURN NEW; END $$")
    does = {
        "postgresql": f"EXECUTE FUNCTION chaos_{name}()",
        "mysql": f"{body} END",
        "sqlite": f"WHEN {condition} BEGIN {statement}; END",
    }[VENDOR]
    ask(f"CREATE TRIGGER chaos_{name} {when} ON chaos_work FOR EACH ROW {does}")


def uninstall() -> None:
    """Take the triggers off: emptying the table is no change of rows."""
    for name in ("refuse", "insert", "update", "delete"):
        kind, more = ("FUNCTION", "() CASCADE") if VENDOR == "postgresql" else ("TRIGGER", "")
        ask(f"DROP {kind} IF EXISTS chaos_{name}{more}")


COLUMNS = [Work._meta.get_field(name).column for name in TRACKED]


def _copy(op: str, old: str, new: str) -> str:
    """Return the INSERT of one entry; *old* or *new* is empty where there is no such row."""
    values = [f"{row}.{name}" if row else "NULL" for row in (old, new) for name in COLUMNS]
    names = [f"{when}_{name}" for when in ("old", "new") for name in COLUMNS]
    return (
        f"INSERT INTO chaos_history (work_id, op, at, {', '.join(names)})"
        f" VALUES ({new or old}.id, '{op}', {NOW}, {', '.join(values)})"
    )


# What handlers write down


def ledger() -> str:
    """Return the file of what handlers tell whether or not the database has it."""
    return os.environ["TASKCLAIM_CHAOS_LEDGER"]


class Run:
    """One call of a handler, for one row or for a batch."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.name = uuid.uuid4().hex
        self.tokens = [(row.pk, *row.claim.token) for row in rows]
        self.raised = False

    def __enter__(self) -> Self:
        """Tell that it begins, and have an effect: what the handler rolls back, or swallows, takes that along."""
        self.tell("started")
        self.have_effect()
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self.tell("raised" if kind or self.raised else "ended")

    def have_effect(self) -> None:
        """Write over the handler's own connection, inside its transaction if it has one."""
        Effect.objects.bulk_create([effect(*token, self.name, "effect") for token in self.tokens])

    def tell(self, phase: str) -> None:
        """Append to the file at once, also while the database is away."""
        lines = [json.dumps([*token, self.name, phase]) for token in self.tokens]
        file = os.open(ledger(), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            # A line of a process that was killed half-way ends before the next one.
            os.write(file, "\n".join(["", *lines, ""]).encode())
        finally:
            os.close(file)


def effect(key: int, holder: str, iteration: int, run: str, phase: str) -> Effect:
    return Effect(work_id=key, holder=holder, iteration=iteration, run=run, phase=phase)


def gather() -> None:
    """Bring what the file holds into the table that the oracle reads."""
    path, effects = Path(ledger()), []
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            effects.append(effect(*json.loads(line)))
    path.unlink(missing_ok=True)
    Effect.objects.bulk_create(effects, batch_size=500)


# What the runner writes down


@contextmanager
def act(kind: str, worker: str = "") -> Iterator[None]:
    """Write down that something is done to the workers for as long as the block lasts."""
    noted = Act.objects.create(kind=kind, worker=worker, began_at=DatabaseNow())
    yield
    # Asked for by itself: as part of the UPDATE it would lock the end of the history on MySQL.
    last = History.objects.aggregate(last=Max("seq"))["last"] or 0
    Act.objects.filter(pk=noted.pk).update(ended_at=DatabaseNow(), ended_after=last)


def harm(worker: str = "", seconds: float = 40) -> None:
    """Write down that a worker, or everybody, may lose claims for so many seconds from now."""
    until = DatabaseLater(timedelta(seconds=seconds))
    Act.objects.create(kind="harm", worker=worker, began_at=DatabaseNow(), ended_at=until)


def orphans(kind: str, worker: str, bound: float) -> None:
    """Write down the claims of a worker that has just been killed or frozen; they must end within *bound* seconds."""
    ask(
        "INSERT INTO chaos_orphan (kind, work_id, holder, iteration, left_at, bound)"
        f" SELECT %s, id, claimed_by, iteration, {NOW}, %s FROM chaos_work"
        " WHERE status = 'processing' AND claimed_by LIKE %s",
        [kind, bound, f"{worker}%"],
    )


def leave(seconds: float) -> None:
    """Give the claims of the lately dead more time: the database itself was away."""
    lately = DatabaseLater(timedelta(seconds=-60))
    Orphan.objects.filter(left_at__gt=lately).update(bound=F("bound") + seconds)
