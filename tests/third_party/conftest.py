"""These tests run under their own settings only: ``tox -e third_party``."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

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
        command = [sys.executable, "-W", "ignore", "-m", "django", "claimworker", *labels]
        done = subprocess.run(
            [*command, "--drain", "--in-process", "--poll", "0.1"],
            env=process_env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return drain
