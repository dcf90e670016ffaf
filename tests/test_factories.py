"""The rows that other tests start from are what they think they are."""

from typing import Any

import pytest

from tests.factories import SHAPES, make

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_makes_open_rows_with_the_values_given(shape: Any) -> None:
    rows = make(shape, 4, note=lambda i: f"note {i}", counter=3)
    stored = {row.pk: row for row in shape.objects.open()}
    assert [stored[row.pk].note for row in rows] == ["note 0", "note 1", "note 2", "note 3"]
    assert {row.counter for row in stored.values()} == {3}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_starts_each_test_without_rows(shape: Any) -> None:
    assert not shape._base_manager.exists()
    make(shape, 1)
