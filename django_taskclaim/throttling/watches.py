"""When each health check is asked, where, and what holds because of it.

Checks of ours send one bounded statement and are asked on the caller's connection. Any other check is asked in a
thread of its own: it may hang for ever, and the caller has leases to renew.
"""

import logging
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from django_taskclaim import conf
from django_taskclaim.claim import clock
from django_taskclaim.throttling.answers import Answer, Check, Surroundings, understood
from django_taskclaim.throttling.configured import name_of
from django_taskclaim.throttling.health import ServerCheck
from django_taskclaim.throttling.holds import Hold

logger = logging.getLogger("django_taskclaim.throttling")

#: A stop outlives so many looks that should have been taken, then ends by itself.
LOOKS_MISSED = 3

#: Seconds that it holds at least, for the thread that looks comes round once a second, or later when it is busy.
SHORTEST_STOP = 5.0

#: Seconds between two warnings about one check that does not work.
WARN_EVERY = 60.0


class Watch:
    """One check, the models it stops, and what it said last. ``look`` is for one thread, ``hold`` for any."""

    def __init__(self, check: Check, models: Sequence[type[Model]], using: str) -> None:
        self.name = name_of(check)
        self.models = tuple(models)
        self.due_at = float("-inf")
        self._check = check
        self._where = Surroundings(models[0], using)
        self._hold: Hold | None = None
        self._warned_at = float("-inf")

    def hold(self) -> Hold | None:
        """Return the stop that is in force."""
        held = self._hold
        return held if held is not None and clock() < held.until else None

    def look(self) -> bool:
        """Ask the check and note what it says; True if the database has answered.

        A check that raises stops nothing, which a warning a minute tells. An error of a connection that is gone is
        raised: that is the caller's trouble, not the check's.
        """
        self._plan_next()
        session = self._where.connection.connection
        try:
            answer = understood(self._check(self._where))
        except Exception as error:
            self._broken(f"{type(error).__name__}: {error}")
            if isinstance(error, Error) and not _outlived(self._where.connection, session):
                raise
            return False
        self._noted(answer)
        return True

    def _plan_next(self) -> None:
        every = conf.duration("HEALTH_EVERY").total_seconds()
        # Spread out, so that the processes of a host do not all ask at once.
        self.due_at = clock() + every * random.uniform(0.75, 1.0)

    def _noted(self, answer: Answer) -> None:
        if answer.reason is None:
            self._hold = None
        elif answer.lasting is None:
            self._hold = Hold(answer.reason, clock() + _unasked())
        else:
            until = clock() + answer.lasting.total_seconds()
            self._hold = Hold(answer.reason, until)
            self.due_at = until

    def _broken(self, why: str) -> None:
        self._hold = None
        if clock() - self._warned_at >= WARN_EVERY:
            self._warned_at = clock()
            logger.warning(
                "The health check %s does not work, so it stops nothing: %s",
                self.name,
                why,
                extra={"event": "check_broken", "check": self.name},
            )


class WatchInThread(Watch):
    """A check that is asked in a thread of its own, one at a time; its answer counts once it has come."""

    def __init__(self, check: Check, models: Sequence[type[Model]], using: str) -> None:
        super().__init__(check, models, using)
        self._asked_at = 0.0
        self._thread: threading.Thread | None = None

    def look(self) -> bool:
        """Have the check asked, unless the last asking is still under way; False, for who knows whom it asks."""
        self._plan_next()
        if self._thread is not None and self._thread.is_alive():
            silent = clock() - self._asked_at
            # Until then it may be slow, and what it said last still holds.
            if silent > _unasked():
                self._broken(f"it has not answered for {silent:.0f} s")
            return False
        self._asked_at = clock()
        self._thread = threading.Thread(target=self._ask, name="taskclaim-check", daemon=True)
        self._thread.start()
        return False

    def _ask(self) -> None:
        try:
            answer = understood(self._check(self._where))
        except Exception as error:
            self._broken(f"{type(error).__name__}: {error}")
        else:
            self._noted(answer)
        finally:
            connections.close_all()


def _unasked() -> float:
    """Return for how many seconds an answer stands that nobody renews."""
    return max(LOOKS_MISSED * conf.duration("HEALTH_EVERY").total_seconds(), SHORTEST_STOP)


def _outlived(connection: BaseDatabaseWrapper, session: Any) -> bool:
    """Say whether the session that an error came from is still there; ``atomic`` opens another where it is not."""
    same = session is None or session is connection.connection
    return same and connection.connection is not None and bool(connection.is_usable())


def watches(checks_of: Mapping[type[Model], Sequence[Check]], using: str) -> Iterator[Watch]:
    """Yield what must be asked: a check of the server once for all its models, any other once for each."""
    together: dict[int, tuple[Check, list[type[Model]]]] = {}
    for model, checks in checks_of.items():
        for check in checks:
            if isinstance(check, ServerCheck):
                together.setdefault(id(check), (check, []))[1].append(model)
            else:
                yield _watch(check, [model], using)
    for check, models in together.values():
        yield _watch(check, models, using)


def _watch(check: Any, models: Sequence[type[Model]], using: str) -> Watch:
    bounded = isinstance(check, ServerCheck) and check.asks(using)
    return (Watch if bounded else WatchInThread)(check, models, using)
