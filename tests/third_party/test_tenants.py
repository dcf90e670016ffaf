"""One worker for each tenant of django-tenants, on a PostgreSQL of this test's own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests import servers


@pytest.fixture(scope="module")
def python() -> Callable[..., str]:
    """Run ``python -m …`` in the tenants' project and return what it said."""
    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.third_party.tenants.settings",
        "TENANTS_DATABASE_URL": servers.guarded_postgres(),
    }

    def run(*words: str) -> str:
        command = [sys.executable, "-W", "ignore", "-m", *words]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("tests.third_party.tenants.scene", "make")
    return run


@pytest.mark.parametrize(("tenant", "how"), [("acme", "--in-process"), ("bolt", "--processes=2")])
def test_a_worker_works_in_the_schema_of_its_tenant(
    python: Callable[..., str], tenant: str, how: str
) -> None:
    before = json.loads(python("tests.third_party.tenants.scene", "look"))
    assert before[tenant] == [["", "open"]]
    words = ["claimworker", "--schema", tenant, "app.Invoice", "--drain", how]
    python("django", "tenant_command", *words)
    after = json.loads(python("tests.third_party.tenants.scene", "look"))
    assert after == before | {tenant: [[tenant, "complete"]]}
