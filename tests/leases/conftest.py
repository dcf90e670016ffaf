"""What every test of named leases may count on."""

import pytest

from tests.leases.support import renewer_threads
from tests.querysets.support import wait_for


@pytest.fixture(autouse=True)
def _no_renewer_of_before() -> None:
    """The renewer of the test before is given the moment that it takes to end."""
    wait_for(lambda: not renewer_threads())
