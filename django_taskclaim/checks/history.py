"""``TASKCLAIM["HISTORY"]``: the models whose rows' histories are kept."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage

from django_taskclaim import conf
from django_taskclaim.checks.messages import message
from django_taskclaim.switch import claimable_models

#: The app whose table keeps them.
APP = "django_taskclaim.control"


def check_history(**kwargs: Any) -> list[CheckMessage]:
    """E041 for a model that is none, E042 where nobody writes the histories."""
    named = conf.setting("HISTORY")
    return [*_unknown(named), *_unwritten(named)]


def _unknown(named: Any) -> Iterator[CheckMessage]:
    known = {model._meta.label.lower(): model._meta.label for model in claimable_models()}
    for label in named:
        if str(label).lower() not in known:
            close = get_close_matches(str(label).lower(), known, n=1)
            meant = known[close[0]] if close else next(iter(sorted(known.values())), "app.Model")
            yield message(
                "E041",
                f"TASKCLAIM['HISTORY'] names {label!r}, which is no installed model that can be claimed; a proxy is"
                " kept with its model.",
                f'TASKCLAIM = {{"HISTORY": ["{meant}"]}}',
            )


def _unwritten(named: Any) -> Iterator[CheckMessage]:
    if named and not apps.is_installed(APP):
        yield message(
            "E042",
            f"TASKCLAIM['HISTORY'] names {len(named)} of the models, but {APP} is not installed, which would keep their"
            " histories.",
            f'INSTALLED_APPS += ["{APP}"]',
        )
