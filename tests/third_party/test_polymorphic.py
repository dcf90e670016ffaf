"""Rows of several classes in one queue."""

import pytest

from tests.third_party.app.models import Asset, Film

pytestmark = pytest.mark.django_db


def test_a_claim_returns_each_row_as_what_it_is() -> None:
    Asset.objects.create(name="a")
    Film.objects.create(name="b", minutes=120)
    Film.objects.create(name="c")
    rows = Asset.objects.claim_batch(10)
    assert [(type(row), row.name) for row in rows] == [(Asset, "a"), (Film, "b"), (Film, "c")]
    asset, b, c = rows
    asset.claim.complete()
    b.minutes = 121
    b.claim.complete(update_fields=["minutes"])
    c.minutes = 5
    c.save()
    c.claim.release()
    assert list(Film.objects.values_list("minutes", "status")) == [(121, "complete"), (5, "open")]
    (c,) = Film.objects.claim_batch(10)
    assert c.claim.renew()
    c.delete()
    assert Asset.objects.count() == 2
