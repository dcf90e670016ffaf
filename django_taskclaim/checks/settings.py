"""The dictionary ``TASKCLAIM``."""

from typing import Any

from django.core.checks import CheckMessage

from django_taskclaim import conf, error_text
from django_taskclaim.checks.messages import message


def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """E001 for each wrong entry."""
    return [message("E001", problem.message, problem.hint) for problem in conf.problems()]


def check_redaction(**kwargs: Any) -> list[CheckMessage]:
    """E013 where the hook that redacts cannot be imported or called, or returns no text."""
    fault = error_text.redaction_fault()
    if not fault:
        return []
    return [
        message(
            "E013",
            f"TASKCLAIM['REDACT'] is {conf.setting('REDACT')!r}, and {fault}.",
            'TASKCLAIM = {"REDACT": "project.privacy.redact"}  # def redact(text: str) -> str',
        )
    ]
