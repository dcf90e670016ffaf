"""How many rows are in each state, at a price that does not grow with the table."""

from random import Random
from typing import Any

from django.db import connections, models

from django_taskclaim.monitoring.server import server_for
from django_taskclaim.monitoring.server.base import Estimate
from django_taskclaim.querysets import ClaimQuerySet, Progress
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.states import UNKNOWN, Status

#: Up to about so many rows all are counted.
SMALL = 50_000

#: Of a larger table so many rows of each state are counted, complete ones aside: a walk along the claim index.
MOST = 10_000

#: So many rows give the proportions: to a thousandth where states lie together, to three hundredths at worst.
PROBES = 1_000

#: The states that the claim index finds on every database.
_UNFINISHED = (Status.OPEN, Status.PROCESSING, Status.FAILED, Status.PAUSED)


def count_rows(model: type[models.Model], alias: str, *, exact: bool = False) -> Progress:
    """Count the rows of a small table; unless *exact*, of a large one count what is little and estimate the rest.

    Where nothing can be estimated all are counted: of a model whose claim columns are in a parent's table, and, on a
    database without statistics, where keys are no whole numbers or mostly gaps.
    """
    target = ClaimTarget.of(model, alias)
    if not exact and target.columns.owned_by(model):
        estimate = _probed(target) or server_for(connections[alias]).estimate(target.table)
        if estimate.rows > SMALL:
            return _filled_up(target, estimate)
    return ClaimQuerySet[Any](model, using=alias).progress()


def _probed(target: ClaimTarget) -> Estimate | None:
    """Read rows all over the table; None where keys are no whole numbers, or mostly gaps.

    Statistics are as old as the last ANALYZE, or only know halves; rows spread evenly over the keys tell what is so
    now, and how many of the keys have a row how many rows there are. The same keys are asked for each time, so that
    progress does not jitter.
    """
    key, *more = target.columns.key
    if more or not isinstance(key, (models.IntegerField, models.AutoField)):
        return None
    # Not MIN and MAX: SQLite would read the whole table for both of them.
    highest = models.Subquery(target.rows.order_by("-pk").values("pk")[:1])
    first, last = target.rows.order_by("pk").values_list("pk", highest).first() or (0, 0)
    if last - first < SMALL:
        return Estimate(0, {})
    # One key in each stretch of the same length, at random: a pattern of the keys does no harm.
    chance, each = Random(PROBES), (last - first + 1) / PROBES
    keys = [first + int((stretch + chance.random()) * each) for stretch in range(PROBES)]
    found = ClaimQuerySet[Any](target.model, using=target.alias).filter(pk__in=keys).progress()
    known = {state: getattr(found, state) * each for state in (*Status.values, UNKNOWN)}
    return Estimate(found.total * each, known) if found.total >= PROBES // 5 else None


def _filled_up(target: ClaimTarget, estimate: Estimate) -> Progress:
    """Count small states, and share out the rest of the rows among the large ones, in the proportion that is known."""
    rows, name = target.rows.order_by(), target.columns.status.name
    counted = {one.value: rows.filter(**{name: one})[: MOST + 1].count() for one in _UNFINISHED}
    exact = {state: number for state, number in counted.items() if number <= MOST}
    large = [*(state for state in counted if state not in exact), Status.COMPLETE.value]
    large += [UNKNOWN] if estimate.by_state.get(UNKNOWN) else []
    rest = max(estimate.rows - sum(exact.values()), MOST * (len(large) - 1))
    weights = {state: estimate.by_state.get(state, 0.0) for state in large}
    if not any(weights.values()):
        weights[large[0]] = 1.0
    whole = sum(weights.values())
    shares = {state: round(rest * weight / whole) for state, weight in weights.items()}
    at_least = {state: max(number, counted.get(state, 0)) for state, number in shares.items()}
    return Progress(**exact, **at_least, estimated=frozenset(large))
