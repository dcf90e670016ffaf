"""Only the database's clock decides, and no setting of a time zone, anywhere, shifts a lease."""

import json
import subprocess
import sys
from pathlib import Path

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


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("use_tz", "zone", "database_zone"),
    [
        ("yes", "UTC", ""),
        ("yes", "Asia/Kolkata", "America/New_York"),
        ("no", "UTC", ""),
        ("no", "Asia/Kolkata", ""),
    ],
)
def test_migrate_gives_rows_made_by_sql_the_moment_that_claims_look_for(
    use_tz: str, zone: str, database_zone: str, process_env: dict[str, str], tmp_path: Path
) -> None:
    """The default of a column is the same moment, spelled in the same way, under all settings."""
    if connection.vendor == "sqlite":
        # Another folder, for the name of a test database does not depend on the URL's there.
        process_env["DATABASE_URL"] = f"sqlite:///{tmp_path}/db.sqlite3"
    probe = subprocess.run(
        [sys.executable, "-m", "tests.behaviour.migrate_probe", use_tz, zone, database_zone],
        env=process_env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert probe.returncode == 0, probe.stderr
    answer = json.loads(probe.stdout)
    assert (len(answer["stored"]), answer["claimed"], answer["shown"]) == (1, 2, 1), answer
