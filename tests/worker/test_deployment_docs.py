"""``docs/deployment.md``: its commands parse, and its figures fit the worker's own."""

import re
from pathlib import Path

import pytest
from django.core.management import load_command_class

from django_taskclaim import conf

pytestmark = pytest.mark.once

TEXT = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"manage\.py claimworker (?P<words>[\w. -]+)$", TEXT, re.MULTILINE)

#: What a stop may take after the grace period, by promise 11.
AFTER_GRACE = 4.0


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_that_cron_is_to_run_is_right(words: str) -> None:
    parser = load_command_class("django_taskclaim", "claimworker").create_parser("manage.py", "")
    known = re.sub(r"\b(mail\.Outbox|photos\.Photo)\b", "testapp.Job", words).split()
    assert parser.parse_args(known).in_process


def test_nobody_kills_a_worker_before_its_stop_is_over() -> None:
    """systemd restarts what failed, never what was called wrongly; Kubernetes waits for the grace period, too."""
    (grace,) = re.findall(r"terminationGracePeriodSeconds: (\d+)", TEXT)
    unit = dict(re.findall(r"^(Restart\w*|TimeoutStopSec)=(.+)$", TEXT, re.MULTILINE))
    assert unit["Restart"] == "on-failure"
    assert unit["RestartPreventExitStatus"] == "2"
    for seconds in (grace, unit["TimeoutStopSec"]):
        assert float(seconds) > conf.DEFAULTS["GRACE"] + AFTER_GRACE
