"""What every test of named leases may count on."""

import pytest

from tests.behaviour.support import wait_for
from tests.leases.support import renewer_threads


@pytest.fixture(autouse=True)
def _no_renewer_of_before() -> None:
    """The renewer of the test before is given the moment that it takes to end."""
    wait_for(lambda: not renewer_threads())
