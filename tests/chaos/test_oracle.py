"""The oracle itself: it is silent about an honest run, and each check speaks when somebody cheats.

The cheats are raw SQL: no verb of ours would do this, and a bug that did would look like it.
"""

from collections.abc import Callable

import pytest
from django.db import connection

from tests.behaviour.support import clock, wait_for
from tests.chaos import ledger, records, sql
from tests.chaos.app.models import Act, History, Work
from tests.chaos.oracle import CHECKS, Rules, crash_mark, offences

RULES = Rules(lease=60, reaper=1, batch_size=2, atomic=True)


pytestmark = pytest.mark.usefixtures("watched")


def claimed(n: int = 1) -> list[Work]:
    Work.objects.bulk_create([Work() for _ in range(n)])
    return Work.objects.filter(wanted=True).claim_batch(n)


def run(*rows: Work, same: bool = True) -> None:
    """Do what an honest atomic handler does."""
    call = ledger.Run(rows)
    call.other("started")
    if same:
        call.same()
    for row in rows:
        row.signed_by, row.signed_iteration = row.claim.token
    call.other("ended")


def finish(*rows: Work) -> None:
    Work.objects.complete(rows, update_fields=["signed_by", "signed_iteration"])


def done(n: int = 1) -> list[Work]:
    rows = claimed(n)
    run(*rows)
    finish(*rows)
    return rows


def cheat(row: Work, assignments: str) -> None:
    """Write the row as somebody without respect would."""
    assert sql.execute(connection, f"UPDATE chaos_work SET {assignments} WHERE id = %s", [row.pk])


def act(kind: str, worker: str = "", began: str = "-1 MINUTE", ended: str = "+1 MINUTE") -> None:
    sql.execute(
        connection,
        "INSERT INTO chaos_act (kind, worker, began_at, ended_at, ended_after)"
        f" VALUES (%s, %s, {clock(began)}, {clock(ended)}, 1000000)",
        [kind, worker],
    )


NOW = sql.now(connection)
OPEN = "status = 'open', claimed_by = NULL, claimed_at = NULL, expires_at = NULL"


def taken_over() -> None:
    """Another holder helps himself to a claim that has a minute left."""
    (row,) = claimed()
    cheat(row, "claimed_by = 'thief@host#1'")


def reaped_early() -> None:
    (row,) = claimed()
    cheat(row, f"iteration = iteration + 1, attempts = attempts + 1, {OPEN}")


def set_apart_early() -> None:
    """Put back before its time by a reaper that thinks that it has killed its worker on the last try."""
    (row,) = claimed()
    cheat(row, "attempts = 4")
    cheat(row, f"iteration = iteration + 1, not_before = {crash_mark()}, {OPEN}")


def failed_early() -> None:
    (row,) = claimed()
    cheat(
        row,
        "status = 'failed', attempts = attempts + 1, expires_at = NULL, error_class = 'LeaseExpired'",
    )


def unseen() -> None:
    """A change that the history has missed."""
    rows = done(2)
    History.objects.filter(work_id=rows[0].pk, new_status="complete").delete()
    Work.objects.reset(complete=True)


def token_used_again() -> None:
    """A row that goes back with its old iteration would be claimed under a token of before."""
    (row,) = claimed()
    run(row, same=False)
    cheat(row, OPEN)


def left_over_expiry() -> None:
    (row,) = claimed()
    cheat(row, "status = 'open', claimed_by = NULL, iteration = iteration + 1")


def unwanted() -> None:
    row = Work.objects.create(wanted=False)
    cheat(row, claim_of("me@host#1"))


def not_due() -> None:
    row = Work.objects.create()
    cheat(row, f"not_before = {clock('+1 HOUR')}")
    cheat(row, claim_of("me@host#1"))


def claim_of(holder: str, lease: str = "+10 SECOND") -> str:
    return (
        f"status = 'processing', claimed_at = {NOW}, expires_at = {clock(lease)},"
        f" claimed_by = '{holder}'"
    )


def too_many() -> None:
    for row in [Work.objects.create() for _ in range(3)]:
        cheat(row, claim_of("me@host#1"))


def run_without_claim() -> None:
    (row,) = claimed()
    call = ledger.Run([row])
    call.tokens = [(row.pk, "nobody@host#1", 0)]
    call.other("started")


def late_write() -> None:
    """A worker that has lost its row writes its result all the same."""
    (row,) = claimed()
    holder = row.claim.token.holder
    Work.objects.reset(running=True)
    cheat(row, f"signed_by = '{holder}', signed_iteration = 0")


def unsigned_completion() -> None:
    (row,) = claimed()
    cheat(row, "status = 'complete', expires_at = NULL")


def reopened() -> None:
    (row,) = done()
    cheat(row, f"iteration = iteration + 1, attempts = 0, {OPEN}")


def deleted() -> None:
    (row,) = done()
    sql.execute(connection, "DELETE FROM chaos_work WHERE id = %s", [row.pk])


def no_effect() -> None:
    (row,) = claimed()
    run(row, same=False)
    finish(row)


def two_effects() -> None:
    (row,) = claimed()
    run(row)
    ledger.Run([row]).same()
    finish(row)


def effect_without_completion() -> None:
    (row,) = claimed()
    run(row)
    Work.objects.release([row])


def ran_twice() -> None:
    (row,) = claimed()
    run(row)
    run(row, same=False)
    finish(row)


def never_ended() -> None:
    (row,) = claimed()
    run(row)


def wrong_clock() -> None:
    row = Work.objects.create()
    cheat(row, claim_of("me@host#1").replace(NOW, clock("-1 DAY"), 1))


def too_long_a_lease() -> None:
    row = Work.objects.create()
    cheat(row, claim_of("me@host#1", "+1 DAY"))


def born_expired() -> None:
    row = Work.objects.create()
    cheat(row, claim_of("me@host#1", "-1 DAY"))


def never_freed() -> None:
    (row,) = claimed()
    orphan(row, bound=0)


def freed_late() -> None:
    (row,) = claimed()
    orphan(row, bound=5)
    Work.objects.release([row])


def orphan(row: Work, bound: float) -> None:
    holder, iteration = row.claim.token
    sql.execute(
        connection,
        "INSERT INTO chaos_orphan (kind, work_id, holder, iteration, left_at, bound)"
        f" VALUES ('kill', %s, %s, %s, {clock('-1 MINUTE')}, %s)",
        [row.pk, holder, iteration, bound],
    )


def claimed_by_an_orphan() -> None:
    act("kill_supervisor", worker="w1.", began="-10 SECOND")
    row = Work.objects.create()
    cheat(row, claim_of("w1.@host#1"))


def charged_for_silence() -> None:
    """A row whose worker lived through the silence is put back as if it had died."""
    act("silence")
    (row,) = claimed()
    cheat(row, f"expires_at = {clock('-1 SECOND')}")
    cheat(row, f"iteration = iteration + 1, attempts = attempts + 1, {OPEN}")


def claimed_while_paused() -> None:
    act("pause")
    claimed()


def failed_too_soon() -> None:
    (row,) = claimed()
    cheat(row, "status = 'failed', attempts = attempts + 1, expires_at = NULL")


def failed_without_having_run() -> None:
    row = Work.objects.create()
    cheat(row, f"attempts = 4, not_before = {crash_mark()}")
    (row,) = Work.objects.claim_batch(1)
    cheat(
        row,
        "status = 'failed', attempts = attempts + 1, expires_at = NULL, error_class = 'LeaseExpired'",
    )


def left_behind() -> None:
    Work.objects.create()


CHEATS: dict[Callable[[], None], str] = {
    taken_over: "one_claim_at_a_time",
    reaped_early: "one_claim_at_a_time",
    set_apart_early: "one_claim_at_a_time",
    failed_early: "one_claim_at_a_time",
    unseen: "history_is_whole",
    token_used_again: "states_follow_each_other",
    left_over_expiry: "states_follow_each_other",
    unwanted: "claims_are_wanted_and_due",
    not_due: "claims_are_wanted_and_due",
    too_many: "claims_keep_their_limit",
    run_without_claim: "runs_belong_to_claims",
    late_write: "only_the_token_writes",
    unsigned_completion: "only_the_token_writes",
    reopened: "complete_is_final",
    deleted: "complete_is_final",
    no_effect: "effects_are_exactly_once",
    two_effects: "effects_are_exactly_once",
    effect_without_completion: "effects_are_exactly_once",
    ran_twice: "extra_runs_are_explained",
    never_ended: "extra_runs_are_explained",
    wrong_clock: "the_database_clock_decides",
    too_long_a_lease: "the_database_clock_decides",
    born_expired: "the_database_clock_decides",
    never_freed: "the_dead_lose_their_rows_in_time",
    freed_late: "the_dead_lose_their_rows_in_time",
    claimed_by_an_orphan: "orphans_claim_nothing",
    charged_for_silence: "silence_charges_nobody",
    claimed_while_paused: "nothing_is_claimed_while_paused",
    failed_too_soon: "rows_fail_only_when_allowed",
    failed_without_having_run: "rows_fail_only_when_allowed",
    left_behind: "nothing_is_lost",
}


@pytest.mark.parametrize("scene", CHEATS, ids=lambda scene: scene.__name__)
def test_each_cheat_is_seen(scene: Callable[[], None]) -> None:
    """The check that stands for the promise names the row; on an empty database it named none."""
    assert offences(RULES) == {}
    scene()
    found = offences(RULES)
    assert CHEATS[scene] in found, found


def test_every_check_has_a_cheat() -> None:
    assert set(CHEATS.values()) == set(CHECKS)


def test_an_honest_run_is_no_offence() -> None:
    """Everything the verbs may do to a row, in turn, up to the crash that is its last."""
    done(2)
    with_reset(lambda: Work.objects.reset(complete=True))
    first, second = Work.objects.claim_batch(2)
    first.claim.renew(lease=59)
    Work.objects.all()._set_apart(first)
    second.claim.fail(ValueError("once"))
    Work.objects.pause_rows()
    Work.objects.resume_rows()
    while Work.objects.failed().count() < 2:
        expire(due_rows(2))
    with_reset(lambda: Work.objects.reset())
    rows = due_rows(2)
    run(*rows)
    finish(*rows)
    assert offences(RULES) == {}


def test_a_silence_that_follows_harm_charges_as_usual() -> None:
    """A worker that was killed before the silence loses its rows, and each counts."""
    records.harm()
    charged_for_silence()
    assert "silence_charges_nobody" not in offences(RULES)


def test_a_claim_that_began_while_paused_may_wait_for_the_resume() -> None:
    """Its statement had arrived, and looked at the switch when that was on again."""
    Work.objects.create()
    with records.act("pause"):
        began_at = Act.objects.get().began_at
    assert Work.objects.filter(wanted=True).claim_batch(1)
    assert History.objects.filter(new_status="processing").update(at=began_at) == 1
    assert "nothing_is_claimed_while_paused" not in offences(RULES)


def due_rows(n: int) -> list[Work]:
    return wait_for(lambda: Work.objects.filter(wanted=True).claim_batch(n, lease=0.1))


def expire(rows: list[Work]) -> None:
    """Start on the rows, and let their lease run out."""
    run(*rows, same=False)
    wait_for(lambda: Work.objects.expired().count() == len(rows))
    assert Work.objects.release_expired() == len(rows)


def with_reset(verb: Callable[[], int]) -> None:
    """Write down when an operator resets rows, as the runner does."""
    with records.act("reset"):
        assert verb()
