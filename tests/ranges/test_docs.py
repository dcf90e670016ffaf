"""``docs/ranges.md`` is true: its code runs, and does to every row what it says."""

import ast
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test.utils import isolate_apps

from django_taskclaim.checks.ranges import problems_of
from django_taskclaim.handlers import handler_for, unregister
from django_taskclaim.models import RangeMixin
from tests.behaviour.support import clock, set_raw
from tests.documents import Expecting, expect
from tests.factories import make
from tests.testapp.models import Photo, PhotoRange

TEXT = (Path(__file__).parents[2] / "docs" / "ranges.md").read_text(encoding="utf-8")
CODE = [match[1] for match in re.finditer(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)]
BLOCKS = [block for block in CODE if ".prune(" not in block]
(FORGETTING,) = (block for block in CODE if ".prune(" in block)
#: What each block does to the rows; the others define models.
EFFECTS = {
    "spell_countries": {"country": "NZ"},
    "measure": {"width": 3, "height": 4},
    "shout": {"note": "!"},
}


def run(source: str) -> dict[str, Any]:
    source = source.replace("from photos.models", "from tests.testapp.models")
    tree = Expecting(source).visit(ast.parse(source))
    names: dict[str, Any] = {
        "__name__": "tests.testapp.ranges",
        "Photo": Photo,
        "PhotoRange": PhotoRange,
        "expect": expect,
        "size_of": lambda url: (3, 4),
        "timedelta": timedelta,
    }
    exec(compile(tree, "ranges.md", "exec"), names)
    return names


def test_there_is_code_to_run() -> None:
    assert len(BLOCKS) == 7
    assert all(any(f"def {name}(" in block for block in BLOCKS) for name in EFFECTS)


@pytest.mark.parametrize("source", BLOCKS)
@pytest.mark.django_db(transaction=True)
def test_a_block_runs_and_does_what_it_says(source: str) -> None:
    make(Photo, 20)
    Photo.objects.update(country="nz")
    with isolate_apps("tests.testapp"):
        names = run(source)
    for model in (one for one in names.values() if isinstance(one, type)):
        if issubclass(model, RangeMixin) and model is not RangeMixin:
            assert list(problems_of(model)) == []
    handler = handler_for(PhotoRange)
    if handler is None:
        return
    try:
        PhotoRange.objects.plan(chunk_size=8)
        while ranges := PhotoRange.objects.claim_batch(1):
            handler.call(ranges)
            ranges[0].claim.complete()
    finally:
        unregister(PhotoRange)
    (wanted,) = [effect for name, effect in EFFECTS.items() if name in names]
    assert list(Photo.objects.values(*wanted).distinct()) == [wanted]
    assert Photo.objects.filter(**wanted).count() == 20


@pytest.mark.django_db
def test_ranges_that_are_done_may_be_deleted_but_for_the_last_one() -> None:
    make(Photo, 20)
    PhotoRange.objects.plan(chunk_size=8)
    PhotoRange.objects.reset()
    for range_ in PhotoRange.objects.claim_batch(3):
        range_.complete()
        set_raw(range_, "completed_at", clock("-8 DAY"))
    run(FORGETTING)
    assert PhotoRange.objects.count() == 1
    assert PhotoRange.objects.plan() == 0
