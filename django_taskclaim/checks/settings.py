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
    """E013, E041 and E042: what right entries name must be there."""
    if fault := error_text.redaction_fault():
        yield message(
            "E013",
            f"TASKCLAIM['REDACT'] is {conf.setting('REDACT')!r}, and {fault}.",
            'TASKCLAIM = {"REDACT": "project.privacy.redact"}  # def redact(text: str) -> str',
        )
    named = conf.setting("HISTORY")
    known = sorted(model._meta.label for model in claimable_models())
    for label in named:
        if label.lower() not in map(str.lower, known):
            yield message(
                "E041",
                f"TASKCLAIM['HISTORY'] names {label!r}, which is no installed model that can be claimed; a proxy is"
                " kept with its model.",
                f'TASKCLAIM = {{"HISTORY": [{", ".join(map(repr, known))}]}}  # or some of these',
            )
    if named and not apps.is_installed(CONTROL):
        yield message(
            "E042",
            f"TASKCLAIM['HISTORY'] names {len(named)} of the models, but {CONTROL} is not installed, which would keep"
            " their histories.",
            f'INSTALLED_APPS += ["{CONTROL}"]',
        )
