"""Handlers that think for longer than two leases between two queries: only a transaction may not be idle so long."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.db import connection

from django_taskclaim.claim import clock
from django_taskclaim.worker.running import USED_LATELY
from tests.factories import make
from tests.proxy import HAS_A_SERVER
from tests.querysets.support import elsewhere, fresh, value_of
from tests.sessions import end_session, other_sessions
from tests.testapp.models import Effect, Photo
from tests.worker.conftest import wait_until

pytestmark = pytest.mark.skipif(not HAS_A_SERVER, reason="needs sessions that a server may end")

LEASE = 8
NUMBER = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT CONNECTION_ID()"}


def own_session() -> int:
    """Return the server's number of the calling thread's session."""
    return int(value_of(NUMBER[connection.vendor]))


@pytest.mark.promise(12)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_session_that_has_ended_meanwhile_is_replaced_before_the_next_row(
    work: Callable[..., int], is_async: bool
) -> None:
    """The server had ended it for being idle, or a pooler was restarted: no row is to blame."""
    rows = make(Photo, 2)
    sessions = []

    def note(photo: Photo) -> None:
        began = clock()
        sessions.append(number := own_session())
        assert elsewhere(end_session, number).result(60)
        elsewhere(wait_until, lambda: number not in other_sessions()).result(240)
        wait_until(lambda: clock() - began > USED_LATELY)

    async def anote(photo: Photo) -> None:
        await sync_to_async(note)(photo)

    how = {"concurrency": 1} if is_async else {}
    assert work(Photo, anote if is_async else note, max_attempts=1, **how) == 0
    assert [(row.status, row.attempts) for row in map(fresh, rows)] == [("complete", 0)] * 2
    assert len(set(sessions)) == 2


def test_between_two_queries_a_handler_may_think_for_long(work: Callable[..., int]) -> None:
    (row,) = make(Photo)

    def think(photo: Photo) -> None:
        Effect.objects.create(key="before")
        first = photo.expires_at
        renewed = elsewhere(
            wait_until, lambda: fresh(row).expires_at > first + timedelta(seconds=2 * LEASE)
        )
        renewed.result(240)
        Effect.objects.create(key="after")

    assert work(Photo, think, lease=LEASE, max_attempts=1) == 0
    assert fresh(row).status == "complete"
    assert set(Effect.objects.values_list("key", flat=True)) == {"before", "after"}


@pytest.mark.promise(7)
def test_inside_its_transaction_an_atomic_handler_may_not(work: Callable[..., int]) -> None:
    """The server ends its session, so that nobody waits for its locks, and the row fails with that error."""
    (row,) = make(Photo)

    def think(photo: Photo) -> None:
        Effect.objects.create(key="before")
        number = own_session()
        ended = elsewhere(wait_until, lambda: number not in other_sessions())
        ended.result(240)
        Effect.objects.create(key="after")

    assert work(Photo, think, atomic=True, lease=LEASE, timeout=200, max_attempts=1) == 0
    row = fresh(row)
    assert (row.status, row.attempts) == ("failed", 1)
    assert row.error_class.endswith(("OperationalError", "InternalError"))
    assert not Effect.objects.exists()
