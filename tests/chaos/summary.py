"""What a run tells at its end, to people and as JSON."""

import json
import platform
import statistics
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import django
from django.db import connection

import django_taskclaim
from tests.chaos.faults import KINDS
from tests.chaos.oracle import CLAIM, HELD, same_token
from tests.chaos.run import Outcome
from tests.conftest import server_version

Facts = dict[str, Any]

COUNTS: Mapping[str, str] = {
    "rows": "SELECT COUNT(*) FROM chaos_work w WHERE w.wanted",
    "claims": f"SELECT COUNT(*) FROM chaos_history h WHERE {CLAIM}",
    "completions": f"SELECT COUNT(*) FROM chaos_history h WHERE {HELD} AND h.new_status = 'complete'",
    "rows_failed": "SELECT COUNT(*) FROM chaos_work w WHERE w.status = 'failed'",
    "rows_lost": "SELECT COUNT(*) FROM chaos_work w WHERE w.wanted AND w.status NOT IN ('complete', 'failed')",
    "runs": "SELECT COUNT(DISTINCT e.run, e.work_id) FROM chaos_effect e WHERE e.phase = 'started'",
    "changes": "SELECT COUNT(*) FROM chaos_history h",
}


def facts(outcome: Outcome) -> Facts:
    """Return everything that there is to say."""
    run, plan = outcome.run, outcome.run.plan
    counted = {name: _count(query) for name, query in COUNTS.items()}
    return {
        **counted,
        "mode": plan.mode,
        "seed": plan.seed,
        "seconds": round(outcome.seconds, 1),
        "lease": plan.lease,
        "reaper": plan.reaper,
        "faults": dict(sorted(run.faults.items())),
        "faults_total": run.faults.total(),
        "left_out": {k.needs: n for n, k in KINDS.items() if k.needs in run.lacks},
        "clocks": dict(run.crew.clocks),
        "exit_codes": {str(code): n for code, n in sorted(run.crew.exits.items())},
        "extra_runs": counted["runs"] - counted["rows"],
        "unexplained_extra_runs": len(outcome.offences.get("extra_runs_are_explained", ())),
        "doubled_effects": (
            len(outcome.offences.get("effects_are_exactly_once", ()))
            if outcome.rules.atomic
            else None
        ),
        "recovery": recovery(run.bounds.kill),
        "recovery_bound": run.bounds.kill,
        "offences": outcome.offences,
        "complaints": run.complaints,
        "versions": {
            "database": server_version(),
            "django": django.get_version(),
            "django_taskclaim": django_taskclaim.__version__,
            "python": platform.python_version(),
        },
    }


def _count(query: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(query.replace(*_distinct_pair()))
        return int(cursor.fetchone()[0])


def _distinct_pair() -> tuple[str, str]:
    pair = "COUNT(DISTINCT e.run, e.work_id)"
    return pair, {
        "postgresql": "COUNT(DISTINCT (e.run, e.work_id))",
        "sqlite": "COUNT(DISTINCT e.run || e.work_id)",
    }.get(connection.vendor, pair)


def recovery(bound: float) -> dict[str, float]:
    """Return how long the rows of killed processes took to be claimable again, in seconds.

    Those are left out that were given more time than *bound*, because the server was away meanwhile.
    """
    freed = (
        f"(SELECT MIN(h.at) FROM chaos_history h WHERE {same_token('h', 'o')} AND {HELD}"
        " AND h.new_status <> 'processing')"
    )
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT o.left_at, {freed} FROM chaos_orphan o WHERE o.kind = 'kill' AND o.bound <= %s",
            [bound],
        )
        pairs = [(_moment(left), _moment(back)) for left, back in cursor.fetchall() if back]
    took = sorted(max(0.0, (back - left).total_seconds()) for left, back in pairs)
    if not took:
        return {}
    cuts = statistics.quantiles(took, n=100) if len(took) > 1 else took * 99
    return {"rows": len(took), "p50": cuts[49], "p99": min(cuts[98], took[-1]), "max": took[-1]}


def _moment(value: Any) -> datetime:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def as_text(told: Facts) -> str:
    """Return the summary for people."""
    again = told["recovery"]
    lines = [
        f"{told['versions']['database']}, Django {told['versions']['django']}, Python {told['versions']['python']},"
        f" django-taskclaim {told['versions']['django_taskclaim']}",
        f"mode {told['mode']}, seed {told['seed']}, {told['seconds']} s, lease {told['lease']} s,"
        f" reaper every {told['reaper']} s",
        f"{told['rows']:,} rows, {told['claims']:,} claims, {told['completions']:,} completions,"
        f" {told['rows_failed']:,} failed as they should, {told['changes']:,} changes looked at",
        f"{told['faults_total']} faults: {_listed(told['faults'])}",
        f"clocks (python and library are a day wrong): {_listed(told['clocks'])};"
        f" exit codes: {_listed(told['exit_codes'])}",
        f"extra runs: {told['extra_runs']:,}, unexplained: {told['unexplained_extra_runs']}",
        f"lost rows: {told['rows_lost']}",
        f"doubled effects: {_or_not(told['doubled_effects'])}",
        (
            f"recovery of {again['rows']} rows after a kill: p50 {again['p50']:.2f} s, p99 {again['p99']:.2f} s,"
            f" max {again['max']:.2f} s (bound {told['recovery_bound']} s)"
            if again
            else "recovery: no row was held by a process that was killed"
        ),
    ]
    if told["left_out"]:
        lines.append(f"left out: {_listed(told['left_out'])}")
    for name, rows in told["offences"].items():
        lines.append(f"OFFENCE {name}: {len(rows)} rows, the first {rows[0]}")
    lines += [f"COMPLAINT {one}" for one in told["complaints"]]
    return "\n".join(lines)


def _listed(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counts.items()) or "none"


def _or_not(number: int | None) -> str:
    return "not promised in this mode" if number is None else str(number)


def as_json(told: Facts) -> str:
    return json.dumps(told, default=str, indent=2)
