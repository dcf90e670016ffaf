"""django-pghistory: events by row triggers, and their revert. PostgreSQL only."""

from collections.abc import Callable

import pghistory
import pytest
from django.db import connection

from django_taskclaim.testing import run_due
from tests.third_party.app.models import Crate, CrateScan, Parcel
from tests.third_party.rows import facts

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "postgresql", reason="needs row triggers in PL/pgSQL"),
]


@pytest.mark.django_db(transaction=True)
def test_a_worker_does_rows_with_events(work: Callable[..., str]) -> None:
    Parcel.objects.create(text="four")
    Crate.objects.create(text="five!")
    CrateScan.objects.populate(Crate.objects.all())
    work(Parcel, CrateScan)
    assert (Parcel.objects.get().weight, CrateScan.objects.get().weight) == (4, 5)
    assert Parcel.pgh_event_model.objects.count() == 2
    Crate.pgh_event_model.objects.first().revert()
    assert CrateScan.objects.get().status == "complete"


def test_a_revert_brings_back_the_users_columns_only() -> None:
    parcel = Parcel.objects.create(text="four")
    (held,) = Parcel.objects.claim_batch(1)
    held.claim.release()
    run_due(Parcel)
    parcel.refresh_from_db()
    assert (parcel.weight, parcel.status, parcel.iteration) == (4, "complete", 1)
    with pghistory.context(user="zoe"):
        parcel.text = "edited"
        parcel.save()
    before = facts(parcel)
    first, done, edited = Parcel.pgh_event_model.objects.order_by("pgh_id")
    assert [first.text, done.weight, edited.pgh_context.metadata] == ["four", 4, {"user": "zoe"}]
    back = first.revert()
    assert (back.text, back.weight, back.status) == ("four", None, "complete")
    assert facts(parcel) == before
    assert Parcel.objects.claim_batch(1) == []
