"""A handler may save the instance that it got as another row, as Django's documentation copies one."""

from typing import Any

import pytest

from django_taskclaim.testing import Ran, run_due
from tests.doctor.support import handling
from tests.factories import make
from tests.testapp.models import Photo


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("options", [{}, {"batch": True}, {"atomic": True}], ids=str)
def test_the_row_that_was_claimed_is_done(options: Any) -> None:
    """Once, and the copy is a row of its own. A batch is answered by the keys that were claimed."""

    def copy_each(given: Any) -> Any:
        for photo in [given] if isinstance(given, Photo) else given:
            photo.pk, photo._state.adding, photo.url = None, True, "copy"
            photo.save()
        return claimed

    claimed = {photo.pk for photo in make(Photo, 2)}
    with handling(Photo, copy_each, batch_size=2, **options):
        assert run_due(Photo, limit=2) == Ran(completed=2)
    done = Photo.objects.filter(status="complete").exclude(url="copy")
    assert set(done.values_list("pk", flat=True)) == claimed
    assert [row.status for row in Photo.objects.filter(url="copy")] == ["open", "open"]
