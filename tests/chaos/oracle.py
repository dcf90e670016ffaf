"""Which promise was broken, decided in SQL from what the triggers and the handlers wrote down.

Each check is one query, and what it returns is an offence. ``h`` is an entry of the history: one change of one row,
as it was before and after. The entries of a row are in the order in which they were committed, because ``seq`` is
drawn while the row is locked.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction

from tests.chaos import ledger
from tests.chaos.app.claims import MAX_ATTEMPTS
from tests.chaos.sql import differs, later

Check = Callable[["Rules"], str]

#: As ``django_taskclaim.fields.CRASHED`` is stored: the start of the text is the same on every database.
CRASHED = "1970-01-02 00:00:00"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the run allowed its workers."""

    #: The longest lease, in seconds.
    lease: float
    reaper: float
    batch_size: int
    atomic: bool = False
    batch: bool = False
    max_attempts: int = MAX_ATTEMPTS


CLAIM = "h.new_status = 'processing' AND (h.old_status IS NULL OR h.old_status <> 'processing')"
HELD = "h.old_status = 'processing'"


def changed(name: str) -> str:
    return differs(connection, f"h.old_{name}", f"h.new_{name}")


def crashed(moment: str) -> str:
    """Say in SQL whether a row waits to be claimed alone, because its worker died on its last try."""
    return f"({moment} = {crash_mark()})"


def crash_mark() -> str:
    """Return that mark in SQL."""
    text = {"postgresql": "TIMESTAMPTZ '{}+00'", "mysql": "'{}'", "sqlite": "'{}.000'"}
    return text[connection.vendor].format(CRASHED)


def within(kind: str) -> str:
    """Say in SQL whether the entry was written while such an act was going on."""
    return (
        f"EXISTS (SELECT 1 FROM chaos_act a WHERE a.kind = '{kind}' AND h.at >= a.began_at"
        " AND (a.ended_at IS NULL OR h.at <= a.ended_at))"
    )


def same_token(entry: str, other: str) -> str:
    """Say in SQL that the token of *other* is what the entry had before."""
    return (
        f"{entry}.work_id = {other}.work_id AND {entry}.old_claimed_by = {other}.holder"
        f" AND {entry}.old_iteration = {other}.iteration"
    )


def entries(condition: str) -> str:
    """Return the entries of the history that a check objects to."""
    return f"SELECT h.* FROM chaos_history h WHERE {condition} ORDER BY h.seq LIMIT 100"


# Promise 1


def one_claim_at_a_time(rules: Rules) -> str:
    """1: a claim that has not expired is not taken over by anybody, and ended by nobody but its holder."""
    reaped = (
        "(h.new_status = 'open' AND h.new_attempts = h.old_attempts + 1 AND h.new_not_before = h.old_not_before)"
        # Before the last try it is the holder that sets rows apart: those of a batch that has overrun.
        f" OR (h.new_status = 'open' AND {crashed('h.new_not_before')} AND NOT {crashed('h.old_not_before')}"
        f" AND h.old_attempts + 1 >= {rules.max_attempts})"
        " OR (h.new_status = 'failed' AND h.new_error_class = 'LeaseExpired')"
    )
    stolen = f"h.new_status = 'processing' AND ({changed('claimed_by')} OR {changed('iteration')})"
    return entries(
        f"{HELD} AND h.old_expires_at > h.at AND ({stolen} OR {reaped}) AND NOT {within('reset')}"
    )


def history_is_whole(rules: Rules) -> str:
    """1: each change of a row begins where the one before it ended, so the history has missed none."""
    columns = ("status", "claimed_by", "iteration", "expires_at")
    before = ", ".join(f"LAG(new_{name}) OVER w AS was_{name}" for name in columns)
    broken = " OR ".join(differs(connection, f"h.was_{n}", f"h.old_{n}") for n in columns)
    return (
        f"SELECT * FROM (SELECT chaos_history.*, LAG(seq) OVER w AS was_seq, {before} FROM chaos_history"
        f" WINDOW w AS (PARTITION BY work_id ORDER BY seq)) h WHERE h.was_seq IS NOT NULL AND ({broken}) LIMIT 100"
    )


def states_follow_each_other(rules: Rules) -> str:
    """1: no change of state but those that the verbs make; the iteration never decreases."""
    same, on = "h.new_iteration = h.old_iteration", "h.new_iteration = h.old_iteration + 1"
    kept = "h.new_attempts = h.old_attempts"
    charged = "h.new_attempts = h.old_attempts + 1"
    moves = [
        ("open", "processing", f"{same} AND {kept} AND h.new_claimed_by IS NOT NULL"),
        ("open", "open", f"{same} AND {kept}"),
        ("open", "paused", f"{same} AND {kept}"),
        ("paused", "open", on),
        ("processing", "processing", f"{same} AND {kept} AND NOT ({changed('claimed_by')})"),
        ("processing", "complete", f"{same} AND {kept} AND NOT ({changed('claimed_by')})"),
        ("processing", "open", f"{on} AND ({kept} OR {charged})"),
        ("processing", "failed", f"{same} AND {charged}"),
    ]
    legal = " OR ".join(
        f"(h.old_status = '{old}' AND h.new_status = '{new}' AND {rule})"
        for old, new, rule in moves
    )
    reset = f"(h.new_status = 'open' AND {on} AND h.new_attempts = 0 AND {within('reset')})"
    # A claim that took a row whose worker had died along with others opens some of them again before it commits.
    undone = (
        f"(h.old_status = 'processing' AND h.new_status = 'open' AND {same} AND {kept}"
        " AND h.at < h.old_expires_at AND NOT EXISTS"
        f" (SELECT 1 FROM chaos_effect e WHERE {same_token('h', 'e')}))"
    )
    untouched = f"(h.old_status IN ('complete', 'failed') AND NOT ({changed('status')}) AND {same})"
    tidy = (
        "(h.new_status NOT IN ('open', 'paused') OR (h.new_claimed_by IS NULL AND h.new_expires_at IS NULL))"
        " AND (h.new_status = 'processing' OR h.new_expires_at IS NULL)"
    )
    return entries(
        f"h.op = 'U' AND NOT (({legal} OR {reset} OR {undone} OR {untouched}) AND ({tidy}))"
    )


# Promise 2


def claims_are_wanted_and_due(rules: Rules) -> str:
    """2: only rows that match the handler's queryset are claimed, open and due."""
    return entries(
        f"{CLAIM} AND (NOT h.new_wanted OR h.old_status IS NULL OR h.old_status <> 'open'"
        " OR h.old_not_before > h.at)"
    )


def claims_keep_their_limit(rules: Rules) -> str:
    """2: no batch has more rows than were asked for; each has a holder of its own."""
    return (
        f"SELECT h.new_claimed_by, COUNT(*) AS n FROM chaos_history h WHERE {CLAIM}"
        f" GROUP BY h.new_claimed_by HAVING COUNT(*) > {rules.batch_size} LIMIT 100"
    )


def runs_belong_to_claims(rules: Rules) -> str:
    """2: what a handler ran on was claimed for it, and committed before."""
    return (
        "SELECT e.* FROM chaos_effect e WHERE e.channel = 'other' AND NOT EXISTS (SELECT 1 FROM chaos_history h"
        f" WHERE h.work_id = e.work_id AND {CLAIM} AND h.new_claimed_by = e.holder"
        " AND h.new_iteration = e.iteration AND h.at <= e.at) LIMIT 100"
    )


# Promise 3


def only_the_token_writes(rules: Rules) -> str:
    """3: what is written to a row is signed by the token that stood at that moment, its completion above all."""
    by_holder = f"{HELD} AND h.new_signed_by = h.old_claimed_by AND h.new_signed_iteration = h.old_iteration"
    signed = f"({changed('signed_by')} OR {changed('signed_iteration')})"
    finished = f"({HELD} AND h.new_status = 'complete')"
    return entries(f"h.op = 'U' AND ({signed} OR {finished}) AND ({by_holder}) IS NOT TRUE")


# Promise 4


def complete_is_final(rules: Rules) -> str:
    """4: nothing changes a complete row but a reset, and no row vanishes."""
    moved = " OR ".join(
        changed(name) for name in ("status", "iteration", "claimed_by", "signed_by", "completed_at")
    )
    return entries(
        f"h.op = 'D' OR (h.op = 'U' AND h.old_status = 'complete' AND ({moved}) AND NOT {within('reset')})"
    )


# Promise 5


def effects_are_exactly_once(rules: Rules) -> str:
    """5: in atomic mode a completion has exactly one effect in its transaction, and no effect lacks a completion."""
    effects = (
        "(SELECT e.work_id, e.holder, e.iteration, COUNT(*) AS n FROM chaos_effect e"
        " WHERE e.channel = 'same' GROUP BY e.work_id, e.holder, e.iteration)"
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


def extra_runs_are_explained(rules: Rules) -> str:
    """5: a token runs once, and once more for each time it raised; a run that was not the last was ended on record.

    An atomic batch runs again in halves also where its transaction was rolled back although the handler returned.
    """
    undone = "e.phase = 'raised'"
    if rules.atomic and rules.batch:
        undone = (
            "e.phase = 'started' AND NOT EXISTS (SELECT 1 FROM chaos_effect s WHERE s.channel = 'same'"
            " AND s.work_id = e.work_id AND s.iteration = e.iteration AND s.run = e.run)"
        )
    runs = (
        "(SELECT e.work_id, e.holder, e.iteration,"
        " COUNT(DISTINCT CASE WHEN e.phase = 'started' THEN e.run END) AS n,"
        f" COUNT(DISTINCT CASE WHEN {undone} THEN e.run END) AS undone"
        " FROM chaos_effect e WHERE e.channel = 'other' GROUP BY e.work_id, e.holder, e.iteration)"
    )
    ended = (
        f"EXISTS (SELECT 1 FROM chaos_history h WHERE {same_token('h', 'r')} AND {HELD}"
        " AND h.new_status <> 'processing')"
    )
    return f"SELECT r.* FROM {runs} r WHERE r.n > r.undone + 1 OR NOT {ended} LIMIT 100"


# Promise 6


def the_database_clock_decides(rules: Rules) -> str:
    """6: every moment that is written is the database's own, however wrong the clock of the worker is."""
    most = later(connection, "h.at", rules.lease + 1)
    soon, just_now = later(connection, "h.at", 1), later(connection, "h.at", -1)
    return entries(
        f"({CLAIM} AND (h.new_claimed_at > {soon} OR h.new_claimed_at < {just_now} OR h.new_claimed_at IS NULL))"
        f" OR (h.new_expires_at IS NOT NULL AND {changed('expires_at')}"
        f" AND (h.new_expires_at <= h.at OR h.new_expires_at > {most}))"
        f" OR (h.op = 'U' AND h.new_completed_at IS NOT NULL AND {changed('completed_at')}"
        f" AND (h.new_completed_at > {soon} OR h.new_completed_at < {just_now}))"
    )


# Promise 7


def the_dead_lose_their_rows_in_time(rules: Rules) -> str:
    """7: each row of a process that was killed, frozen or cut off was claimable again in time."""
    freed = (
        f"(SELECT MIN(h.at) FROM chaos_history h WHERE {same_token('h', 'o')} AND {HELD}"
        " AND h.new_status <> 'processing')"
    )
    return (
        f"SELECT f.* FROM (SELECT o.*, {freed} AS freed_at FROM chaos_orphan o) f"
        f" WHERE f.freed_at IS NULL OR f.freed_at > {later(connection, 'f.left_at', 'f.bound')} LIMIT 100"
    )


def orphans_claim_nothing(rules: Rules) -> str:
    """7: three seconds after their supervisor was killed, its children claim no more."""
    theirs = "a.worker || '%%'" if connection.vendor == "sqlite" else "CONCAT(a.worker, '%%')"
    from_then, to_then = later(connection, "a.began_at", 3), later(connection, "a.began_at", 30)
    return (
        f"SELECT h.*, a.worker FROM chaos_act a JOIN chaos_history h ON h.at > {from_then} AND h.at < {to_then}"
        f" AND h.new_claimed_by LIKE {theirs} WHERE a.kind = 'kill_supervisor' AND {CLAIM} LIMIT 100"
    )


# Promise 12


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
    theirs = "a.worker || '%%'" if connection.vendor == "sqlite" else "CONCAT(a.worker, '%%')"
    process = {
        "postgresql": "SPLIT_PART({}, '#', 1)",
        "mysql": "SUBSTRING_INDEX({}, '#', 1)",
        "sqlite": "SUBSTR({0}, 1, INSTR({0}, '#'))",
    }[connection.vendor]
    calm = (
        "NOT EXISTS (SELECT 1 FROM chaos_act a WHERE a.kind = 'harm' AND h.old_claimed_by LIKE"
        f" {theirs} AND h.at BETWEEN a.began_at AND a.ended_at)"
    )
    harmless = (
        "NOT EXISTS (SELECT 1 FROM chaos_history d JOIN chaos_work w ON w.id = d.work_id AND w.act = 'die'"
        f" WHERE d.new_status = 'processing' AND {process.format('d.new_claimed_by')}"
        f" = {process.format('h.old_claimed_by')})"
    )
    soon = later(connection, "s.ended_at", rules.lease / 4)
    return (
        "SELECT h.* FROM chaos_act s JOIN chaos_history h ON h.at >= s.began_at"
        f" AND (s.ended_at IS NULL OR h.at <= {soon})"
        f" WHERE s.kind IN ('silence', 'locked_reference') AND {expired} AND {calm} AND {harmless} LIMIT 100"
    )


# Promises 9 and 10


def nothing_is_claimed_while_paused(rules: Rules) -> str:
    """9: no statement that began after the commit of a pause has claimed a row before its resume.

    Where the pause ends, the order of the entries decides and not their moments: a statement that began before the
    resume, and looked at the switch after it, may claim.
    """
    return (
        "SELECT h.* FROM chaos_act a JOIN chaos_history h ON h.at >= a.began_at AND h.seq <= a.ended_after"
        f" WHERE a.kind = 'pause' AND {CLAIM} LIMIT 100"
    )


def rows_fail_only_when_allowed(rules: Rules) -> str:
    """10: a row fails for good when it asked for that, or has used up its tries; after a crash only one that ran.

    One whose worker had written down that it begins counts as run: what its handler does first may have hung.
    """
    asked = (
        "EXISTS (SELECT 1 FROM chaos_work w WHERE w.id = h.work_id AND w.act LIKE 'permanent%%')"
    )
    ran = (
        "EXISTS (SELECT 1 FROM chaos_effect e WHERE e.phase = 'started' AND e.work_id = h.work_id"
        " AND e.holder = h.old_claimed_by AND e.iteration = h.old_iteration)"
    )
    begun = (
        "EXISTS (SELECT 1 FROM chaos_history b WHERE b.work_id = h.work_id AND b.seq < h.seq"
        " AND b.old_status = 'processing' AND b.new_status = 'processing'"
        " AND b.old_claimed_by = h.old_claimed_by AND b.old_iteration = h.old_iteration"
        f" AND {crashed('b.new_not_before')} AND NOT {crashed('b.old_not_before')})"
    )
    by_crash = "h.new_error_class = 'LeaseExpired'"
    allowed = (
        f"(NOT {by_crash} AND (h.new_attempts >= {rules.max_attempts} OR {asked}))"
        f" OR ({by_crash} AND h.new_attempts >= {rules.max_attempts} AND {crashed('h.old_not_before')}"
        f" AND ({ran} OR {begun}))"
    )
    return entries(
        f"h.op = 'U' AND h.new_status = 'failed' AND {changed('status')} AND NOT ({allowed})"
    )


def nothing_is_lost(rules: Rules) -> str:
    """After the drain every wanted row has come to its end."""
    return "SELECT w.* FROM chaos_work w WHERE w.wanted AND w.status NOT IN ('complete', 'failed') LIMIT 100"


CHECKS: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        one_claim_at_a_time,
        history_is_whole,
        states_follow_each_other,
        claims_are_wanted_and_due,
        claims_keep_their_limit,
        runs_belong_to_claims,
        only_the_token_writes,
        complete_is_final,
        effects_are_exactly_once,
        extra_runs_are_explained,
        the_database_clock_decides,
        the_dead_lose_their_rows_in_time,
        orphans_claim_nothing,
        silence_charges_nobody,
        nothing_is_claimed_while_paused,
        rows_fail_only_when_allowed,
        nothing_is_lost,
    )
}

Offences = dict[str, list[dict[str, Any]]]


def offences(rules: Rules) -> Offences:
    """Return what each check objects to, without those that have nothing to object to."""
    ledger.gather()
    count_rows()
    found = {name: list(_ask(check(rules))) for name, check in _checks(rules).items()}
    return {name: rows for name, rows in found.items() if rows}


def count_rows() -> None:
    """Have the database learn how large the tables have become; planned for empty ones, the checks take for ever."""
    tables = "chaos_work, chaos_history, chaos_effect, chaos_orphan, chaos_act"
    statement = {"mysql": f"ANALYZE TABLE {tables}", "postgresql": f"ANALYZE {tables}"}
    with connection.cursor() as cursor:
        cursor.execute(statement.get(connection.vendor, "ANALYZE"))
        if connection.vendor == "mysql":
            cursor.fetchall()


def _checks(rules: Rules) -> Mapping[str, Check]:
    if rules.atomic:
        return CHECKS
    return {name: check for name, check in CHECKS.items() if check != effects_are_exactly_once}


def _ask(query: str) -> Iterator[dict[str, Any]]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(query, ())
        names = [column[0] for column in cursor.description]
        yield from (dict(zip(names, row, strict=True)) for row in cursor.fetchall())
