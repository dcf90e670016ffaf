"""One worker for each tenant of django-tenants, on a PostgreSQL of this test's own."""

import json
import os
from collections.abc import Callable
from functools import partial

import pytest

from tests import servers
from tests.processes import output_of


@pytest.fixture(scope="module")
def python() -> Callable[..., str]:
    """Run ``python -m …`` in the tenants' project and return what it said."""
    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.third_party.tenants.settings",
        "TENANTS_DATABASE_URL": servers.guarded_postgres(),
    }

    run = partial(output_of, "-W", "ignore", "-m", env=env)
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
