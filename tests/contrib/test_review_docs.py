"""docs/people.md: its code runs, and it names the attributes and fields that there are."""

import ast
import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.test.utils import isolate_apps

from django_taskclaim.contrib.review import editing
from django_taskclaim.contrib.review.desk import MyWorkMixin

pytestmark = pytest.mark.once

PAGE = (Path(__file__).parents[2] / "docs" / "people.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("source", re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S))
def test_its_code_runs(source: str) -> None:
    with isolate_apps("articles"):
        exec(compile(source, "people.md", "exec"), {"__name__": "articles.docs"})


def test_the_attributes_of_the_list_have_the_defaults_in_its_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \|\s*(.*?)\s*\|", PAGE.split("## Editing")[0], re.M)
    assert len(rows) == 6
    special = {"`1 h`": timedelta(hours=1), "": ""}
    for name, cell in rows:
        default = special[cell] if cell in special else ast.literal_eval(cell.strip("`"))
        assert getattr(MyWorkMixin, name) == default, name


def test_it_names_every_field_and_act_that_a_form_sends() -> None:
    fields = re.findall(r"^\| `(taskclaim_\w+)` \|", PAGE, re.M)
    assert set(fields) == {editing.TOKEN, editing.TO, editing.REASON, editing.SEEN}
    acts = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| `act` \|.*", PAGE, re.M)))
    assert set(acts) - {"act"} == set(editing.HeldRowMixin.acts) - {"ping"}
