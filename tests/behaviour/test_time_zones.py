"""Only the database's clock decides, and no setting of a time zone, anywhere, shifts a lease."""

import json
import subprocess
import sys

import pytest
from django.db import connection

#: The zones of the server's sessions; SQLite has neither a server nor sessions.
SERVERS = ["UTC", "+05:30", "-08:00"] if connection.vendor != "sqlite" else ["UTC"]


# A process that asks a hundred questions in each of three zones: half a minute on a busy machine.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("use_tz", [True, False], ids=["aware", "naive"])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"])
def test_no_time_zone_shifts_a_lease(zone: str, use_tz: bool, process_env: dict[str, str]) -> None:
    """Every promise of ``clock_probe``, in a process of its own, for each zone that the server may have."""
    env = process_env | {
        "TASKCLAIM_TEST_USE_TZ": "1" if use_tz else "0",
        "TASKCLAIM_TEST_TIME_ZONE": zone,
    }
    probe = subprocess.run(
        [sys.executable, "-m", "tests.behaviour.clock_probe", *SERVERS],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert probe.returncode == 0, probe.stderr
    answer = json.loads(probe.stdout)
    assert (answer["USE_TZ"], answer["TIME_ZONE"]) == (use_tz, zone)
    assert answer["failures"] == {server: [] for server in SERVERS}
