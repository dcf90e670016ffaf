"""What docs/companions.md shows is code that works."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.core.management import load_command_class
from django.db import models
from django.test.utils import isolate_apps

from django_taskclaim.checks.companions import problems_of
from django_taskclaim.handlers import handler_for, unregister
from django_taskclaim.models import SourceKey, SourceMixin, TaskMixin
from tests.sources.app.models import Line, Page
from tests.testapp.models import Photo

TEXT = (Path(__file__).parents[2] / "docs" / "companions.md").read_text(encoding="utf-8")
MODULE = {"__name__": "tests.sources.app.docs", "models": models, "Page": Page, "Line": Line}


@isolate_apps("tests.sources.app")
def test_the_first_example() -> None:
    (source,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = dict(MODULE)
    # The page of the text has a text, that of the tests a title.
    exec(compile(source.replace("page.text", "page.title"), "companions.md", "exec"), names)
    try:
        found = handler_for(names["PageTask"])
        assert found is not None
        assert found.gets_sources
        assert list(problems_of(names["PageTask"])) == []
    finally:
        unregister(names["PageTask"])


@pytest.mark.parametrize("link", re.findall(r"`source = (.*?)`", TEXT))
@isolate_apps("tests.sources.app")
def test_each_way_to_declare_the_link(link: str) -> None:
    source = eval(link, MODULE | {"SourceKey": SourceKey, "Photo": Photo})
    meta = type("Meta", (), {"app_label": "sources"})
    source.remote_field.related_name = "+"
    model: Any = type(
        "Told", (SourceMixin, TaskMixin), {"__module__": __name__, "Meta": meta, "source": source}
    )
    assert list(problems_of(model)) == []


def test_the_options_of_the_command_are_all_there() -> None:
    parser = load_command_class("django_taskclaim", "claimpopulate").create_parser("manage.py", "x")
    usual = load_command_class("django.core", "check").create_parser("manage.py", "x")
    plain = {word for action in usual._actions for word in action.option_strings}
    ours = {word for action in parser._actions for word in action.option_strings} - plain
    told = set(re.findall(r"^\| `(--[a-z-]+)", TEXT, re.MULTILINE))
    assert told == ours | {"--database"}
