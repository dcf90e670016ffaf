"""A policy deletes what is done, and somebody has a row locked that goes with it: only that row waits."""

import threading
from collections.abc import Callable

import pytest
from django.db import transaction

from django_taskclaim.completion import Delete
from tests.factories import make
from tests.querysets.models import Parcel, Stamp
from tests.querysets.support import ROW_LOCKS, elsewhere
from tests.worker.conftest import wait_until


@pytest.mark.promise(8, 10)
@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
def test_a_lock_on_a_cascade_holds_up_no_other_row(work: Callable[..., int]) -> None:
    """The lease of the row that waits is renewed, so nobody else gets it."""
    held, *_ = make(Parcel, 20)
    stamp = Stamp.objects.create(parcel=held)
    ran: list[int] = []
    locked = threading.Event()

    def lock_until_renewed() -> None:
        with transaction.atomic():
            Stamp.objects.select_for_update().get(pk=stamp.pk)
            locked.set()
            wait_until(lambda: list(Parcel.objects.all()) == [held], what="the others are gone")
            first = Parcel.objects.get().expires_at
            wait_until(lambda: Parcel.objects.get().expires_at > first, what="a renewal")

    locking = elsewhere(lock_until_renewed)
    assert locked.wait(120)
    do = {"lease": 12, "completion": Delete(cascade=True)}
    assert work(Parcel, lambda row: ran.append(row.pk), **do) == 0
    locking.result(120)
    assert len(ran) == len(set(ran)) == 20
    assert not Parcel.objects.exists()
    assert not Stamp.objects.exists()
