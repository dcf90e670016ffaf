"""``docs/deployment.md``: its figures fit the worker's own."""

import re
from pathlib import Path

import pytest

from django_taskclaim.worker.options import WorkerOptions

pytestmark = pytest.mark.once

TEXT = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")


def test_nobody_kills_a_worker_before_its_stop_is_over() -> None:
    """systemd restarts what failed, never what was called wrongly; Kubernetes waits for the grace period, too."""
    (grace,) = re.findall(r"terminationGracePeriodSeconds: (\d+)", TEXT)
    unit = dict(re.findall(r"^(Restart\w*|TimeoutStopSec)=(.+)$", TEXT, re.MULTILINE))
    assert unit["Restart"] == "on-failure"
    assert unit["RestartPreventExitStatus"] == "2"
    grace_period = WorkerOptions((), "w", "default").grace.total_seconds()
    for seconds in (grace, unit["TimeoutStopSec"]):
        # By promise 11 a stop may take so long after the grace period.
        assert float(seconds) > grace_period + 4
