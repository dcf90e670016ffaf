"""The process is killed before and after every statement of a full cycle, one after the other, none left out."""

import pytest

from tests.behaviour.support import wait_for
from tests.chaos.app.claims import is_known, plain
from tests.chaos.app.models import Effect, Work
from tests.chaos.cycles import LEASE, Kennel, claim
from tests.chaos.oracle import Rules, offences

pytestmark = [pytest.mark.usefixtures("watched"), pytest.mark.timeout(300), pytest.mark.long]

#: Each cycle, the kind of handler that runs in it, and how many boundaries it has at the least.
CYCLES = [
    ("complete", "plain", 12),
    ("complete_atomically", "plain", 10),
    ("fail", "plain", 10),
    ("release", "plain", 8),
    ("release_expired", "plain", 4),
    ("claimer", "plain", 8),
    ("claimer", "atomic", 6),
    ("handler", "plain", 6),
    ("handler", "atomic", 8),
]


@pytest.mark.parametrize(("cycle", "mode", "least"), CYCLES, ids=lambda value: str(value))
def test_killed_at_every_boundary(
    process_env: dict[str, str], cycle: str, mode: str, least: int
) -> None:
    """Whatever the kill left behind, each row ends complete, and the oracle has nothing to object to."""
    if not is_known(mode):
        pytest.skip(f"needs handlers of the kind {mode}")
    with Kennel(process_env, mode) as kennel:
        rows = kill_at_every_boundary(kennel, cycle)
    assert len(rows) > least
    finish_what_is_left()
    assert set(Work.objects.values_list("status", flat=True)) == {"complete"}
    assert offences(Rules(LEASE, 1, 1, atomic=is_atomic(cycle, mode))) == {}


def is_atomic(cycle: str, mode: str) -> bool:
    return mode == "atomic" or cycle == "complete_atomically"


def kill_at_every_boundary(kennel: Kennel, cycle: str) -> list[Work]:
    """Run the cycle on a new row each time, killed one boundary later, until one is not killed any more."""
    rows: list[Work] = []
    while True:
        # The newest row goes first where the cycle chooses by itself.
        row = Work.objects.create(priority=len(rows))
        if cycle == "release_expired":
            claim_and_expire(row)
        ended = kennel.run(cycle, row.pk, len(rows))
        rows.append(row)
        if ended == 0:
            return rows
        assert ended == -9, f"the cycle itself failed at boundary {len(rows) - 1}"


def claim_and_expire(row: Work) -> None:
    Work.objects.filter(pk=row.pk).claim_batch(1, lease=0.01)
    wait_for(lambda: Work.objects.expired().filter(pk=row.pk).exists())


def finish_what_is_left() -> None:
    """Let the leases of the dead run out, and do every row that is not done, as a healthy worker would."""
    wait_for(
        lambda: Work.objects.expired().count() == Work.objects.filter(status="processing").count()
    )
    Work.objects.release_expired()
    for row in Work.objects.exclude(status="complete"):
        (mine,) = wait_for(lambda row=row: claim(row.pk))
        before = Effect.objects.filter(work_id=row.pk, channel="same").count()
        plain(mine)
        mine.claim.complete(update_fields=["signed_by", "signed_iteration"])
        assert Effect.objects.filter(work_id=row.pk, channel="same").count() == before + 1
