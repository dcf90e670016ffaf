"""A worker that cannot write to its database, or not in time: what its handlers hear, and what it asks."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from unittest.mock import MagicMock

import pytest

from django_taskclaim.claim import clock
from django_taskclaim.handlers import Handler
from django_taskclaim.limits import stops_of
from django_taskclaim.policy import RENEWALS_PER_LEASE
from django_taskclaim.querysets import isolating
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.switch import set_overrides
from django_taskclaim.worker import keeper
from django_taskclaim.worker.batch import Notes, hold, shared_memory
from django_taskclaim.worker.claimer import Claimer
from django_taskclaim.worker.feeds import Feed
from django_taskclaim.worker.inflight import InFlight
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.service import Service
from tests.factories import make
from tests.locks import keeping_writers_out
from tests.querysets.refusing import FROZEN, refused
from tests.querysets.support import Rival, fresh
from tests.testapp.models import Photo
from tests.worker.conftest import wait_until


@contextlib.contextmanager
def nobody_can_write() -> Iterator[None]:
    rival = Rival()
    lock, unlock = keeping_writers_out("testapp_photo")
    with contextlib.closing(rival):
        rival.execute(lock)
        yield
        rival.execute(unlock)


def renew(handler: Handler, inflight: InFlight) -> None:
    """Have what is held renewed, for its leases are nearly over."""
    for held in inflight.held():
        held.claim.local_deadline = clock() + 1
    feed = Feed(handler, WorkerOptions((), "w", "default"))
    keeper.LeaseKeeper("default", [feed], inflight).renew_when_due()


@pytest.mark.promise(8)
def test_a_handler_hears_that_its_lease_could_not_be_renewed(work: Callable[..., int]) -> None:
    """Nobody else has come, so the lease is renewed in the end, and the row completed."""
    (row,) = make(Photo)
    heard: list[bool] = []

    def wait_for_the_loss(photo: Photo) -> None:
        heard.append(photo.claim.lost)
        with nobody_can_write():
            heard.append(wait_until(lambda: photo.claim.lost))

    assert work(Photo, wait_for_the_loss, lease=12) == 0
    assert heard == [False, True]
    row = fresh(row)
    assert (row.status, row.attempts, row.iteration) == ("complete", 0, 0)


@pytest.mark.promise(8)
def test_a_renewal_that_is_refused_does_not_put_off_the_loss(transactional_db: None) -> None:
    """Nor for the rows that it did not come to, because so many before them were refused."""
    make(Photo, 12, note=FROZEN)
    handler, inflight = Handler(Photo, print), InFlight()
    inflight.add(hold(handler, Photo.objects.claim_batch(12)))
    with refused(Photo):
        renew(handler, inflight)
    assert all(held.is_overdue(clock()) for held in inflight.held())


@pytest.mark.once
@pytest.mark.promise(7)
def test_what_a_child_had_not_begun_goes_back_although_its_successor_stops_at_once(
    transactional_db: None,
) -> None:
    make(Photo, 200)
    handler, memory = Handler(Photo, print, batch=True), shared_memory()
    child = InFlight(Notes(memory))
    for _ in range(100):
        child.add(hold(handler, Photo.objects.claim_batch(2)))
    # One of the halves of a batch that raised has begun.
    item = child.take(0, threading.Event(), is_async=False)
    assert item
    child.halve(item)
    assert child.take(0, threading.Event(), is_async=False)
    inflight, options = InFlight(Notes(memory)), WorkerOptions((Photo._meta.label,), "w", "default")
    service = Service(options, [handler], inflight)
    claimer = Claimer(service)
    claimer.leave()
    claimer.start()
    claimer.join(120)
    assert Photo.objects.open().count() == 199


@pytest.mark.once
def test_rows_that_are_refused_are_read_once_for_all_that_are_held(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that holds a thousand rows may have met a thousand others that the database refuses."""
    make(Photo, 3)
    handler, inflight = Handler(Photo, print), InFlight()
    inflight.add(hold(handler, Photo.objects.claim_batch(3)))
    asked = MagicMock(wraps=isolating.refusals)
    for module in (isolating, keeper):
        monkeypatch.setattr(module, "refusals", asked, raising=False)
    isolating._remember(ClaimTarget.of(Photo, "default"), 0, ValueError())
    renew(handler, inflight)
    assert asked.call_count == 1


@pytest.mark.once
def test_renewals_follow_the_shortest_lease_that_is_held(db: None) -> None:
    """Also once an override has made the leases of the next claims longer."""
    make(Photo)
    handler, inflight = Handler(Photo, print), InFlight()
    service = Service(WorkerOptions((Photo._meta.label,), "w", "default"), [handler], inflight)
    inflight.add(hold(handler, Photo.objects.claim_batch(1, lease=4)))
    set_overrides(Photo, lease=timedelta(hours=1), using="default")
    (feed,) = service.feeds
    feed.stops = stops_of(Photo)
    assert feed.lease() == timedelta(hours=1)
    assert service.keeper.renewal_interval() == 4 / RENEWALS_PER_LEASE
