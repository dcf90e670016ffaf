"""While a backlog never ends, urgent rows, retried rows and rows put back still have their turn."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command

from django_taskclaim import handler
from django_taskclaim.handlers import unregister
from tests.factories import make
from tests.querysets.support import DEADLINE, clock, set_raw
from tests.testapp.models import Photo

# A run within the test's own process leaves the sockets of its supervisor to the collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.django_db(transaction=True),
]


def urgent() -> Any:
    (row,) = make(Photo, priority=5)
    return row


def retried() -> Any:
    """It waited, so it stands behind every row that never did."""
    (row,) = make(Photo)
    set_raw(row, "not_before", clock("-1 MINUTE"))
    return row


def put_back() -> Any:
    """Its key comes before those of all rows that are claimed by now."""
    row = Photo.objects.filter(country="FI").get()
    Photo.objects.filter(pk=row.pk).resume_rows()
    return row


@pytest.mark.parametrize("come", [urgent, retried, put_back])
def test_a_row_that_comes_while_the_backlog_never_ends_is_done(come: Callable[[], Any]) -> None:
    """Every row done brings a new one until the row in question was seen."""
    make(Photo, 1, country="FI", status="paused")
    make(Photo, 20)
    done: list[Any] = []
    awaited: list[Any] = []
    end = time.monotonic() + 2 * DEADLINE

    @handler(Photo, batch_size=2)
    def work(row: Photo) -> None:
        done.append(row.pk)
        if len(done) == 6:
            awaited.append(come().pk)
        if not set(awaited) & set(done) and time.monotonic() < end:
            make(Photo)

    try:
        call_command("claimworker", "testapp.Photo", "--in-process", "--drain", "--poll", "0.1")
    finally:
        unregister(Photo)
    assert awaited[0] in done
    assert len(done) == len(set(done))
    assert time.monotonic() < end
