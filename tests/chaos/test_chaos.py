"""Half a minute of chaos on the database under test, and a few seconds on a server that is crashed.

Longer runs are made by hand: ``tox -e chaos -- --seconds 600 --seed 7``.
"""

import os
import re
import subprocess
import sys

import pytest
from django.db import connection

from tests import servers

pytestmark = [pytest.mark.processes, pytest.mark.long]


def chaos(url: str, *options: str) -> str:
    """Run the command for 20 seconds, and return its summary; fail with that if a promise was broken."""
    command = [sys.executable, "-m", "tests.chaos", "--seconds", "20", "--database-url", url]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "\nlost rows: 0\n" in done.stdout
    return done.stdout


@pytest.mark.promise(1, 2, 3, 4, 5, 6, 7, 9, 10, 12)
@pytest.mark.parametrize("mode", ["plain", "atomic"])
def test_no_promise_is_broken_in_half_a_minute(mode: str) -> None:
    """Nothing lost, nothing doubled, nothing unexplained, after all that was done to the workers."""
    told = chaos(os.environ["DATABASE_URL"], "--mode", mode)
    assert re.search(r"\d{3} completions", told)
    assert not re.search(r"^0 faults", told, re.MULTILINE)


@pytest.mark.promise(12)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs a server of the run's own")
def test_a_server_that_crashes_loses_nothing() -> None:
    """The server is killed with everything under way, and comes back; the workers carry on."""
    options = ("--only", "crash_server", "--every", "4")
    assert "faults: crash_server" in chaos(servers.EMBEDDED, *options)
