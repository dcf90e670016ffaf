"""Renewing: a holder may count on the time that it was given."""

from datetime import timedelta
from typing import Any

import pytest

from tests.factories import make_claimed
from tests.querysets.support import facts
from tests.testapp.models import Child, ClaimOnly, CompositeKey, Photo

pytestmark = pytest.mark.django_db


@pytest.mark.promise(8)
@pytest.mark.parametrize("model", [Photo, Child, ClaimOnly, CompositeKey])
def test_a_renewal_takes_no_time_away(model: Any) -> None:
    """As a worker's own renewals under its usual lease, after a handler has asked for an hour."""
    rows = make_claimed(model, 2, lease=timedelta(hours=1))
    before = [facts(row).expires_at for row in rows]
    assert model.objects.renew([*rows, *rows], 60) == 2
    assert rows[0].claim.renew(1)
    assert [facts(row).expires_at for row in rows] == before
    assert model.objects.renew(rows, timedelta(hours=2)) == 2
    assert all(facts(row).expires_at > moment for row, moment in zip(rows, before, strict=True))
