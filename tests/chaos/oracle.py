"""Which promise was broken, decided in SQL from what the triggers and the handlers wrote down.

Each check is one query, and what it returns is an offence. ``h`` is an entry of the history: one change of one row,
as it was before and after. The entries of a row are in the order in which they were committed, because ``seq`` is
drawn while the row is locked.
"""

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
#: As ``django_taskclaim.fields.QUARANTINED`` is stored: the mark of a row that waits to be claimed alone. A later
#: moment is the mark of such a row whose claim has ended before the row was started.
QUARANTINED = {
    "postgresql": "TIMESTAMPTZ '9000-01-02 00:00:00+00'",
    "mysql": "'9000-01-02 00:00:00'",
    "sqlite": "'9000-01-02 00:00:00.000'",
}[VENDOR]
#: The holders' names that begin with the worker's that an act names.
OF_WORKER = "a.worker || '%%'" if VENDOR == "sqlite" else "CONCAT(a.worker, '%%')"
#: The process that a holder is of, in SQL.
PROCESS = {
    "postgresql": "SPLIT_PART({}, '#', 1)",
    "mysql": "SUBSTRING_INDEX({}, '#', 1)",
    "sqlite": "SUBSTR({0}, 1, INSTR({0}, '#'))",
}[VENDOR]
SAME, ON = "h.new_iteration = h.old_iteration", "h.new_iteration = h.old_iteration + 1"
KEPT, CHARGED = "h.new_attempts = h.old_attempts", "h.new_attempts = h.old_attempts + 1"
DIED = "h.new_error_class = 'LeaseExpired'"


def changed(*names: str) -> str:
    return "(" + " OR ".join(differs(f"h.old_{name}", f"h.new_{name}") for name in names) + ")"


def same_token(other: str) -> str:
    """Say that the token of *other* is what the entry had before."""
    return (
        f"h.work_id = {other}.work_id AND h.old_claimed_by = {other}.holder"
        f" AND h.old_iteration = {other}.iteration"
    )


def first_end(other: str) -> str:
    """Return when the claim of *other* ended."""
    return (
        f"(SELECT MIN(h.at) FROM chaos_history h WHERE {same_token(other)} AND {HELD}"
        " AND h.new_status <> 'processing')"
    )


RESET = """EXISTS (SELECT 1 FROM chaos_act a WHERE a.kind = 'reset' AND h.at >= a.began_at
    AND (a.ended_at IS NULL OR h.at <= a.ended_at))"""
STARTED = f"EXISTS (SELECT 1 FROM chaos_effect e WHERE e.phase = 'started' AND {same_token('e')})"

#: What the verbs make of a state. The second last: a claim that took a row whose worker had died along with others
#: opens some again before it commits.
MOVES = [
    ("open", "processing", f"{SAME} AND {KEPT} AND h.new_claimed_by IS NOT NULL"),
    ("open", "open", f"{SAME} AND {KEPT}"),
    ("open", "paused", f"{SAME} AND {KEPT}"),
    ("paused", "open", ON),
    ("processing", "processing", f"{SAME} AND {KEPT} AND NOT {changed('claimed_by')}"),
    ("processing", "complete", f"{SAME} AND {KEPT} AND NOT {changed('claimed_by')}"),
    ("processing", "open", f"{ON} AND ({KEPT} OR {CHARGED})"),
    ("processing", "failed", f"{SAME} AND {CHARGED}"),
    ("complete", "complete", SAME),
    ("failed", "failed", SAME),
    ("processing", "open", f"{SAME} AND {KEPT} AND h.at < h.old_expires_at AND NOT {STARTED}"),
]


def checks(rules: Rules) -> dict[str, str]:
    """Return a query for each promise."""
    moves = " OR ".join(
        f"(h.old_status = '{old}' AND h.new_status = '{new}' AND {rule})"
        for old, new, rule in MOVES
    )
    reset = f"(h.new_status = 'open' AND {ON} AND h.new_attempts = 0 AND {RESET})"
    links = ("status", "claimed_by", "iteration", "expires_at")
    before = ", ".join(f"LAG(new_{name}) OVER w AS was_{name}" for name in links)
    broken = " OR ".join(differs(f"h.was_{name}", f"h.old_{name}") for name in links)
    token = "work_id, holder, iteration"
    effects = (
        f"(SELECT {token}, COUNT(*) AS n FROM chaos_effect WHERE phase = 'effect' GROUP BY {token})"
    )
    done = f"""(SELECT h.work_id, h.old_claimed_by AS holder, h.old_iteration AS iteration FROM chaos_history h
        WHERE {HELD} AND h.new_status = 'complete')"""
    on = "d.work_id = e.work_id AND d.holder = e.holder AND d.iteration = e.iteration"
    undone = "e.phase = 'raised'"
    if rules.atomic and rules.batch:
        # It runs again in halves also where its transaction was rolled back although the handler returned.
        undone = """e.phase = 'started' AND NOT EXISTS (SELECT 1 FROM chaos_effect s WHERE s.phase = 'effect'
            AND s.work_id = e.work_id AND s.iteration = e.iteration AND s.run = e.run)"""
    most, soon, just_now = (later("h.at", seconds) for seconds in (rules.lease + 1, 1, -1))
    entries = "SELECT h.* FROM chaos_history h WHERE"
    found = {
        # 1: a claim that has not expired is not taken over by anybody, and ended by nobody but its holder. Before the
        # last try it is the holder that sets rows apart: those of a batch that has overrun.
        "one_claim_at_a_time": f"""{entries} {HELD} AND h.old_expires_at > h.at AND NOT {RESET} AND (
            (h.new_status = 'processing' AND {changed("claimed_by", "iteration")})
            OR (h.new_status = 'open' AND {CHARGED} AND h.new_not_before = h.old_not_before)
            OR (h.new_status = 'open' AND h.new_not_before = {QUARANTINED} AND h.old_not_before < {QUARANTINED}
                AND h.old_attempts + 1 >= {MAX_ATTEMPTS})
            OR (h.new_status = 'failed' AND {DIED}))""",
        # 1: each change of a row begins where the one before it ended, so the history has missed none.
        "history_is_whole": f"""SELECT * FROM (SELECT chaos_history.*, LAG(seq) OVER w AS was_seq, {before}
            FROM chaos_history WINDOW w AS (PARTITION BY work_id ORDER BY seq)) h
            WHERE h.was_seq IS NOT NULL AND ({broken})""",
        # 1: no change of state but those that the verbs make; the iteration never decreases.
        "states_follow_each_other": f"""{entries} h.op = 'U' AND NOT (({moves} OR {reset})
            AND (h.new_status NOT IN ('open', 'paused') OR (h.new_claimed_by IS NULL AND h.new_expires_at IS NULL))
            AND (h.new_status = 'processing' OR h.new_expires_at IS NULL))""",
        # 2: only rows that match the handler's queryset are claimed, open and due, or marked.
        "claims_are_wanted_and_due": f"""{entries} {CLAIM} AND (NOT h.new_wanted OR h.old_status IS NULL
            OR h.old_status <> 'open' OR (h.old_not_before > h.at AND h.old_not_before < {QUARANTINED}))""",
        # 2: no batch has more rows than were asked for; each has a holder of its own.
        "claims_keep_their_limit": f"""SELECT h.new_claimed_by, COUNT(*) AS n FROM chaos_history h WHERE {CLAIM}
            GROUP BY h.new_claimed_by HAVING COUNT(*) > {rules.batch_size}""",
        # 2: what a handler ran on was claimed for it, by a claim that was committed.
        "runs_belong_to_claims": f"""SELECT e.* FROM chaos_effect e WHERE NOT EXISTS (SELECT 1 FROM chaos_history h
            WHERE h.work_id = e.work_id AND {CLAIM} AND h.new_claimed_by = e.holder
            AND h.new_iteration = e.iteration)""",
        # 3: what is written to a row is signed by the token that stood at that moment, its completion above all.
        "only_the_token_writes": f"""{entries} h.op = 'U'
            AND ({changed("signed_by", "signed_iteration")} OR ({HELD} AND h.new_status = 'complete'))
            AND ({HELD} AND h.new_signed_by = h.old_claimed_by AND h.new_signed_iteration = h.old_iteration)
                IS NOT TRUE""",
        # 4: nothing changes a complete row but a reset, and no row vanishes.
        "complete_is_final": f"""{entries} h.op = 'D' OR (h.op = 'U' AND h.old_status = 'complete' AND NOT {RESET}
            AND {changed("status", "iteration", "claimed_by", "signed_by", "completed_at")})""",
        # 5: a completion of an atomic handler has exactly one effect, and no effect lacks a completion.
        "effects_are_exactly_once": f"""SELECT d.work_id, d.holder, d.iteration, e.n
            FROM {done} d LEFT JOIN {effects} e ON {on} WHERE e.n IS NULL OR e.n <> 1
            UNION ALL SELECT e.work_id, e.holder, e.iteration, e.n
            FROM {effects} e LEFT JOIN {done} d ON {on} WHERE d.work_id IS NULL""",
        # 5: a token runs once, and once more for each time it raised; a run that was not the last ended on record.
        "extra_runs_are_explained": f"""SELECT r.* FROM (SELECT e.work_id, e.holder, e.iteration,
            COUNT(DISTINCT CASE WHEN e.phase = 'started' THEN e.run END) AS n,
            COUNT(DISTINCT CASE WHEN {undone} THEN e.run END) AS undone
            FROM chaos_effect e GROUP BY e.work_id, e.holder, e.iteration) r
            WHERE r.n > r.undone + 1 OR {first_end("r")} IS NULL""",
        # 6: every moment that is written is the database's own, however wrong the clock of the worker is.
        "the_database_clock_decides": f"""{entries} ({CLAIM} AND (h.new_claimed_at IS NULL
            OR h.new_claimed_at > {soon} OR h.new_claimed_at < {just_now}))
            OR (h.new_expires_at IS NOT NULL AND {changed("expires_at")}
                AND (h.new_expires_at <= h.at OR h.new_expires_at > {most}))
            OR (h.op = 'U' AND h.new_completed_at IS NOT NULL AND {changed("completed_at")}
                AND (h.new_completed_at > {soon} OR h.new_completed_at < {just_now}))""",
        # 7: each row of a process that was killed or frozen was claimable again in time.
        "the_dead_lose_their_rows_in_time": f"""SELECT f.* FROM (SELECT o.*, {first_end("o")} AS freed_at
            FROM chaos_orphan o) f WHERE f.freed_at IS NULL OR f.freed_at > {later("f.left_at", "f.bound")}""",
        # 7: three seconds after their supervisor was killed, its children claim no more.
        "orphans_claim_nothing": f"""SELECT h.*, a.worker FROM chaos_act a JOIN chaos_history h
            ON h.at > {later("a.began_at", 3)} AND h.at < {later("a.began_at", 30)}
            AND h.new_claimed_by LIKE {OF_WORKER} WHERE a.kind = 'kill_supervisor' AND {CLAIM}""",
        # 12: while the database is silent, or a lock holds up results, no row of a worker in health is charged: nothing
        # was done to the worker lately, and no row that kills was among those of its process. (A worker that fails a
        # row writes when it is due again.)
        "silence_charges_nobody": f"""SELECT h.* FROM chaos_act s JOIN chaos_history h ON h.at >= s.began_at
            AND (s.ended_at IS NULL OR h.at <= {later("s.ended_at", rules.lease / 4)})
            WHERE s.kind IN ('silence', 'locked_reference') AND {HELD} AND h.old_expires_at < h.at AND {CHARGED}
            AND ((h.new_status = 'open' AND h.new_not_before = h.old_not_before) OR {DIED})
            AND NOT EXISTS (SELECT 1 FROM chaos_act a WHERE a.kind = 'harm' AND h.old_claimed_by LIKE {OF_WORKER}
                AND h.at BETWEEN a.began_at AND a.ended_at)
            AND NOT EXISTS (SELECT 1 FROM chaos_history d JOIN chaos_work w ON w.id = d.work_id AND w.act = 'die'
                WHERE d.new_status = 'processing'
                AND {PROCESS.format("d.new_claimed_by")} = {PROCESS.format("h.old_claimed_by")})""",
        # 9: no statement that began after the commit of a pause has claimed a row before its resume. Where the pause
        # ends, the order of the entries decides and not their moments: a statement that began before the resume, and
        # looked at the switch after it, may claim.
        "nothing_is_claimed_while_paused": f"""SELECT h.* FROM chaos_act a JOIN chaos_history h
            ON h.at >= a.began_at AND h.seq <= a.ended_after WHERE a.kind = 'pause' AND {CLAIM}""",
        # 10: a row fails for good when it asked for that, or has used up its tries; after a crash only one that ran,
        # or whose worker had written down that it begins: what its handler does first may have hung.
        "rows_fail_only_when_allowed": f"""{entries} h.op = 'U' AND h.new_status = 'failed' AND {changed("status")}
            AND NOT (NOT {DIED} AND (h.new_attempts >= {MAX_ATTEMPTS} OR EXISTS (SELECT 1 FROM chaos_work w
                WHERE w.id = h.work_id AND w.act LIKE 'permanent%%')))
            AND NOT ({DIED} AND h.new_attempts >= {MAX_ATTEMPTS} AND h.old_not_before = {QUARANTINED} AND ({STARTED}
                OR EXISTS (SELECT 1 FROM chaos_history b WHERE b.work_id = h.work_id AND b.seq < h.seq
                AND b.old_status = 'processing' AND b.new_status = 'processing'
                AND b.old_claimed_by = h.old_claimed_by AND b.old_iteration = h.old_iteration
                AND b.new_not_before = {QUARANTINED} AND b.old_not_before <> {QUARANTINED})))""",
        # After the drain every wanted row has come to its end.
        "nothing_is_lost": "SELECT w.* FROM chaos_work w WHERE w.wanted AND w.status NOT IN ('complete', 'failed')",
    }
    if not rules.atomic:
        del found["effects_are_exactly_once"]
    return {name: f"{query} LIMIT 100" for name, query in found.items()}


Offences = dict[str, list[dict[str, Any]]]


def offences(rules: Rules) -> Offences:
    """Return what each check objects to, without those that have nothing to object to."""
    gather()
    # Planned for empty tables, the checks take for ever.
    tables = "chaos_work, chaos_history, chaos_effect, chaos_orphan, chaos_act"
    kind = {"mysql": f"ANALYZE TABLE {tables}", "postgresql": f"ANALYZE {tables}"}
    ask(kind.get(VENDOR, "ANALYZE"))
    found = {}
    for name, query in checks(rules).items():
        with transaction.atomic():
            found[name] = ask(query)
    return {name: rows for name, rows in found.items() if rows}
