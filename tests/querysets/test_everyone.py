"""``RetryLater(everyone=True)``: an upstream asks everybody to wait, and nobody claims rows of the model meanwhile."""

from collections.abc import Callable
from typing import Any

import pytest

from django_taskclaim.exceptions import RetryLater
from django_taskclaim.models import Switch
from django_taskclaim.switch import paused_by, resume
from tests.factories import make
from tests.querysets.late_writes import claimed
from tests.querysets.support import clock, execute, facts, table_of
from tests.testapp.models import Child, Parent, Photo, PhotoProxy, UuidKey

pytestmark = pytest.mark.django_db

STOP = RetryLater(3600, "the API said 429", everyone=True)


@pytest.mark.usefixtures("strategy")
def test_everybody_waits_and_goes_on_by_itself() -> None:
    """A stop is no pause, so no resume ends it."""
    row = claimed(Photo)
    row.claim.fail(STOP)
    make(Photo, 2)
    make(UuidKey)
    assert (facts(row).status, facts(row).attempts, facts(row).iteration) == ("open", 0, 1)
    assert paused_by(Photo) is None
    resume(Photo, using="default")
    assert Photo.objects.claim_batch(3) == []
    assert PhotoProxy.objects.claim_batch(3, claimed_by="user:17") == []
    assert len(UuidKey.objects.claim_batch(1)) == 1
    execute(f"UPDATE {table_of(Switch)} SET until = {clock('-1 SECOND')}")
    # The row itself waits for its own moment.
    assert len(Photo.objects.claim_batch(3)) == 2


def test_a_stop_of_a_parent_holds_for_its_children_and_not_the_other_way_round() -> None:
    make(Child, 3)
    claimed(Child).claim.fail(STOP)
    assert Child.objects.claim_batch(1) == []
    (row,) = Parent.objects.claim_batch(1)
    execute(f"UPDATE {table_of(Switch)} SET until = {clock('-1 SECOND')}")
    row.claim.fail(STOP)
    assert Child.objects.claim_batch(1) == []


def test_only_an_error_that_says_everyone_stops_everyone(rule: Callable[..., None]) -> None:
    """Of two stops the longer one counts, a person keeps what it holds, and learns why it gets no more."""
    rule(Photo, errors={ConnectionError: RetryLater(3600, everyone=True)})
    make(Photo, 4)
    mine: dict[str, Any] = {"claimed_by": "user:17", "include_held": True}
    alone, short, long = Photo.objects.claim_batch(3)
    alone.claim.fail(RetryLater(60))
    held = Photo.objects.claim_batch(1, **mine)
    assert len(held) == 1
    make(Photo)
    long.claim.fail(ConnectionRefusedError("come back later"))
    short.claim.fail(RetryLater(1, "short", everyone=True))
    assert "come back later" in str(Photo.objects.why_empty("user:1"))
    assert Photo.objects.claim_batch(3, **mine) == held
