"""Every way to write through a claim, and what is to be left of one that comes too late."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_taskclaim.exceptions import ClaimLost
from tests.behaviour.support import stored
from tests.factories import make
from tests.testapp.models import Child, ChildOwnsClaim, CompositeKey, Photo

Write = Callable[[Any], Any]


def in_savepoint(write: Write) -> Write:
    """``save()`` of a lost claim asks for a rollback, so it gets a savepoint to roll back to."""

    def guarded(row: Any) -> None:
        with transaction.atomic():
            write(row)

    return guarded


WRITES: dict[str, Write] = {
    "complete": lambda row: row.claim.complete(),
    "complete with results": lambda row: row.claim.complete(update_fields=["note"]),
    "fail": lambda row: row.claim.fail("late"),
    "fail for good": lambda row: row.claim.fail("late", retry=False),
    "release": lambda row: row.claim.release(),
    "release with delay": lambda row: row.claim.release(delay=60),
    "renew": lambda row: row.claim.renew(),
    "save": in_savepoint(lambda row: row.save()),
    "save one column": in_savepoint(lambda row: row.save(update_fields=["note"])),
    "force_update": in_savepoint(lambda row: row.save(force_update=True)),
    "delete": lambda row: row.delete(),
    "bulk_update": lambda row: type(row).objects.bulk_update([row], ["note"]),
}


#: Those of them that store ``note`` and leave the claim as it is.
USERS_WRITES = ["save", "save one column", "force_update", "bulk_update"]

#: One of each kind of write, and of each kind of table, where all with all would only repeat itself.
KINDS = pytest.mark.parametrize("kind", ["complete", "renew", "save", "delete", "bulk_update"])
TABLES = pytest.mark.parametrize("model", [Photo, Child, ChildOwnsClaim, CompositeKey])


def claimed(model: Any, **options: Any) -> Any:
    make(model)
    (row,) = model.objects.claim_batch(1, **options)
    return row


def assert_refused(write: Write, row: Any) -> ClaimLost:
    """Assert that the write raises ClaimLost naming the row and leaves every column byte for byte."""
    before = stored(row)
    row.note, row.counter = "late", 99
    with pytest.raises(ClaimLost) as lost:
        write(row)
    assert lost.value.lost == [row]
    assert repr(row.pk) in str(lost.value)
    assert stored(row) == before
    return lost.value
