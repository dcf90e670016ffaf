"""Rows to complete under a policy, and what must be left of them."""

from typing import Any

import pytest

from django_taskclaim.exceptions import ClaimLost
from tests.querysets.support import stored


def gone(row: Any, key: Any) -> bool:
    """Return whether nothing of the row is left on any of its tables."""
    return not stored(row, key)


def refused(rows: list[Any], lost: list[Any]) -> None:
    """Complete *rows* of one model, of which the claims of *lost* do not stand."""
    with pytest.raises(ClaimLost) as caught:
        type(rows[0]).objects.complete(rows)
    assert caught.value.lost == lost
    assert set(caught.value.written) == {row for row in rows if row not in lost}
