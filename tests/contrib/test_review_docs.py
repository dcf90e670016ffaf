"""docs/people.md: its code runs, and it names the attributes and fields that there are."""

import re
from pathlib import Path

import pytest
from django.test.utils import isolate_apps

pytestmark = pytest.mark.once

PAGE = (Path(__file__).parents[2] / "docs" / "people.md").read_text(encoding="utf-8")


def test_its_code_runs() -> None:
    for source in re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S):
        with isolate_apps("articles"):
            exec(compile(source, "people.md", "exec"), {"__name__": "articles.docs"})
