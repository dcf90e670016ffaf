"""What a worker costs that has nothing to do: hardly any computing, and one question for each look."""

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from django_taskclaim.switch import pause, resume
from tests.testapp.models import Job, Ledger
from tests.worker.conftest import Worker, jobs, wait_until

pytestmark = [pytest.mark.long, pytest.mark.django_db(transaction=True, databases="__all__")]

Start = Callable[..., Worker]

#: How long it is watched: a minute by hand, less in CI.
SECONDS = float(os.environ.get("TASKCLAIM_TEST_IDLE", "20"))
POLL = 1.0

#: What begins a transaction or sets up a session asks nothing.
SETTING_UP = ("BEGIN", "SET ", "SHOW ", "PRAGMA ")


def computed(pids: list[int]) -> float:
    """Return the seconds of processor time, of the user and of the system, that the processes have used."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def asked(log: Path) -> Counter[str]:
    """Return how many questions each thread has put to the database so far."""
    lines = (line.split(": ", 1) for line in log.read_text().splitlines())
    return Counter(thread for thread, sql in lines if not sql.startswith(SETTING_UP))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_an_idle_worker_costs_next_to_nothing(start_worker: Start, tmp_path: Path) -> None:
    """Under 1 % of a core for supervisor and process together, and at most one question for each poll."""
    log = tmp_path / "statements"
    jobs(1)
    worker = start_worker(
        "--poll",
        str(POLL),
        TASKCLAIM_TEST_STATEMENTS=str(log),
        # As by default; the other tests have it quicker.
        TASKCLAIM_TEST_REAPER_INTERVAL="10",
    )
    wait_until(Ledger.objects.exists, 60)
    time.sleep(3)  # The start is over: imports are done, every connection is made.
    pids = [worker.pid, *worker.children()]
    assert len(pids) == 2
    asked_before, computed_before = asked(log), computed(pids)
    time.sleep(SECONDS)
    used, questions = computed(pids) - computed_before, asked(log) - asked_before
    print(f"{100 * used / SECONDS:.2f} % of a core, {dict(questions)} in {SECONDS:g} s")
    # The clock of /proc ticks each 10 ms, and not every thread was asleep when it began.
    assert used < 0.01 * SECONDS + 0.05
    assert set(questions) == {"taskclaim-claimer", "taskclaim-service"}
    # The others are the service's: its own duties, and a look for live settings and orders.
    assert questions["taskclaim-claimer"] > 0.35 * SECONDS / POLL
    assert questions.total() <= SECONDS / POLL + 3


def test_a_worker_with_room_looks_as_often_as_it_was_told(
    start_worker: Start, tmp_path: Path
) -> None:
    """What the service asks while a row runs, or has asked during a pause, takes the place of no look."""
    log = tmp_path / "statements"
    jobs(1, "sleep:60")
    start_worker("--threads", "4", "--poll", str(POLL), TASKCLAIM_TEST_STATEMENTS=str(log))
    wait_until(Ledger.objects.exists, 60)
    pause(Job, reason="for a while")
    time.sleep(5)
    resume(Job)
    time.sleep(3)
    before = asked(log)["taskclaim-claimer"]
    time.sleep(10)
    assert asked(log)["taskclaim-claimer"] - before >= 8 / POLL
