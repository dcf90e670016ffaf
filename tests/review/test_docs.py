"""docs/people.md is true: its code runs, its table names what there is, its files exist."""

import ast
import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.test.utils import isolate_apps

from django_taskclaim.contrib.review import editing
from django_taskclaim.contrib.review.desk import MyWorkMixin

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "people.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("source", re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S))
def test_its_code_runs(source: str) -> None:
    with isolate_apps("articles"):
        exec(compile(source, "people.md", "exec"), {"__name__": "articles.docs"})


def test_the_attributes_of_the_list_have_the_defaults_that_it_tells() -> None:
    rows = re.findall(r"^\| `(\w+)` \|\s*(.*?)\s*\|", PAGE.split("## Editing")[0], re.M)
    assert len(rows) == 6
    said = {"`1 h`": timedelta(hours=1), "": ""}
    for name, cell in rows:
        told = said[cell] if cell in said else ast.literal_eval(cell.strip("`"))
        assert getattr(MyWorkMixin, name) == told, name


def test_the_names_that_a_post_sends_are_all_there() -> None:
    told = dict(re.findall(r"^\| `(taskclaim_\w+)` \| (.*?) \|", PAGE, re.M))
    assert set(told) == {editing.TOKEN, editing.TO, editing.REASON, editing.SEEN}
    acts = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| `act` \|.*", PAGE, re.M)))
    assert set(acts) - {"act"} == set(editing.HeldRowMixin.acts) - {"ping"}


def test_what_it_links_to_exists() -> None:
    assert [
        link for link in re.findall(r"\]\(([^)#]+)\)", PAGE) if not (DOCS / link).exists()
    ] == []
