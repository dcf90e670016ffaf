"""Claims of which nobody heard: what they have taken is found, however late it is committed."""

from datetime import timedelta
from typing import Any

import pytest

from django_taskclaim.handlers import Handler
from django_taskclaim.querysets.claiming import Request, new_holder
from django_taskclaim.worker.unheard import UnheardClaims
from tests.factories import make
from tests.testapp.models import Photo


@pytest.mark.django_db
def test_what_is_committed_after_the_first_part_was_found_is_found_as_well() -> None:
    """A claim may be two statements, each committed for itself, and the answer to the second one be lost."""
    one = Request(2, new_holder(), timedelta(seconds=60), include_held=False, durable=True)
    unheard = UnheardClaims("default")
    unheard.note(Handler(Photo, print), one)
    for _ in ("the first part", "the second"):
        rows: Any = make(Photo, 2)
        Photo.objects.all()._claim(one)
        found = unheard.find(now=True)
        assert [task.row for task in found] == rows
        Photo.objects.complete([task.row for task in found])
    assert unheard.find(now=True) == []
