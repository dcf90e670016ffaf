"""Settings of the benchmarks: those of the tests, and the models whose rows cost nothing to do."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as OF_THE_TESTS

INSTALLED_APPS = [*OF_THE_TESTS, "benchmarks.app"]
