"""``docs/ranges.md`` is true: its code runs, and does to every row what it says."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test.utils import isolate_apps

from django_taskclaim.handlers import handler_for, unregister
from django_taskclaim.testing import run_due
from tests import documents
from tests.factories import make
from tests.testapp.models import Photo, PhotoRange

pytestmark = pytest.mark.once

TEXT = (Path(__file__).parents[2] / "docs" / "ranges.md").read_text(encoding="utf-8")
#: What the handler of each block does to the rows; the other blocks define models, plan or prune.
EFFECTS = {
    "spell_countries": {"country": "NZ"},
    "measure": {"width": 3, "height": 4},
    "shout": {"note": "!"},
}


@pytest.mark.parametrize("source", documents.blocks(TEXT, "python"))
@pytest.mark.django_db(transaction=True)
def test_a_block_runs_and_does_what_it_says(source: str) -> None:
    make(Photo, 20)
    Photo.objects.update(country="nz")
    names: dict[str, Any] = {
        "__name__": "tests.testapp.ranges",
        "Photo": Photo,
        "PhotoRange": PhotoRange,
        "size_of": lambda url: (3, 4),
        "timedelta": timedelta,
    }
    with isolate_apps("tests.testapp"):
        documents.run(source.replace("from photos.", "from tests.testapp."), names, "ranges.md")
    if handler_for(PhotoRange) is None:
        return
    try:
        PhotoRange.objects.plan(chunk_size=8)
        assert run_due(PhotoRange).completed == 3
    finally:
        unregister(PhotoRange)
    (wanted,) = [effect for name, effect in EFFECTS.items() if name in names]
    assert Photo.objects.filter(**wanted).count() == 20
