"""Waiting for a lock on a table without keeping everybody else waiting behind.

Whoever waits for a lock that excludes the others makes them queue. So it waits a moment only, lets the queue go first,
and tries again.
"""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from django.db import DatabaseError

from django_taskclaim.contention import contention_code
from django_taskclaim.exceptions import TableInUse
from django_taskclaim.wording import lasting, listed

logger = logging.getLogger("django_taskclaim.adoption")

T = TypeVar("T")

#: Seconds that a lock is waited for, and everybody else behind it.
PATIENCE = 0.05
#: Seconds between two tries.
PAUSE = 0.5
#: Seconds until it says whom it waits for, and until it gives up.
SAY_AFTER, GIVE_UP = 3.0, 600.0

#: ER_QUERY_INTERRUPTED: the statement was ended because it had waited long enough.
INTERRUPTED = 1317


def patiently(
    attempt: Callable[[], T],
    table: str,
    users: Callable[[], Sequence[str]] = list,
    *,
    give_up: float = GIVE_UP,
) -> T:
    """Return what *attempt* returns, tried again while the table is in use; TableInUse after *give_up* seconds.

    *users* says who uses the table, in words for whoever waits.
    """
    began = time.monotonic()
    said = False
    while True:
        try:
            return attempt()
        except DatabaseError as error:
            if not is_in_use(error):
                raise
            waited = time.monotonic() - began
            if waited > give_up:
                raise TableInUse(table, timedelta(seconds=waited), list(users())) from error
            if waited > SAY_AFTER and not said:
                said = True
                _say(table, users())
            time.sleep(PAUSE)


def is_in_use(error: BaseException) -> bool:
    """Say whether a lock could not be had in time."""
    code = error.args[0] if error.args else None
    return code == INTERRUPTED or contention_code(error) is not None


def _say(table: str, users: Sequence[str]) -> None:
    by = f" by {listed(users)}" if users else ""
    logger.warning(
        "The table %s is in use%s. Trying again every %s s, for %s at most; nobody waits long behind that.",
        *(table, by, PAUSE, lasting(timedelta(seconds=GIVE_UP))),
        extra={"event": "waiting", "table": table},
    )
