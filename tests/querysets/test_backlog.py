"""While a backlog never ends, urgent rows, retried rows and rows put back still have their turn."""

import itertools
import time
from typing import Any

import pytest
from django.core.management import call_command
from django.db.backends.signals import connection_created

from django_taskclaim.fields import QUARANTINED
from django_taskclaim.querysets.cursor import FULL_SCAN_EVERY, FULL_SCAN_SHARE
from tests.doctor.support import handling
from tests.factories import make
from tests.meanwhile import connected
from tests.querysets.support import DEADLINE, clock, set_raw
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db(transaction=True)


# A run within the test's own process leaves the sockets of its supervisor to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_rows_that_come_while_the_backlog_never_ends_are_done() -> None:
    """Every row done brings a new one until the rows in question were seen."""
    # Its key comes before those of all rows that are claimed when it is put back.
    (put_back,) = make(Photo, status="paused")
    make(Photo, 20)
    done: list[Any] = []
    awaited: set[Any] = set()
    end = time.monotonic() + 2 * DEADLINE

    def come() -> None:
        urgent, retried = make(Photo, priority=5) + make(Photo)
        # Its worker was killed on its last try, so ordinary claims leave it out.
        (quarantined,) = make(Photo, not_before=QUARANTINED)
        # It waited, so it stands behind every row that never did.
        set_raw(retried, "not_before", clock("-1 MINUTE"))
        Photo.objects.filter(pk=put_back.pk).resume_rows()
        awaited.update({put_back.pk, urgent.pk, retried.pk, quarantined.pk})

    def work(row: Photo) -> None:
        done.append(row.pk)
        if len(done) == 6:
            come()
        if not (awaited and awaited <= set(done)) and time.monotonic() < end:
            make(Photo)

    with handling(Photo, work, batch_size=2):
        call_command("claimworker", "testapp.Photo", "--in-process", "--drain", "--poll", "0.1")
    assert time.monotonic() < end
    assert len(done) == len(set(done))


@pytest.mark.parametrize("slowness", [0.0, 0.15])
def test_looks_for_quarantined_rows_take_a_tenth_of_the_time_at_most(slowness: float) -> None:
    """One claim in ten looks, and quick looks that find none come once a second; many priorities make them slow."""
    make(Photo, 200)
    looks: list[tuple[float, float]] = []

    def slow(execute: Any, text: str, *others: Any) -> Any:
        plain = text.replace("`", '"')
        if 'id" DESC' not in plain or 'priority" > ' in plain:
            return execute(text, *others)
        began = time.monotonic()
        time.sleep(slowness)
        found = execute(text, *others)
        looks.append((began, time.monotonic()))
        return found

    def follow(connection: Any, **kwargs: Any) -> None:
        connection.execute_wrappers.append(slow)

    with connected(connection_created, follow), handling(Photo):
        options = ["--in-process", "--max-rows", "190", "--batch-size", "1"]
        call_command("claimworker", "testapp.Photo", *options)
    assert looks
    for (began, ended), (following, _) in itertools.pairwise(looks):
        pause = max(FULL_SCAN_EVERY, (ended - began) / FULL_SCAN_SHARE)
        assert following - ended > 0.9 * pause
