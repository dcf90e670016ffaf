"""Which promise was broken, decided in SQL from what the triggers and the handlers wrote down.

Each check is one query, and what it returns is an offence. ``h`` is an entry of the history: one change of one row,
as it was before and after. The entries of a row are in the order in which they were committed, because ``seq`` is
drawn while the row is locked.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from tests.chaos.app.claims import MAX_ATTEMPTS
from tests.chaos.history import VENDOR, ask, differs, gather, later


@dataclass(frozen=True, slots=True)
class Rules:
    """What the run allowed its workers; the longest lease is in seconds."""

    lease: float
    batch_size: int
    atomic: bool = False
    batch: bool = False


CLAIM = "h.new_status = 'processing' AND (h.old_status IS NULL OR h.old_status <> 'processing')"
HELD = "h.old_status = 'processing'"
#: As ``django_taskclaim.fields.CRASHED`` is stored: the mark of a row that waits to be claimed alone.
CRASHED = {
    "postgresql": "TIMESTAMPTZ '1970-01-02 00:00:00+00'",
    "mysql": "'1970-01-02 00:00:00'",
    "sqlite": "'1970-01-02 00:00:00.000'",
}[VENDOR]
#: The holders' names that begin with the worker's that an act names.
OF_WORKER = "a.worker || '%%'" if VENDOR == "sqlite" else "CONCAT(a.worker, '%%')"
#: The process that a holder is of, in SQL.
PROCESS = {
    "postgresql": "SPLIT_PART({}, '#', 1)",
    "mysql": "SUBSTRING_INDEX({}, '#', 1)",
    "sqlite": "SUBSTR({0}, 1, INSTR({0}, '#'))",
}[VENDOR]

Check = Callable[[Rules], str]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def changed(*names: str) -> str:
    return "(" + " OR ".join(differs(f"h.old_{name}", f"h.new_{name}") for name in names) + ")"


def within(kind: str) -> str:
    """Say in SQL whether the entry was written while such an act was going on."""
    return (
        f"EXISTS (SELECT 1 FROM chaos_act a WHERE a.kind = '{kind}' AND h.at >= a.began_at"
        " AND (a.ended_at IS NULL OR h.at <= a.ended_at))"
    )


def same_token(other: str) -> str:
    """Say in SQL that the token of *other* is what the entry had before."""
    return (
        f"h.work_id = {other}.work_id AND h.old_claimed_by = {other}.holder"
        f" AND h.old_iteration = {other}.iteration"
    )


def first_end(other: str) -> str:
    """Return, in SQL, when the claim of *other* ended."""
    return (
        f"(SELECT MIN(h.at) FROM chaos_history h WHERE {same_token(other)} AND {HELD}"
        " AND h.new_status <> 'processing')"
    )


def started(phase: str = "started") -> str:
    return f"EXISTS (SELECT 1 FROM chaos_effect e WHERE e.phase = '{phase}' AND {same_token('e')})"


def entries(condition: str) -> str:
    """Return the entries of the history that a check objects to."""
    return f"SELECT h.* FROM chaos_history h WHERE {condition} ORDER BY h.seq LIMIT 100"


@check
def one_claim_at_a_time(rules: Rules) -> str:
    """1: a claim that has not expired is not taken over by anybody, and ended by nobody but its holder."""
    reaped = (
        "(h.new_status = 'open' AND h.new_attempts = h.old_attempts + 1 AND h.new_not_before = h.old_not_before)"
        # Before the last try it is the holder that sets rows apart: those of a batch that has overrun.
        f" OR (h.new_status = 'open' AND h.new_not_before = {CRASHED} AND h.old_not_before <> {CRASHED}"
        f" AND h.old_attempts + 1 >= {MAX_ATTEMPTS})"
        " OR (h.new_status = 'failed' AND h.new_error_class = 'LeaseExpired')"
    )
    stolen = f"h.new_status = 'processing' AND {changed('claimed_by', 'iteration')}"
    return entries(
        f"{HELD} AND h.old_expires_at > h.at AND ({stolen} OR {reaped}) AND NOT {within('reset')}"
    )


@check
def history_is_whole(rules: Rules) -> str:
    """1: each change of a row begins where the one before it ended, so the history has missed none."""
    columns = ("status", "claimed_by", "iteration", "expires_at")
    before = ", ".join(f"LAG(new_{name}) OVER w AS was_{name}" for name in columns)
    broken = " OR ".join(differs(f"h.was_{name}", f"h.old_{name}") for name in columns)
    return (
        f"SELECT * FROM (SELECT chaos_history.*, LAG(seq) OVER w AS was_seq, {before} FROM chaos_history"
        f" WINDOW w AS (PARTITION BY work_id ORDER BY seq)) h WHERE h.was_seq IS NOT NULL AND ({broken}) LIMIT 100"
    )


@check
def states_follow_each_other(rules: Rules) -> str:
    """1: no change of state but those that the verbs make; the iteration never decreases."""
    same, on = "h.new_iteration = h.old_iteration", "h.new_iteration = h.old_iteration + 1"
    kept, charged = "h.new_attempts = h.old_attempts", "h.new_attempts = h.old_attempts + 1"
    moves = [
        ("open", "processing", f"{same} AND {kept} AND h.new_claimed_by IS NOT NULL"),
        ("open", "open", f"{same} AND {kept}"),
        ("open", "paused", f"{same} AND {kept}"),
        ("paused", "open", on),
        ("processing", "processing", f"{same} AND {kept} AND NOT {changed('claimed_by')}"),
        ("processing", "complete", f"{same} AND {kept} AND NOT {changed('claimed_by')}"),
        ("processing", "open", f"{on} AND ({kept} OR {charged})"),
        # A claim that took a row whose worker had died along with others opens some again before it commits.
        (
            "processing",
            "open",
            f"{same} AND {kept} AND h.at < h.old_expires_at AND NOT {started()}",
        ),
        ("processing", "failed", f"{same} AND {charged}"),
        ("complete", "complete", same),
        ("failed", "failed", same),
    ]
    legal = [f"h.old_status = '{a}' AND h.new_status = '{b}' AND {rule}" for a, b, rule in moves]
    legal.append(f"h.new_status = 'open' AND {on} AND h.new_attempts = 0 AND {within('reset')}")
    tidy = (
        "(h.new_status NOT IN ('open', 'paused') OR (h.new_claimed_by IS NULL AND h.new_expires_at IS NULL))"
        " AND (h.new_status = 'processing' OR h.new_expires_at IS NULL)"
    )
    return entries(f"h.op = 'U' AND NOT ((({') OR ('.join(legal)})) AND ({tidy}))")


@check
def claims_are_wanted_and_due(rules: Rules) -> str:
    """2: only rows that match the handler's queryset are claimed, open and due."""
    return entries(
        f"{CLAIM} AND (NOT h.new_wanted OR h.old_status IS NULL OR h.old_status <> 'open'"
        " OR h.old_not_before > h.at)"
    )


@check
def claims_keep_their_limit(rules: Rules) -> str:
    """2: no batch has more rows than were asked for; each has a holder of its own."""
    return (
        f"SELECT h.new_claimed_by, COUNT(*) AS n FROM chaos_history h WHERE {CLAIM}"
        f" GROUP BY h.new_claimed_by HAVING COUNT(*) > {rules.batch_size} LIMIT 100"
    )


@check
def runs_belong_to_claims(rules: Rules) -> str:
    """2: what a handler ran on was claimed for it, by a claim that was committed."""
    return (
        "SELECT e.* FROM chaos_effect e WHERE NOT EXISTS (SELECT 1 FROM chaos_history h"
        f" WHERE h.work_id = e.work_id AND {CLAIM} AND h.new_claimed_by = e.holder"
        " AND h.new_iteration = e.iteration) LIMIT 100"
    )


@check
def only_the_token_writes(rules: Rules) -> str:
    """3: what is written to a row is signed by the token that stood at that moment, its completion above all."""
    by_holder = f"{HELD} AND h.new_signed_by = h.old_claimed_by AND h.new_signed_iteration = h.old_iteration"
    finished = f"({HELD} AND h.new_status = 'complete')"
    return entries(
        f"h.op = 'U' AND ({changed('signed_by', 'signed_iteration')} OR {finished})"
        f" AND ({by_holder}) IS NOT TRUE"
    )


@check
def complete_is_final(rules: Rules) -> str:
    """4: nothing changes a complete row but a reset, and no row vanishes."""
    moved = changed("status", "iteration", "claimed_by", "signed_by", "completed_at")
    return entries(
        f"h.op = 'D' OR (h.op = 'U' AND h.old_status = 'complete' AND {moved} AND NOT {within('reset')})"
    )


@check
def effects_are_exactly_once(rules: Rules) -> str:
    """5: in atomic mode a completion has exactly one effect in its transaction, and no effect lacks a completion."""
    token = "work_id, holder, iteration"
    effects = (
        f"(SELECT {token}, COUNT(*) AS n FROM chaos_effect WHERE phase = 'effect' GROUP BY {token})"
    )
    done = (
        "(SELECT h.work_id, h.old_claimed_by AS holder, h.old_iteration AS iteration FROM chaos_history h"
        f" WHERE {HELD} AND h.new_status = 'complete')"
    )
    on = "d.work_id = e.work_id AND d.holder = e.holder AND d.iteration = e.iteration"
    return (
        f"SELECT d.work_id, d.holder, d.iteration, e.n FROM {done} d LEFT JOIN {effects} e ON {on}"
        " WHERE e.n IS NULL OR e.n <> 1"
        f" UNION ALL SELECT e.work_id, e.holder, e.iteration, e.n FROM {effects} e LEFT JOIN {done} d ON {on}"
        " WHERE d.work_id IS NULL LIMIT 100"
    )


@check
def extra_runs_are_explained(rules: Rules) -> str:
    """5: a token runs once, and once more for each time it raised; a run that was not the last was ended on record.

    An atomic batch runs again in halves also where its transaction was rolled back although the handler returned.
    """
    undone = "e.phase = 'raised'"
    if rules.atomic and rules.batch:
        undone = (
            "e.phase = 'started' AND NOT EXISTS (SELECT 1 FROM chaos_effect s WHERE s.phase = 'effect'"
            " AND s.work_id = e.work_id AND s.iteration = e.iteration AND s.run = e.run)"
        )
    return (
        "SELECT r.* FROM (SELECT e.work_id, e.holder, e.iteration,"
        " COUNT(DISTINCT CASE WHEN e.phase = 'started' THEN e.run END) AS n,"
        f" COUNT(DISTINCT CASE WHEN {undone} THEN e.run END) AS undone"
        " FROM chaos_effect e GROUP BY e.work_id, e.holder, e.iteration) r"
        f" WHERE r.n > r.undone + 1 OR {first_end('r')} IS NULL LIMIT 100"
    )


@check
def the_database_clock_decides(rules: Rules) -> str:
    """6: every moment that is written is the database's own, however wrong the clock of the worker is."""
    most, soon, just_now = (later("h.at", seconds) for seconds in (rules.lease + 1, 1, -1))
    return entries(
        f"({CLAIM} AND (h.new_claimed_at > {soon} OR h.new_claimed_at < {just_now} OR h.new_claimed_at IS NULL))"
        f" OR (h.new_expires_at IS NOT NULL AND {changed('expires_at')}"
        f" AND (h.new_expires_at <= h.at OR h.new_expires_at > {most}))"
        f" OR (h.op = 'U' AND h.new_completed_at IS NOT NULL AND {changed('completed_at')}"
        f" AND (h.new_completed_at > {soon} OR h.new_completed_at < {just_now}))"
    )


@check
def the_dead_lose_their_rows_in_time(rules: Rules) -> str:
    """7: each row of a process that was killed or frozen was claimable again in time."""
    return (
        f"SELECT f.* FROM (SELECT o.*, {first_end('o')} AS freed_at FROM chaos_orphan o) f"
        f" WHERE f.freed_at IS NULL OR f.freed_at > {later('f.left_at', 'f.bound')} LIMIT 100"
    )


@check
def orphans_claim_nothing(rules: Rules) -> str:
    """7: three seconds after their supervisor was killed, its children claim no more."""
    from_then, to_then = later("a.began_at", 3), later("a.began_at", 30)
    return (
        f"SELECT h.*, a.worker FROM chaos_act a JOIN chaos_history h ON h.at > {from_then} AND h.at < {to_then}"
        f" AND h.new_claimed_by LIKE {OF_WORKER} WHERE a.kind = 'kill_supervisor' AND {CLAIM} LIMIT 100"
    )


@check
def silence_charges_nobody(rules: Rules) -> str:
    """12: while the database is silent, or a lock holds up results, no row of a worker in health is charged.

    Nothing was done to the worker itself lately, and no row that kills was among those of its process.
    """
    # A worker that fails a row writes when it is due again.
    expired = (
        f"{HELD} AND h.old_expires_at < h.at AND h.new_attempts = h.old_attempts + 1"
        " AND ((h.new_status = 'open' AND h.new_not_before = h.old_not_before)"
        " OR h.new_error_class = 'LeaseExpired')"
    )
    calm = (
        "NOT EXISTS (SELECT 1 FROM chaos_act a WHERE a.kind = 'harm' AND h.old_claimed_by LIKE"
        f" {OF_WORKER} AND h.at BETWEEN a.began_at AND a.ended_at)"
    )
    harmless = (
        "NOT EXISTS (SELECT 1 FROM chaos_history d JOIN chaos_work w ON w.id = d.work_id AND w.act = 'die'"
        f" WHERE d.new_status = 'processing' AND {PROCESS.format('d.new_claimed_by')}"
        f" = {PROCESS.format('h.old_claimed_by')})"
    )
    return (
        "SELECT h.* FROM chaos_act s JOIN chaos_history h ON h.at >= s.began_at"
        f" AND (s.ended_at IS NULL OR h.at <= {later('s.ended_at', rules.lease / 4)})"
        f" WHERE s.kind IN ('silence', 'locked_reference') AND {expired} AND {calm} AND {harmless} LIMIT 100"
    )


@check
def nothing_is_claimed_while_paused(rules: Rules) -> str:
    """9: no statement that began after the commit of a pause has claimed a row before its resume.

    Where the pause ends, the order of the entries decides and not their moments: a statement that began before the
    resume, and looked at the switch after it, may claim.
    """
    return (
        "SELECT h.* FROM chaos_act a JOIN chaos_history h ON h.at >= a.began_at AND h.seq <= a.ended_after"
        f" WHERE a.kind = 'pause' AND {CLAIM} LIMIT 100"
    )


@check
def rows_fail_only_when_allowed(rules: Rules) -> str:
    """10: a row fails for good when it asked for that, or has used up its tries; after a crash only one that ran.

    One whose worker had written down that it begins counts as run: what its handler does first may have hung.
    """
    asked = (
        "EXISTS (SELECT 1 FROM chaos_work w WHERE w.id = h.work_id AND w.act LIKE 'permanent%%')"
    )
    begun = (
        "EXISTS (SELECT 1 FROM chaos_history b WHERE b.work_id = h.work_id AND b.seq < h.seq"
        " AND b.old_status = 'processing' AND b.new_status = 'processing'"
        " AND b.old_claimed_by = h.old_claimed_by AND b.old_iteration = h.old_iteration"
        f" AND b.new_not_before = {CRASHED} AND b.old_not_before <> {CRASHED})"
    )
    by_crash, tried = (
        "h.new_error_class = 'LeaseExpired'",
        f"h.new_attempts >= {MAX_ATTEMPTS}",
    )
    return entries(
        f"h.op = 'U' AND h.new_status = 'failed' AND {changed('status')}"
        f" AND NOT ((NOT {by_crash} AND ({tried} OR {asked}))"
        f" OR ({by_crash} AND {tried} AND h.old_not_before = {CRASHED} AND ({started()} OR {begun})))"
    )


@check
def nothing_is_lost(rules: Rules) -> str:
    """After the drain every wanted row has come to its end."""
    return "SELECT w.* FROM chaos_work w WHERE w.wanted AND w.status NOT IN ('complete', 'failed') LIMIT 100"


Offences = dict[str, list[dict[str, Any]]]


def offences(rules: Rules) -> Offences:
    """Return what each check objects to, without those that have nothing to object to."""
    gather()
    # Planned for empty tables, the checks take for ever.
    tables = "chaos_work, chaos_history, chaos_effect, chaos_orphan, chaos_act"
    ask(
        {"mysql": f"ANALYZE TABLE {tables}", "postgresql": f"ANALYZE {tables}"}.get(
            VENDOR, "ANALYZE"
        )
    )
    found = {}
    for name, query in CHECKS.items():
        if rules.atomic or query is not effects_are_exactly_once:
            with transaction.atomic():
                found[name] = ask(query(rules))
    return {name: rows for name, rows in found.items() if rows}
