"""The process is killed before and after every statement of a full cycle, one after the other, none left out."""

import pytest

from tests.chaos.app.models import Effect, Work
from tests.chaos.cycles import FIELDS, LEASE, claim, work
from tests.chaos.oracle import Rules, offences
from tests.processes import Partner
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("watched"), pytest.mark.long]

#: Each cycle, the kind of handler that runs in it, and how many boundaries it has at the least.
CYCLES = [
    ("complete", "plain", 2),
    ("fail", "plain", 2),
    ("worker", "plain", 8),
    ("worker", "atomic", 8),
]


@pytest.mark.promise(3, 4, 5)
@pytest.mark.parametrize(("cycle", "mode", "least"), CYCLES)
def test_killed_at_every_boundary(
    process_env: dict[str, str], cycle: str, mode: str, least: int
) -> None:
    """Each row ends complete after the kill, and the oracle has nothing to object to."""
    assert kill_at_every_boundary({**process_env, "TASKCLAIM_CHAOS_MODE": mode}, cycle) > least
    finish_what_is_left()
    assert set(Work.objects.values_list("status", flat=True)) == {"complete"}
    assert offences(Rules(LEASE, 1, atomic=mode == "atomic")) == {}


def kill_at_every_boundary(env: dict[str, str], cycle: str) -> int:
    """Run the cycle on a new row each time, killed one boundary later, until one is not killed; count the rows."""
    with Partner(env, "tests.chaos.cycles") as kennel:
        boundary, ended = 0, -9
        while ended == -9:
            # The newest row goes first where the cycle chooses by itself.
            row = Work.objects.create(priority=boundary)
            kennel.tell(f"{cycle} {row.pk} {boundary}")
            ended = kennel.heard()
            boundary += 1
        assert ended == 0, f"the cycle itself failed at boundary {boundary - 1}"
    return boundary


def finish_what_is_left() -> None:
    """Let the leases of the dead run out, and do every row that is not done, as a healthy worker would."""
    wait_until(
        lambda: Work.objects.expired().count() == Work.objects.filter(status="processing").count()
    )
    Work.objects.release_expired()
    for row in Work.objects.exclude(status="complete"):
        mine = claim(row.pk)
        before = Effect.objects.filter(work_id=row.pk, phase="effect").count()
        work(mine)
        mine.claim.complete(update_fields=FIELDS)
        assert Effect.objects.filter(work_id=row.pk, phase="effect").count() == before + 1
