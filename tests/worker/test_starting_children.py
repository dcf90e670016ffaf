"""A child for which the machine has no room: the others go on, and it is started later."""

import pytest

from tests.worker.conftest import Start, jobs, states, wait_until

#: Run in the supervisor, it lets the second process that multiprocessing starts fail; the first is its tracker.
NO_ROOM_ONCE = """
import errno, os
from multiprocessing import util

started = []

def spawn(*words, usual=util.spawnv_passfds):
    started.append(words)
    if len(started) == 2:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return usual(*words)

util.spawnv_passfds = spawn
"""


@pytest.mark.once
def test_a_child_that_finds_no_room_is_started_later(start_worker: Start) -> None:
    jobs(3)
    worker = start_worker("--processes", "2", first=NO_ROOM_ONCE)
    wait_until(lambda: states() == {"complete": 3}, what="the other one works")
    assert "could not be started: [Errno 11]" in str(worker.events())
    wait_until(lambda: len(worker.children()) == 2, what="the second child")
    assert worker.process.poll() is None
