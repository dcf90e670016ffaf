"""Every way to write through a claim, and every way to lose one."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_taskclaim.exceptions import ClaimLost
from tests.factories import make_claimed
from tests.querysets.support import lose, set_raw, stored

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
    "hand over": lambda row: row.claim.hand_over("user:9"),
    "save": in_savepoint(lambda row: row.save()),
    "save one column": in_savepoint(lambda row: row.save(update_fields=["note"])),
    "force_update": in_savepoint(lambda row: row.save(force_update=True)),
    "delete": lambda row: row.delete(),
    "bulk_update": lambda row: type(row).objects.bulk_update([row], ["note"]),
}

#: Those of them that store ``note`` and leave the claim as it is.
USERS_WRITES = ["save", "save one column", "force_update", "bulk_update"]


def claimed(model: Any, **options: Any) -> Any:
    (row,) = make_claimed(model, **options)
    return row


def twin(row: Any) -> Any:
    """Return another instance that carries the same claim."""
    return pickle.loads(pickle.dumps(row))


#: Each gives a claimed row's claim to somebody else, or ends it; one part of the token differs, or only the state.
LOSSES: dict[str, Write] = {
    "another holder": lose,
    "the same holder again": lambda row: lose(row, to=row.claim.token.holder),
    "another holder in the same iteration": lambda row: set_raw(row, "claimed_by", "'user:next'"),
    "open": lambda row: type(row).objects.reset(running=True),
    "open in the same iteration": lambda row: set_raw(row, "status", "'open'"),
    "complete under the same token": lambda row: twin(row).claim.complete(),
    "failed under the same token": lambda row: twin(row).claim.fail("no", retry=False),
    "gone": lambda row: type(row)._base_manager.filter(pk=row.pk).delete(),
}


def assert_refused(name: str, row: Any) -> ClaimLost:
    """Assert that the write raises ClaimLost naming the row and leaves every column byte for byte."""
    before = stored(row)
    row.note, row.counter = "late", 99
    with pytest.raises(ClaimLost) as lost:
        WRITES[name](row)
    assert lost.value.lost == [row], name
    assert repr(row.pk) in str(lost.value), name
    assert stored(row) == before, name
    return lost.value
