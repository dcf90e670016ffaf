"""A worker that has done many rows is no bigger than one that has done few."""

import os
from pathlib import Path

import pytest
from django.db import connection

from tests.sessions import other_sessions
from tests.testapp.models import Job
from tests.worker.conftest import Start, states, wait_until

pytestmark = pytest.mark.long

#: A million by hand, ``TASKCLAIM_TEST_ROWS=1000000``; what a CI run can afford otherwise.
ROWS = int(os.environ.get("TASKCLAIM_TEST_ROWS", "30000"))
WARM_UP = ROWS // 3
MEBIBYTE = 2**20
#: What allocators may take in time, for any number of rows, and SQLite for the pages of three connections.
NOISE = (2 if connection.vendor != "sqlite" else 8) * MEBIBYTE
SLOPE = MEBIBYTE / 100_000


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.promise(13)
@pytest.mark.timeout(600 + ROWS // 40)
def test_nothing_grows_with_the_rows(start_worker: Start) -> None:
    """Memory, file descriptors and connections are the same after the rows as after the warm-up."""
    for start in range(0, ROWS, 10_000):
        Job.objects.bulk_create([Job() for _ in range(min(10_000, ROWS - start))], batch_size=1000)
    worker = start_worker("--lease", "60", model="testapp.QuickJob", TASKCLAIM_TEST_LOG="")
    (child,) = wait_until(worker.children)
    samples: list[tuple[int, int, int, int]] = []

    def look() -> bool:
        done = states().get("complete", 0)
        if done >= WARM_UP:
            samples.append((done, resident(child), descriptors(child), len(other_sessions())))
        return done == ROWS

    # Counting a million rows takes a while, too.
    wait_until(look, 120 + ROWS / 50, "all rows are done", every=max(0.1, ROWS / 200_000))
    assert worker.children() == [child]
    first, last = samples[0], samples[-1]
    rows = last[0] - first[0]
    print(
        f"{rows} rows after the warm-up: {(last[1] - first[1]) / MEBIBYTE:+.2f} MiB", samples[::20]
    )
    assert last[1] - first[1] < NOISE + SLOPE * rows
    assert max(sample[2] for sample in samples) - first[2] <= 2
    assert max(sample[3] for sample in samples) <= first[3] + 1
