"""What a worker keeps of its rows: no memory, no connection and no file, counted by its own process."""

import gc
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from statistics import median_low
from typing import Any

import pytest

from tests.factories import make
from tests.testapp.models import Photo
from tests.waiting import wait_until

# No sample is taken of the last rows, when fewer are claimed ahead.
ROWS, STEP = 2090, 400


@pytest.mark.promise(13)
def test_rows_that_are_done_leave_no_memory_and_no_descriptor(work: Callable[..., int]) -> None:
    """Each thing that is kept is a block of memory at least, and a connection a descriptor."""
    make(Photo, ROWS)
    done = 0
    # Blocks of memory, and open files.
    samples: list[tuple[int, int]] = []

    def measure(photo: Any) -> None:
        nonlocal done
        done += 1
        # So that the thread has a connection, as most handlers' threads do.
        assert Photo.objects.filter(pk=photo.pk).exists()
        photo.width = 640
        if done % STEP == 0:
            # Rows whose result waits to be written are memory, too, but not for long.
            wait_until(lambda: Photo.objects.filter(status="complete").count() == done - 1)
            gc.collect()
            samples.append((sys.getallocatedblocks(), len(os.listdir("/proc/self/fd"))))

    assert work(Photo, measure, "--batch-size", "50", update_fields=["width"]) == 0
    assert Photo.objects.filter(status="complete", width=640).count() == ROWS
    # Caches fill now and then; what is kept of each row shows between most samples.
    assert median_low(after - before for (before, _), (after, _) in pairwise(samples)) < STEP
    assert samples[-1][1] - samples[0][1] <= 2
