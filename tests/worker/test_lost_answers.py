"""Answers to a worker's COMMITs that never arrive: rows have their effect once, and keep nobody else waiting."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, connections

from django_taskclaim.worker.batch import DONE, Failed, Outcome, PutBack, hold
from django_taskclaim.worker.feeds import Feed
from django_taskclaim.worker.keeper import LeaseKeeper
from django_taskclaim.worker.options import WorkerOptions
from tests.factories import make
from tests.limits.conftest import under
from tests.proxy import FATES, HAS_A_SERVER, CommitProxy, Fate, swallowed, url_through, withheld
from tests.querysets.support import execute, fresh, held_open, set_raw
from tests.testapp.models import Effect, Photo
from tests.worker.conftest import Start, jobs, states, write_all, writer_of

pytestmark = pytest.mark.skipif(not HAS_A_SERVER, reason="needs a server behind a network")

#: What the connection whose COMMIT is lost has sent or heard before.
MARK = "unanswered"


@pytest.fixture
def proxy(work: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommitProxy]:
    """Stand between the database and threads of this process that begin from now on."""
    connection.ensure_connection()
    settings: Any = connections.settings["default"]
    with CommitProxy() as proxy, monkeypatch.context() as patched:
        patched.setitem(settings, "HOST", "127.0.0.1")
        patched.setitem(settings, "PORT", str(proxy.port))
        if connection.vendor == "postgresql":
            patched.setitem(settings["OPTIONS"], "sslmode", "disable")
        yield proxy
    connection.close()


@pytest.mark.promise(5)
@FATES
@pytest.mark.parametrize("atomic", [True, False], ids=["atomic", "plain"])
def test_a_row_whose_completion_was_not_answered_has_its_effect_once(
    proxy: CommitProxy,
    work: Callable[..., int],
    caplog: pytest.LogCaptureFixture,
    fate: Fate,
    atomic: bool,
) -> None:
    """The worker finds out what became of it. Only an atomic handler whose COMMIT did not arrive runs again."""
    caplog.set_level("INFO", "django_taskclaim.worker")
    keys = sorted(row.pk for row in make(Photo, 3))
    ran: list[int] = []

    def measure(photo: Photo) -> None:
        ran.append(photo.pk)
        Effect.objects.create(key=str(photo.pk))
        photo.note = MARK

    proxy.arm(fate, heard=MARK.encode())
    assert (
        work(Photo, measure, atomic=atomic, timeout=10, backoff=at_once, update_fields=["note"])
        == 0
    )
    assert proxy.sprung.is_set()
    assert set(Photo.objects.values_list("status", "note")) == {("complete", MARK)}
    assert sorted(int(key) for key in Effect.objects.values_list("key", flat=True)) == keys
    assert len(ran) == 3 + (atomic and fate is withheld)
    assert "3 rows done, 0 failed" in caplog.text
    assert "lost" not in {getattr(one, "event", "") for one in caplog.records}


@pytest.mark.promise(5)
def test_a_batch_that_may_be_committed_and_is_gone_is_reported_with_the_error(
    proxy: CommitProxy, work: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    make(Photo, 2)

    def measure(photos: list[Photo]) -> None:
        Effect.objects.create(key=MARK)

    proxy.arm(swallowed, heard=MARK.encode())
    assert work(Photo, measure, atomic=True, batch=True, timeout=10, completion="delete") == 0
    found = [one for one in caplog.records if getattr(one, "event", "") == "undecided"]
    assert [one.exc_info and one.exc_info[0] for one in found] == [OperationalError] * 2


@pytest.mark.promise(5)
def test_rows_of_two_commits_are_read_back_apart(
    transactional_db: None, caplog: pytest.LogCaptureFixture
) -> None:
    """One COMMIT has arrived. What cannot be written of the other row does not undo what was read of the first."""
    done, other = make(Photo, 2)
    writer, inflight, handler = writer_of(Photo)
    inflight.add(hold(handler, Photo.objects.claim_batch(2)))
    never = PutBack("the database was away", timedelta.max)
    for _ in range(2):
        item: Any = inflight.take(0, threading.Event(), is_async=False)
        (held,) = item.rows
        held.ending = held.claim.unanswered = True
        held.commit_error = OperationalError("no answer")
        inflight.judge(item, {held: never})
        inflight.settle(item)
        # The circuit breaker hears of nothing that may have been done.
        assert item.outcomes == []
    set_raw(done, "status", "'complete'")
    write_all(writer)
    assert (writer.counters.done, "Lost" in caplog.text) == (1, False)
    assert fresh(other).status == "processing"


def at_once(failures: int) -> float:
    return 0


def never_answered(sent: bytes, client: Any, server: Any) -> None:
    """Pass nothing on and close nothing."""


@pytest.mark.promise(7)
def test_a_claim_that_never_commits_keeps_others_from_its_row_for_a_while_only(
    start_worker: Start,
) -> None:
    """The worker is cut off inside the transaction of its claim, and the server ends it."""
    jobs(1, f"work:{MARK}")
    # Under a limit a claim is a transaction, with a lock that all claims of the model wait for.
    options, limits = ("--in-process", "--lease", "4"), under(max_running=5)
    with CommitProxy() as proxy:
        proxy.arm(never_answered, heard=MARK.encode())
        start_worker(*options, **limits, DATABASE_URL=url_through(proxy.port))
        assert proxy.sprung.wait(120)
        assert states() == {"open": 1}
        assert start_worker(*options, "--drain", **limits).wait() == 0
    assert states() == {"complete": 1}


@pytest.mark.promise(5)
@pytest.mark.parametrize("outcome", [DONE, Failed("it failed")], ids=["plain", "atomic"])
def test_a_row_whose_transaction_is_committed_late_is_done_and_not_lost(
    transactional_db: None, caplog: pytest.LogCaptureFixture, outcome: Outcome
) -> None:
    """Its COMMIT was not answered, and was still under way when the worker first asked the row."""
    make(Photo, 1)
    writer, inflight, handler = writer_of(Photo)
    inflight.add(hold(handler, Photo.objects.claim_batch(1)))
    item: Any = inflight.take(0, threading.Event(), is_async=False)
    item.rows[0].claim.unanswered = True
    item.rows[0].ending = outcome is not DONE
    item.rows[0].claim.local_deadline = 0.0
    inflight.judge(item, {item.rows[0]: outcome})
    inflight.settle(item)
    late = "UPDATE testapp_photo SET status = 'complete'"
    with held_open(lambda: execute(late), then=lambda: None):
        writer.write()
    options = WorkerOptions((Photo._meta.label,), "w", "default")
    LeaseKeeper("default", [Feed(handler, options)], inflight).renew_when_due()
    write_all(writer)
    assert (writer.counters.done, "Lost" in caplog.text) == (1, False)
