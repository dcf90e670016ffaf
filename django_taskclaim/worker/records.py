"""What a worker shows: one log record per change of state, the facts in ``extra``, and the file of liveness probes."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.db import models

from django_taskclaim.claim import claim_of, clock
from django_taskclaim.columns import source_key_text
from django_taskclaim.contention import is_refusal
from django_taskclaim.error_text import class_and_text, describe, log, one_line
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.formatting import counted, with_source
from django_taskclaim.worker.batch import HeldRow
from django_taskclaim.worker.counters import Counters

logger = logging.getLogger("django_taskclaim.worker")


def changed(
    event: str,
    rows: Sequence[models.Model],
    seconds: float,
    *,
    level: int = logging.DEBUG,
    raised: BaseException | None = None,
    **facts: Any,
) -> None:
    """Record that *rows* of one model were claimed, completed, failed, released or lost, by a statement of *seconds*.

    Among the facts ``ran`` says how many seconds handlers had taken. A ``reason`` is logged as it is, so what an error
    says goes through ``one_line`` or ``class_and_text`` first. *raised* brings its traceback, redacted where there is a
    hook.
    """
    if not logger.isEnabledFor(level):
        return
    first = rows[0]
    claim = claim_of(first)
    many = f"{counted(len(rows), 'row')} of {first._meta.label}"
    what = named(first) if len(rows) == 1 else many
    if "ran" in facts:
        what += f", {facts['ran']:,.3f} s in the handler"
    if seconds:
        what += f", {seconds * 1000:.1f} ms in the database"
    if "reason" in facts:
        what += f": {facts['reason']}"
    facts |= {
        "event": event,
        "model": first._meta.label,
        "rows": len(rows),
        "seconds": seconds,
        "keys": [_key(row) for row in rows],
        "holder": claim.token.holder if claim is not None else None,
    }
    log(logger, level, "%s %s", event.capitalize(), what, raised=raised, extra=facts)


def lost(held: HeldRow, why: str, *, error: BaseException | None = None) -> None:
    """Record once that the claim of a row is lost, with what its handler raised, if it did.

    What it raises after the loss was recorded is recorded by itself, as ``raised``.
    """
    again = held.claim.loss_logged
    if again and (error is None or isinstance(error, ClaimLost)):
        return
    held.claim.loss_logged = True
    facts = {"reason": why}
    if error is not None:
        name, text = class_and_text(error)
        facts = {"error": name, "reason": f"{why}; its handler raised {one_line(name, text)}"}
    event = "raised" if again else "lost"
    changed(event, [held.row], 0.0, level=logging.WARNING, raised=error, **facts)


def broken(what: str, error: BaseException | str, **facts: object) -> None:
    """Log that something went wrong that no row records, with its traceback."""
    raised = error if isinstance(error, BaseException) else None
    said = what if raised else f"{what}: {describe(error)}"
    log(logger, logging.ERROR, "%s", said, raised=raised, extra=facts)


def summary(name: str, counters: Counters, held: int) -> None:
    """Record the counts of one process."""
    done, failed = counters.done, counters.failed
    what = f"{counted(done, 'row')} done, {failed:,} failed, {held:,} held"
    facts = {"event": "summary", "done": done, "failed": failed, "held": held}
    logger.info("%s: %s", name, what, extra=facts)


def named(row: models.Model) -> str:
    """Name a row by model and key, a companion by its source's too; a ``__str__`` might ask the database, or raise."""
    return f"{row._meta.label} {with_source(_key(row), source_key_text(row))}"


def _key(row: models.Model) -> str:
    claim = claim_of(row)
    return str(row.pk if claim is None else claim.pk)


#: By ``clock()``, when the same trouble may be logged again.
_quiet_until: dict[str, float] = {}


def log_rarely(what: str, error: BaseException) -> None:
    """Log that *what* failed: once every ten seconds at most, and a fault, with its traceback, once a minute."""
    if clock() < _quiet_until.get(what, 0.0):
        return
    is_fault = is_refusal(error)
    _quiet_until[what] = clock() + (60.0 if is_fault else 10.0)
    if is_fault:
        broken(f"{what} failed", error)
    else:
        logger.warning("%s: %s", what, describe(error), extra={"event": "trouble"})


def touch(path: str | None) -> None:
    """Touch the health file, if there is one; a failure is logged, and the file grows old."""
    try:
        if path is not None:
            Path(path).touch()
    except OSError as error:
        log_rarely("touching the health file", error)


def log_to_console(verbosity: int) -> None:
    """Show what happens on standard error where the project's LOGGING says nothing of this package."""
    ours = logging.getLogger("django_taskclaim")
    if ours.hasHandlers():
        return
    console = logging.StreamHandler()
    console.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    ours.addHandler(console)
    ours.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbosity, logging.DEBUG))
