"""These tests run under their own settings only: ``tox -e third_party``."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.processes import output_of

SETTINGS = "tests.third_party.settings"

#: A run with the usual settings neither collects nor imports them.
collect_ignore_glob = [] if os.environ.get("DJANGO_SETTINGS_MODULE") == SETTINGS else ["test_*.py"]


@pytest.fixture
def process_env(process_env: dict[str, str]) -> dict[str, str]:
    return process_env | {"DJANGO_SETTINGS_MODULE": SETTINGS}


@pytest.fixture
def work(process_env: dict[str, str]) -> Callable[[Any], str]:
    """Let a worker, a process of its own, work on all rows of a model, and return what it said."""

    def drain(*models: Any) -> str:
        labels = [model._meta.label for model in models]
        command = ["-W", "ignore", "-m", "django", "claimworker", *labels]
        return output_of(*command, "--drain", "--in-process", "--poll", "0.1", env=process_env)

    return drain
