"""What a run tells at its end."""

import platform
import statistics
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import django

import django_taskclaim
from tests.chaos.faults import KINDS
from tests.chaos.history import VENDOR, ask
from tests.chaos.oracle import CLAIM, HELD, first_end
from tests.chaos.run import Outcome
from tests.conftest import server_version

PAIR = {"postgresql": "(e.run, e.work_id)", "sqlite": "e.run || e.work_id"}.get(
    VENDOR, "e.run, e.work_id"
)
COUNTS = {
    "rows": "chaos_work w WHERE w.wanted",
    "claims": f"chaos_history h WHERE {CLAIM}",
    "completions": f"chaos_history h WHERE {HELD} AND h.new_status = 'complete'",
    "failed": "chaos_work w WHERE w.status = 'failed'",
    "lost": "chaos_work w WHERE w.wanted AND w.status NOT IN ('complete', 'failed')",
    "changes": "chaos_history h",
}


def told(outcome: Outcome) -> str:
    """Return the summary for people."""
    run, plan, found = outcome.run, outcome.run.plan, outcome.offences
    n = {name: count(f"COUNT(*) AS n FROM {rows}") for name, rows in COUNTS.items()}
    runs = count(f"COUNT(DISTINCT {PAIR}) AS n FROM chaos_effect e WHERE e.phase = 'started'")
    unexplained = len(found.get("extra_runs_are_explained", ()))
    doubled = len(found.get("effects_are_exactly_once", ()))
    lines = [
        f"{server_version()}, Django {django.get_version()}, Python {platform.python_version()},"
        f" django-taskclaim {django_taskclaim.__version__}",
        f"mode {plan.mode}, seed {plan.seed}, {outcome.seconds:.1f} s, lease {plan.lease} s,"
        f" reaper every {plan.reaper} s",
        f"{n['rows']:,} rows, {n['claims']:,} claims, {n['completions']:,} completions,"
        f" {n['failed']:,} failed as they should, {n['changes']:,} changes looked at",
        f"{run.faults.total()} faults: {listed(dict(sorted(run.faults.items())))}",
        f"clocks (a wrong one by a day): {listed(run.crew.clocks)};"
        f" exit codes: {listed(dict(sorted(run.crew.exits.items())))}",
        f"extra runs: {runs - n['rows']:,}, unexplained: {unexplained}",
        f"lost rows: {n['lost']}",
        f"doubled effects: {doubled if plan.mode.startswith('atomic') else 'not promised in this mode'}",
        recovery(run.bounds.kill),
    ]
    if missing := {one.needs: name for name, one in KINDS.items() if one.needs in run.lacks}:
        lines.append(f"left out: {listed(missing)}")
    for name, rows in found.items():
        lines.append(f"OFFENCE {name}: {len(rows)} rows, the first {rows[0]}")
    return "\n".join([*lines, *(f"COMPLAINT {one}" for one in run.complaints)])


def count(query: str) -> int:
    return int(ask(f"SELECT {query}")[0]["n"])


def recovery(bound: float) -> str:
    """Say how long the rows of killed processes took to be claimable again.

    Those are left out that were given more time than *bound*, because the server was away meanwhile.
    """
    rows = ask(
        f"SELECT o.left_at, {first_end('o')} AS back FROM chaos_orphan o"
        " WHERE o.kind = 'kill' AND o.bound <= %s",
        [bound],
    )
    took = sorted(
        max(0.0, (moment(row["back"]) - moment(row["left_at"])).total_seconds())
        for row in rows
        if row["back"]
    )
    if not took:
        return "recovery: no row of a killed process had just the usual time, without stalls"
    return (
        f"recovery of {len(took)} rows after a kill: p50 {statistics.median(took):.2f} s,"
        f" max {took[-1]:.2f} s (bound {bound} s)"
    )


def moment(value: Any) -> datetime:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def listed(counts: Mapping[Any, Any]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counts.items()) or "none"
