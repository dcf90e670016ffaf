"""A claimed row fetches what it lacks as the queryset asked, whichever way its instance was made."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import models

from tests.behaviour.support import facts
from tests.factories import make
from tests.testapp.models import Child, CompositeKey, Photo

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(not hasattr(models, "FETCH_PEERS"), reason="Django 6.1 brings fetch modes"),
]

Narrow = Callable[[Any], Any]

#: The first is made of what the claim itself returned, the others are read by a second query.
WAYS = pytest.mark.parametrize(
    "narrow",
    [lambda rows: rows, lambda rows: rows.defer("counter"), lambda rows: rows.order_by("-pk")],
    ids=["as claimed", "deferred", "ordered"],
)


def forget(rows: list[Any], name: str) -> None:
    for row in rows:
        row.__dict__.pop(name, None)


@WAYS
@pytest.mark.parametrize("model", [Photo, Child, CompositeKey])
def test_peers_fetch_together(model: Any, narrow: Narrow, django_assert_num_queries: Any) -> None:
    make(model, 4, note="read")
    rows = narrow(model.objects.fetch_mode(models.FETCH_PEERS)).claim_batch(4)
    forget(rows, "note")
    with django_assert_num_queries(1):
        assert [row.note for row in rows] == ["read"] * 4
    assert model.objects.complete(rows) == 4
    with django_assert_num_queries(1):
        assert None not in [row.completed_at for row in rows]
    rows[1].save()


@WAYS
def test_what_was_not_loaded_is_blocked_and_no_verb_needs_it(narrow: Narrow) -> None:
    from django.core.exceptions import FieldFetchBlocked

    make(Photo)
    (row,) = narrow(Photo.objects.fetch_mode(models.FETCH_RAISE)).claim_batch(1)
    forget([row], "note")
    with pytest.raises(FieldFetchBlocked):
        _ = row.note
    row.claim.renew()
    row.claim.complete()
    assert facts(row).status == "complete"
