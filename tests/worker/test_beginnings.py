"""Rows that may kill their worker: claimed alone, noted as begun, run alone, and blamed for nothing before that."""

from collections.abc import Callable

import pytest

from django_taskclaim.fields import CRASHED
from tests.testapp.models import Job, Ledger
from tests.worker.conftest import Worker, jobs, states, wait_until

Start = Callable[..., Worker]

#: Run before the worker, it has the first beginning go wrong: before or after it is written, by an error or the end.
BAD_BEGINNING = """
import os
import django
django.setup()
from django.db import OperationalError
from django_taskclaim.querysets import ClaimQuerySet

def begin(self, row, begin=ClaimQuerySet._begin, tries=[]):
    tries.append(row)
    if len(tries) > 1 or {written}:
        begin(self, row)
    if len(tries) == 1:
        {harm}

ClaimQuerySet._begin = begin
"""
AN_ERROR, THE_END = 'raise OperationalError("server closed the connection")', "os._exit(9)"

ONE_TRY = {"TASKCLAIM_TEST_ATTEMPTS": "1"}


@pytest.mark.parametrize("written", [False, True])
def test_an_error_at_the_beginning_gives_the_row_back(start_worker: Start, written: bool) -> None:
    """Whether or not the mark has arrived: the worker lives, so nobody was killed."""
    jobs(1, not_before=CRASHED)
    first = BAD_BEGINNING.format(written=written, harm=AN_ERROR)
    # Longer than a machine stands still, so that only the error can be to blame.
    worker = start_worker("--in-process", "--drain", "--lease", "30", first=first, **ONE_TRY)
    assert worker.wait() == 0
    assert states() == {"complete": 1}
    assert (Job.objects.get().attempts, Ledger.objects.count()) == (0, 1)


def test_a_worker_that_dies_before_the_beginning_blames_nobody(start_worker: Start) -> None:
    jobs(1, not_before=CRASHED)
    first = BAD_BEGINNING.format(written=False, harm=THE_END)
    assert start_worker("--in-process", "--lease", "1", first=first, **ONE_TRY).wait() == 9
    assert states() == {"processing": 1}
    worker = start_worker("--in-process", "--drain", "--lease", "30", **ONE_TRY)
    assert worker.wait() == 0
    assert states() == {"complete": 1}
    assert (Job.objects.get().attempts, Ledger.objects.count()) == (0, 1)


def test_a_worker_that_dies_after_the_beginning_blames_the_row(start_worker: Start) -> None:
    jobs(1, "die", not_before=CRASHED)
    assert start_worker("--in-process", "--lease", "1", **ONE_TRY).wait() == 9
    worker = start_worker("--in-process", "--drain", "--lease", "1", **ONE_TRY)
    assert worker.wait() == 0
    assert states() == {"failed": 1}


def test_nothing_else_is_claimed_while_such_a_row_runs(start_worker: Start) -> None:
    """Should it kill the process, no other row was running there."""
    (alone,) = jobs(1, "sleep:4", not_before=CRASHED)
    start_worker("--threads", "2", "--lease", "10")
    wait_until(lambda: Ledger.objects.filter(key=str(alone)).exists(), what="it runs")
    jobs(5)
    wait_until(Ledger.objects.exclude(key=str(alone)).exists, what="another runs")
    assert Job.objects.get(pk=alone).status == "complete"
    wait_until(lambda: states() == {"complete": 6})


def test_a_row_claimed_twice_to_be_alone_counts_once(start_worker: Start) -> None:
    """It is put back while another row runs; ``--max-rows`` counts rows that were worked on."""
    (slow,) = jobs(1, "stay")
    worker = start_worker("--in-process", "--max-rows", "4", "--threads", "2", "--lease", "10")
    wait_until(lambda: Ledger.objects.filter(key=str(slow)).exists())
    jobs(1, not_before=CRASHED)
    wait_until(lambda: worker.events("released"))
    jobs(5)
    Job.objects.filter(pk=slow).update(act="work")
    assert worker.wait() == 0
    assert states() == {"complete": 4, "open": 3}
