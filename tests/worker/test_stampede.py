"""Six processes at once, some of them killed or frozen: nothing is lost, nothing doubled, all is explained."""

import random
import signal
from collections import Counter
from typing import Any

import pytest

from tests.freezing import freeze
from tests.testapp.models import Job, Ledger
from tests.worker.conftest import Start, jobs, states, wait_until

ROWS = 2_000
LEASE = 3
#: What the log may say about a run that was not the last one of its row.
EXPLANATIONS = ("expired", "lost", "released", "failed")


@pytest.mark.promise(1, 5, 7)
@pytest.mark.timeout(900)
def test_stampede_with_kills_and_freezes(start_worker: Start) -> None:
    """Every row is complete, written once, and each extra run has a logged reason."""
    jobs(ROWS)
    options = ("--in-process", "--drain", "--lease", str(LEASE), "--batch-size")
    workers = [start_worker(*options, str(random.randint(1, 60))) for _ in range(6)]
    killed, frozen = workers[:2]
    wait_until(lambda: Ledger.objects.count() > ROWS // 10, what="the work is under way")
    freeze(frozen.pid)
    wait_until(
        lambda: Ledger.objects.count() > ROWS // 4, what="the others go on beside the frozen one"
    )
    killed.signal(signal.SIGKILL)
    nearly_all = ROWS - 60
    wait_until(
        lambda: states().get("complete", 0) >= nearly_all, 400, "the others go on to the end"
    )
    frozen.signal(signal.SIGCONT)
    for worker in workers[1:]:
        assert worker.wait() == 0
    assert states() == {"complete": ROWS}
    assert set(Job.objects.values_list("counter", flat=True)) == {1}
    assert_every_extra_run_is_explained(workers[0].events())
    # Frozen between a COMMIT and its answer, a worker may come back too late to learn what became of it.
    errors = [e for e in workers[0].events() if e["level"] in ("ERROR", "CRITICAL")]
    unexpected = [e for e in errors if e["event"] != "undecided"]
    assert unexpected == []


def assert_every_extra_run_is_explained(events: list[dict[str, Any]], rows: int = ROWS) -> None:
    """Compare the ledger with the log: a row that ran n times was put back, or lost, at least n - 1 times."""
    explained: Counter[str] = Counter()
    for event in events:
        if event.get("event") in EXPLANATIONS:
            explained.update(event.get("keys", ()))
    runs = Counter(Ledger.objects.values_list("key", flat=True))
    assert len(runs) == rows
    unexplained = {key: (n, explained[key]) for key, n in runs.items() if n - 1 > explained[key]}
    assert unexplained == {}
