"""Forgetting what is too old where no worker lives that would: with people and cron alone ``release_expired`` does."""

from collections.abc import Callable

from django_taskclaim.control import keeping
from django_taskclaim.control.installed import is_on
from django_taskclaim.worker import heartbeat

#: Pieces a call, of CHUNK_SIZE rows each; what is left then is left for the next one.
PIECES = 100


def forget(alias: str) -> None:
    """Delete what is written down on the database and older than its setting says, as workers do once an hour."""
    _all_of(lambda: heartbeat.prune(alias))
    if is_on(alias):
        _all_of(lambda: keeping.prune(alias))


def _all_of(prune: Callable[[], bool]) -> None:
    """Prune piece by piece until that was all, or enough for now."""
    for _ in range(PIECES):
        if prune():
            return
