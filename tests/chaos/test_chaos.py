"""Half a minute of chaos on the database under test, and a few seconds on a server that is crashed.

Longer runs are made by hand: ``tox -e chaos -- --seconds 600 --seed 7``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from tests import servers
from tests.chaos.app.claims import is_known
from tests.chaos.servers import EMBEDDED_MYSQL, mysqld

pytestmark = [pytest.mark.timeout(600), pytest.mark.processes, pytest.mark.long]


def chaos(url: str, tmp_path: Path, *options: str) -> dict[str, Any]:
    """Run the command, and return what its summary tells; fail with that summary if a promise was broken."""
    told = tmp_path / "summary.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--json", str(told), "--database-url", url, *options],
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    facts: dict[str, Any] = json.loads(told.read_text())
    return facts


@pytest.mark.parametrize("mode", ["plain", "atomic"])
def test_no_promise_is_broken_in_half_a_minute(mode: str, tmp_path: Path) -> None:
    """Nothing lost, nothing doubled, nothing unexplained, whatever was done to the workers."""
    if not is_known(mode):
        pytest.skip(f"needs handlers of the kind {mode}")
    facts = chaos(os.environ["DATABASE_URL"], tmp_path, "--seconds", "20", "--mode", mode)
    assert facts["rows_lost"] == 0
    assert facts["completions"] > 100
    assert facts["faults_total"] > 0


def test_a_server_that_crashes_loses_nothing(tmp_path: Path) -> None:
    """The server is killed with everything under way, and comes back; the workers carry on."""
    own = {"postgresql": servers.EMBEDDED, "mysql": EMBEDDED_MYSQL if mysqld() else None}
    url = own.get(connection.vendor)
    if url is None:
        pytest.skip("needs a server of the run's own: a program on PATH, or TASKCLAIM_MYSQLD")
    only = ("--only", "crash_server", "--every", "4")
    facts = chaos(url, tmp_path, "--seconds", "20", *only)
    assert facts["rows_lost"] == 0
    assert facts["faults"]["crash_server"] >= 1
