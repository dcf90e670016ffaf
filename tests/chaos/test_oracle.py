"""The oracle itself: it is silent about an honest run, and each check speaks when somebody cheats.

The cheats are raw SQL: no verb does this, and a bug that did would look like it.
"""

from collections.abc import Callable

import pytest

from tests.chaos.app.models import History, Work
from tests.chaos.history import NOW, Run, act, ask, later, orphans
from tests.chaos.oracle import QUARANTINED, Rules, checks, offences

RULES = Rules(lease=60, batch_size=2, atomic=True)

pytestmark = pytest.mark.usefixtures("watched")

OPEN = "status = 'open', claimed_by = NULL, claimed_at = NULL, expires_at = NULL"
CHARGED = f"iteration = iteration + 1, attempts = attempts + 1, {OPEN}"
FAILED = "status = 'failed', attempts = attempts + 1, expires_at = NULL"
DIED = f"{FAILED}, error_class = 'LeaseExpired'"
DAY = 86400


def claim_of(holder: str = "me@host#1", lease: float = 10) -> str:
    return (
        f"status = 'processing', claimed_at = {NOW}, expires_at = {later(NOW, lease)},"
        f" claimed_by = '{holder}'"
    )


# How scenes begin


def new(**values: object) -> Work:
    return Work.objects.create(**values)


def claimed() -> Work:
    new()
    (row,) = Work.objects.filter(wanted=True).claim_batch(1)
    return row


def ran(effects: int = 1) -> Work:
    """Do what an honest atomic handler does."""
    row = claimed()
    run_on([row], effects)
    return row


def run_on(rows: list[Work], effects: int = 1) -> None:
    run = Run(rows)
    run.tell("started")
    for _ in range(effects):
        run.have_effect()
    run.tell("ended")
    for row in rows:
        row.signed_by, row.signed_iteration = row.claim.token


def done(effects: int = 1) -> Work:
    return finish(ran(effects))


def finish(row: Work) -> Work:
    row.claim.complete(update_fields=["signed_by", "signed_iteration"])
    return row


def acted(kind: str, began: float = -60, worker: str = "") -> None:
    """Pretend that something has been done to the workers since then, and for a minute to come."""
    with act(kind, worker):
        pass
    moments = f"began_at = {later(NOW, began)}, ended_at = {later(NOW, 60)}"
    ask(f"UPDATE chaos_act SET {moments}, ended_after = 1000000 WHERE kind = %s", [kind])


# The scenes that no UPDATE of one row makes


def unseen() -> None:
    """A change that the history has missed."""
    History.objects.filter(work_id=done().pk, new_status="complete").delete()
    Work.objects.reset(complete=True)


def too_many() -> None:
    for row in (new(), new(), new()):
        cheat(row, claim_of())


def run_without_claim() -> None:
    run = Run([row := claimed()])
    run.tokens = [(row.pk, "nobody@host#1", 0)]
    run.tell("started")


def effect_without_completion() -> None:
    ran().claim.release()


def ran_twice() -> None:
    row = ran()
    run_on([row], effects=0)
    finish(row)


def freed_late() -> None:
    row = claimed()
    orphans("kill", "", 5)
    ask(f"UPDATE chaos_orphan SET left_at = {later(NOW, -60)}")
    row.claim.release()


def claimed_by_an_orphan() -> None:
    acted("kill_supervisor", began=-10, worker="w1.")
    cheat(new(), claim_of("w1.@host#1"))


def charged_for_silence() -> None:
    """A row whose worker lived through the silence is put back as if it had died."""
    acted("silence")
    cheat(claimed(), f"expires_at = {later(NOW, -1)}", CHARGED)


def claimed_while_paused() -> None:
    acted("pause")
    claimed()


def failed_without_having_run() -> None:
    row = new()
    cheat(row, f"attempts = 4, not_before = {QUARANTINED}")
    cheat(Work.objects.claim_batch(1)[0], DIED)


def cheat(row: Work, *writes: str) -> None:
    """Write the row as somebody without respect would."""
    for assignments in writes:
        ask(f"UPDATE chaos_work SET {assignments} WHERE id = %s", [row.pk])


#: The check that must speak, how the row begins, and what is written to it then.
CHEATS: list[tuple[str, Callable[[], Work | None], list[str]]] = [
    ("one_claim_at_a_time", claimed, ["claimed_by = 'thief@host#1'"]),
    ("history_is_whole", unseen, []),
    # It would be claimed under a token of before.
    ("states_follow_each_other", ran, [OPEN]),
    ("claims_are_wanted_and_due", new, [f"not_before = {later(NOW, DAY)}", claim_of()]),
    ("claims_keep_their_limit", too_many, []),
    ("runs_belong_to_claims", run_without_claim, []),
    ("only_the_token_writes", claimed, ["signed_by = 'late@host#1', signed_iteration = 0"]),
    ("complete_is_final", done, [f"iteration = iteration + 1, attempts = 0, {OPEN}"]),
    ("effects_are_exactly_once", lambda: done(effects=2), []),
    ("effects_are_exactly_once", effect_without_completion, []),
    ("extra_runs_are_explained", ran_twice, []),
    ("the_database_clock_decides", new, [claim_of(lease=DAY)]),
    ("the_dead_lose_their_rows_in_time", freed_late, []),
    ("orphans_claim_nothing", claimed_by_an_orphan, []),
    ("silence_charges_nobody", charged_for_silence, []),
    ("nothing_is_claimed_while_paused", claimed_while_paused, []),
    ("rows_fail_only_when_allowed", failed_without_having_run, []),
    ("nothing_is_lost", new, []),
]


@pytest.mark.parametrize(("check", "scene", "writes"), CHEATS)
def test_each_cheat_is_seen(
    check: str, scene: Callable[[], Work | None], writes: list[str]
) -> None:
    """The check that stands for the promise names the row; on an empty database it named none."""
    assert offences(RULES) == {}
    row = scene()
    if row is not None:
        cheat(row, *writes)
    found = offences(RULES)
    assert check in found, found


def test_every_check_has_a_cheat() -> None:
    assert {check for check, _, _ in CHEATS} == set(checks(RULES))
