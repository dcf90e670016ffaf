"""``docs/deployment.md``: its commands parse, and its figures are the worker's own."""

import re
from pathlib import Path

import pytest
from django.core.management import load_command_class

from django_taskclaim import conf
from django_taskclaim.worker import health, supervisor

TEXT = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"manage\.py claimworker (?P<words>[\w. -]+)$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_that_cron_is_to_run_is_right(words: str) -> None:
    parser = load_command_class("django_taskclaim", "claimworker").create_parser("manage.py", "")
    known = re.sub(r"\b(mail\.Outbox|photos\.Photo)\b", "testapp.Job", words).split()
    assert parser.parse_args(known).in_process


def test_the_probe_is_slower_than_the_file() -> None:
    """What is touched every few seconds is looked at by the minute, and a hang shows within both."""
    assert COMMANDS
    assert TEXT.count("-mmin -1") == 3
    assert health.TOUCH_EVERY + supervisor.SIGN_WITHIN < 60
    (grace,) = re.findall(r"terminationGracePeriodSeconds: (\d+)", TEXT)
    assert float(grace) > conf.DEFAULTS["GRACE"] + supervisor.AFTER_GRACE
    assert f"after {health.HUNG_AFTER:.0f} s" in TEXT
