"""A worker whose wall clock is a day wrong decides as any other: only the database's clock counts."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from tests.behaviour.support import clock, facts, set_raw
from tests.testapp.models import Photo

#: Holds a ``sitecustomize`` that shifts what Python takes for the time.
CLOCKS = Path(__file__).parents[1] / "chaos" / "clocks"
DAY = timedelta(days=1)


def reap(env: dict[str, str], shift: timedelta) -> None:
    """Run ``release_expired`` in a process with a wrong clock."""
    env = env | {
        "PYTHONPATH": f"{CLOCKS}:{env.get('PYTHONPATH', '')}",
        "TASKCLAIM_CHAOS_SHIFT": str(shift.total_seconds()),
    }
    words = [sys.executable, "-m", "django", "release_expired", "testapp.Photo"]
    subprocess.run(words, env=env, check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("shift", [DAY, -DAY])
def test_a_wrong_clock_reaps_what_has_expired_and_nothing_else(
    shift: timedelta, process_env: dict[str, str]
) -> None:
    """A lease that stands is left alone by a fast clock, one that has ended is put back by a slow one."""
    Photo.objects.bulk_create([Photo(), Photo()])
    standing, ended = Photo.objects.claim_batch(2, lease=3600)
    set_raw(ended, "expires_at", clock("-1 MINUTE"))
    reap(process_env, shift)
    assert facts(standing).status == "processing"
    assert facts(ended).status == "open"
