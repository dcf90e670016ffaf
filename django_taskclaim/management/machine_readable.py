"""The JSON of ``claimstatus --format json``: moments are ISO 8601 in UTC, durations are seconds."""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from django_taskclaim.control.orders import SETTINGS, open_orders
from django_taskclaim.control.reading import live_settings
from django_taskclaim.fields import as_utc
from django_taskclaim.management.figures import Look, figures_of
from django_taskclaim.monitoring.overview import Overview, Worker

#: Goes up when a key is taken away or changes its meaning; new keys come without.
VERSION = 1


def as_json(look: Look, failing: Sequence[str]) -> str:
    """Return everything that was seen, with the reasons to fail."""
    facts = {
        "version": VERSION,
        "at": timezone.now(),
        "models": [_model(seen, look.workers[seen.alias]) for seen in look.seen],
        "workers": [
            _worker(worker, alias) for alias, known in look.workers.items() for worker in known
        ],
        "failing": list(failing),
        "unreadable": [
            {"model": model._meta.label, "database": alias, "error": said}
            for model, alias, said in look.refused
        ],
    }
    return json.dumps(facts, default=_plain, indent=2)


def _model(seen: Overview, known: Sequence[Worker]) -> dict[str, Any]:
    return {
        "model": seen.model._meta.label,
        "database": seen.alias,
        "at": seen.now,
        "figures": figures_of(seen, known),
        "pause": _pause(seen),
        "throttles": [
            {
                "process": one.process,
                "source": one.source,
                "reason": one.reason,
                "since": as_utc(one.since_at),
                "until": as_utc(one.until),
            }
            for one in seen.throttles
        ],
        "settings": _settings(seen),
        "holders": [
            {"name": one.name, "rows": one.rows, "next_expiry": one.next_expiry}
            for one in seen.holders
        ],
    }


def _pause(seen: Overview) -> dict[str, Any] | None:
    pause = seen.pause
    if pause is None:
        return None
    return {
        "scope": pause.scope,
        "by": pause.by,
        "reason": pause.reason,
        "since": None if pause.paused_at is None else as_utc(pause.paused_at),
        "until": None if pause.until is None else as_utc(pause.until),
    }


def _settings(seen: Overview) -> dict[str, Any] | None:
    """Return the live settings; one that is null is left to handlers and command lines."""
    stored = live_settings(seen.model, using=seen.alias)
    if stored is None:
        return None
    given = {name: getattr(stored, name) for name in SETTINGS}
    return {**given, "changed_by": stored.changed_by, "changed_at": as_utc(stored.changed_at)}


def _worker(worker: Worker, alias: str) -> dict[str, Any]:
    return {
        "name": worker.name,
        "database": alias,
        "models": list(worker.labels),
        "state": worker.state,
        "alive": worker.alive,
        "held": worker.held,
        "done": worker.done,
        "failed": worker.failed,
        "started": worker.started_at,
        "seen": worker.seen_at,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "last_error": worker.last_error,
        "orders": [
            {"order": one.order, "by": one.by, "reason": one.reason, "at": as_utc(one.at)}
            for one in open_orders(worker.name, using=alias)
        ],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)
