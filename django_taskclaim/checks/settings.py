"""The dictionary ``TASKCLAIM``."""

from collections.abc import Iterator

from django.apps import apps
from django.core.checks import CheckMessage

from django_taskclaim import conf, error_text
from django_taskclaim.checks.messages import message
from django_taskclaim.switch import claimable_models

#: The app whose table keeps the histories of rows.
CONTROL = "django_taskclaim.control"


def check_settings() -> list[CheckMessage]:
    """E001 for each wrong entry."""
    return [message("E001", problem.message, problem.hint) for problem in conf.problems()]


def check_hooks() -> Iterator[CheckMessage]:
    """E013 and E041: what right entries name must be there."""
    if fault := error_text.redaction_fault():
        hint = 'TASKCLAIM = {"REDACT": "project.privacy.redact"}  # def redact(text: str) -> str'
        yield message(
            "E013", f"TASKCLAIM['REDACT'] is {conf.setting('REDACT')!r}, and {fault}.", hint
        )
    named = conf.setting("HISTORY")
    known = {model._meta.label_lower: model._meta.label for model in claimable_models()}
    for label in named:
        if label.lower() not in known:
            text = f"TASKCLAIM['HISTORY'] names {label!r}, which is no installed model that can be claimed."
            yield message("E041", text, f"Choose from {sorted(known.values())!r}.")
    if named and not apps.is_installed(CONTROL):
        text = f"TASKCLAIM['HISTORY'] names models, and {CONTROL}, which keeps histories, is not installed."
        yield message("E041", text, f'INSTALLED_APPS += ["{CONTROL}"]')
