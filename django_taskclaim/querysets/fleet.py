"""Limits of a whole fleet: what a model's claims keep to together, ``rate``, ``max_running`` and ``hours``.

The policy names them, and what is stored for the model in ``FleetLimit`` goes before it. They are looked at with each
claim of such a model, by the database's clock; those that count wait in line, so what one has counted no other changes
before it commits. Claims of other models send nothing more than before: that a limit was stored for one of them stops
its claims like a pause, until they have learned to look.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.apps import apps
from django.db import models

from django_taskclaim.allowances import Hours, Rate, parsed_hours, parsed_rate
from django_taskclaim.dialects import ClaimOrder, DatabaseNow
from django_taskclaim.fields import as_utc
from django_taskclaim.policy import policies_by_class
from django_taskclaim.querysets.limits import line_up
from django_taskclaim.querysets.scope import Desk
from django_taskclaim.states import Status
from django_taskclaim.switch_reading import limits_scope, own_scopes, scope_of, scopes_over
from django_taskclaim.switch_reading import throttle_scope as throttle_scope_of
from django_taskclaim.tokens import clock

Row = list[Any]
Take = Callable[[ClaimOrder], list[Row]]

#: What a claim of a new model may take at once under a rate.
FIRST_ROWS = 1.0

#: A worker asks again once this part of what may come together has come, or one row.
WORTH_WHILE = 0.25

#: What was written so far ahead of the database's clock was written by another clock, of a server before this one.
AHEAD = timedelta(seconds=5)

#: Whether limits were stored meanwhile, somebody who gets no rows asks once in so many seconds.
ASK_EVERY = 5.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for the claims of the model that is called *scope*; None is no limit."""

    scope: str
    rate: Rate | None = None
    max_running: int | None = None
    hours: Hours | None = None
    #: Who has stored one of them last, empty where all are the handler's.
    set_by: str = ""
    is_stored: bool = False

    def __bool__(self) -> bool:
        return bool(self.rate or self.max_running or self.hours)


class Refusal(NamedTuple):
    """Why a claim may take nothing, or no more, now."""

    #: ``hours``, ``rate`` or ``max_running``.
    option: str
    #: When that will be over; None where nobody can tell.
    until: datetime | None
    #: The same, in seconds from now.
    wait: float | None
    terms: Terms


@dataclass(slots=True)
class Answer:
    """What a claim tells those who ask again: why it took no more than it did."""

    refusal: Refusal | None = None


# What is known of a model without asking


def named_terms(model: type[models.Model]) -> dict[str, Terms]:
    """Return what policies say, by scope; of a model and its proxies the nearest counts."""
    found: dict[str, Terms] = {}
    for cls, policy in policies_by_class(model):
        scope = scope_of(cls)
        known = found.get(scope, Terms(scope))
        found[scope] = Terms(
            scope,
            known.rate or policy.own_rate,  # type: ignore[arg-type]  # parsed by the policy
            known.max_running or policy.own_max_running,
            known.hours or policy.own_hours,  # type: ignore[arg-type]  # likewise
        )
    return {scope: terms for scope, terms in found.items() if terms}


_stored: set[tuple[str, str]] = set()
_asked: dict[tuple[str, str], float] = {}


def know_stored(alias: str, scope: str, *, there: bool) -> None:
    """Remember whether something is stored for the model that is called *scope*."""
    (_stored.add if there else _stored.discard)((alias, scope))


def is_stored(model: type[models.Model], alias: str) -> bool:
    """Say whether limits are known to be stored for *model*."""
    return bool(_stored) and any((alias, scope) in _stored for scope in own_scopes(model))


def is_limited(model: type[models.Model], alias: str) -> bool:
    """Say whether claims of *model* have to look what holds for them."""
    return is_stored(model, alias) or bool(named_terms(model))


def claim_scopes(model: type[models.Model], alias: str) -> list[str]:
    """Return the scopes of the switch that stop a claim through *model*."""
    own = own_scopes(model)
    unknown = [] if is_limited(model, alias) else [limits_scope(scope) for scope in own]
    return [*scopes_over(model), *(throttle_scope_of(scope) for scope in own), *unknown]


def learns_of_limits(desk: Desk) -> bool:
    """Ask, every few seconds at most, whether limits were stored for a model that had none; True if so."""
    own, now = own_scopes(desk.model), clock()
    place = desk.alias, own[-1]
    if is_limited(desk.model, desk.alias) or now - _asked.get(place, -ASK_EVERY) < ASK_EVERY:
        return False
    _asked[place] = now
    stored = [row.scope for row in _rows(desk.alias, own) if _is_set(row)]
    for scope in stored:
        know_stored(desk.alias, scope, there=True)
    return bool(stored)


# What holds now


class Standing:
    """What holds for claims of one model at one moment of the database's clock."""

    def __init__(
        self,
        now: datetime,
        terms: list[Terms],
        levels: dict[str, float],
        ahead: Iterable[str] = (),
    ) -> None:
        self.now = now
        self.terms = terms
        #: Scopes of rates that were filled at a moment which this clock has not come to.
        self.ahead = list(ahead)
        #: How many rows each rate lets be claimed, by scope.
        self.levels = levels

    @property
    def counts(self) -> bool:
        """Whether claims have to wait for each other."""
        return any(terms.rate or terms.max_running for terms in self.terms)

    @property
    def options(self) -> str:
        """The names of what is counted."""
        named = {
            "rate": any(terms.rate for terms in self.terms),
            "max_running": any(terms.max_running for terms in self.terms),
        }
        return " and ".join(name for name, counted in named.items() if counted)

    def closed(self) -> Refusal | None:
        """Return which hours keep rows from being claimed now: those that open last."""
        found = [
            Refusal("hours", opens, (opens - self.now).total_seconds(), terms)
            for terms in self.terms
            if terms.hours is not None and (opens := terms.hours.opens_at(self.now)) is not None
        ]
        return max(found, key=lambda one: one.until or self.now, default=None)

    def allowed(self) -> tuple[int | None, Refusal | None]:
        """Return how many rows the rates let be claimed now, and which of them lets no more; None for no limit."""
        rates = [(terms, terms.rate) for terms in self.terms if terms.rate is not None]
        if not rates:
            return None, None
        terms, rate = min(rates, key=lambda one: self.levels[one[0].scope])
        level = self.levels[terms.scope]
        room = max(0, int(level))
        enough = max(1.0, rate.most * WORTH_WHILE)
        wait = max(0.0, (enough - (level - room)) / rate.per_second)
        if not room:
            wait = max(0.0, (min(enough, rate.most) - level) / rate.per_second)
        return room, Refusal("rate", self.now + timedelta(seconds=wait), wait, terms)

    def most_running(self) -> Terms | None:
        """Return what lets the fewest rows be processing at once."""
        limited = [terms for terms in self.terms if terms.max_running]
        return min(limited, key=lambda terms: terms.max_running or 0, default=None)


def standing(desk: Desk) -> Standing:
    """Ask what holds for claims of the desk's model, without a lock."""
    held, rows = _held(desk)
    now = as_utc(next(iter(rows.values())).now) if rows else desk.dialect.current_time()
    levels = {
        one.scope: _level(one.rate, rows.get(one.scope), now)
        for one in held
        if one.rate is not None
    }
    ahead = [scope for scope in levels if scope in rows and _is_ahead(rows[scope], now)]
    return Standing(now, held, levels, ahead)


def terms_of(desk: Desk) -> list[Terms]:
    """Ask what is set for the desk's model, and return the limits that its claims keep to."""
    return _held(desk)[0]


def _held(desk: Desk) -> tuple[list[Terms], dict[str, Any]]:
    """Return the limits that hold, and what is stored, by scope."""
    named, own = named_terms(desk.model), own_scopes(desk.model)
    rows = {row.scope: row for row in _rows(desk.alias, own)}
    for scope in own:
        know_stored(desk.alias, scope, there=scope in rows and _is_set(rows[scope]))
    terms = [_effective(named.get(scope, Terms(scope)), rows.get(scope)) for scope in own]
    return [one for one in terms if one], rows


def _rows(alias: str, scopes: Iterable[str]) -> Any:
    rows = apps.get_model("taskclaim", "FleetLimit")._default_manager.using(alias)
    return rows.filter(scope__in=list(scopes)).annotate(now=DatabaseNow())


def _is_set(row: Any) -> bool:
    return any(one is not None for one in (row.rate, row.max_running, row.hours))


def _effective(named: Terms, row: Any) -> Terms:
    if row is None or not _is_set(row):
        return named
    return Terms(
        named.scope,
        named.rate if row.rate is None else _read(parsed_rate, row.rate),
        named.max_running if row.max_running is None else row.max_running or None,
        named.hours if row.hours is None else _read(parsed_hours, row.hours),
        row.set_by,
        is_stored=True,
    )


def _read(parse: Callable[[str], Any], text: str) -> Any:
    return parse(text) if text else None


def _level(rate: Rate, row: Any, now: datetime) -> float:
    if row is None or row.filled_at is None:
        return FIRST_ROWS
    # Who waited in line may have asked the time before the one in front has written it.
    since = max(0.0, (now - as_utc(row.filled_at)).total_seconds())
    return float(min(rate.most, row.level + since * rate.per_second))


def _is_ahead(row: Any, now: datetime) -> bool:
    return row.filled_at is not None and as_utc(row.filled_at) > now + AHEAD


def settled(model: type[models.Model], row: Any) -> dict[str, Any]:
    """Return what the rate that holds by *row* has left at the row's ``now``, for another to begin with."""
    rate = _effective(named_terms(model).get(row.scope, Terms(row.scope)), row).rate
    if rate is None or row.filled_at is None:
        return {"filled_at": None}
    now = as_utc(row.now)
    return {"level": _level(rate, row, now), "filled_at": now}


# Claiming


def take_as_limited(
    order: ClaimOrder, desk: Desk, take: Take, answer: Answer | None = None
) -> list[Row]:
    """Let *take* claim as many of the rows asked for as the limits of the fleet let it, which may be none."""
    told = answer or Answer()
    told.refusal = None
    return take(order) if keeps_to_marks(order, desk) else _take(order, desk, take, told)


def keeps_to_marks(order: ClaimOrder, desk: Desk) -> bool:
    """Say whether the statement itself takes nothing where limits are stored, so that nobody has to look at them.

    As it was spelt: what is known of the model may be another thing by now.
    """
    return limits_scope(scope_of(desk.model)) in order.scopes


def _take(order: ClaimOrder, desk: Desk, take: Take, told: Answer) -> list[Row]:
    seen = standing(desk)
    if not _room(seen, order.limit, told) and not seen.ahead:
        return []
    if seen.counts:
        if not line_up(order, desk, seen.options):
            told.refusal = None
            return []
        seen = standing(desk)
        _set_back(seen, desk)
    room = _places(seen, desk, _room(seen, order.limit, told), told)
    if not room:
        return []
    rows = take(replace(order, limit=room))
    if len(rows) < room:
        # It was not for a limit that it took no more.
        told.refusal = None
    _write_down(seen, desk, len(rows))
    return rows


def _room(seen: Standing, wanted: int, told: Answer) -> int:
    """Return how many of the *wanted* rows hours and rates let be claimed."""
    told.refusal = seen.closed()
    if told.refusal is not None:
        return 0
    allowed, refusal = seen.allowed()
    if allowed is None or allowed >= wanted:
        return wanted
    told.refusal = refusal
    return allowed


def _places(seen: Standing, desk: Desk, wanted: int, told: Answer) -> int:
    """Return how many of the *wanted* rows may be processing beside those that are."""
    terms = seen.most_running()
    if terms is None or not wanted:
        return wanted
    most = terms.max_running or 0
    running = desk.rows.order_by().filter(**{desk.columns.status.name: Status.PROCESSING})
    held = len(desk.dialect.first(running, desk.table, most, desk.columns.key))
    if most - held < wanted:
        told.refusal = Refusal("max_running", None, None, terms)
    return max(0, min(wanted, most - held))


def _set_back(seen: Standing, desk: Desk) -> None:
    """Let rates be filled from now on that would not be before a clock shows again what one before it has shown."""
    if seen.ahead:
        rows = apps.get_model("taskclaim", "FleetLimit")._default_manager.using(desk.alias)
        rows.filter(scope__in=seen.ahead).update(filled_at=seen.now)


def _write_down(seen: Standing, desk: Desk, taken: int) -> None:
    """Take so many rows off what each rate allows."""
    if not taken or not seen.levels:
        return
    model = apps.get_model("taskclaim", "FleetLimit")
    # The rows have been claimed since it was asked what holds, later where the machine stood still. What came meanwhile
    # counts, but not beside all that may come together: a minute from the claim on would exceed the rate by it.
    now = desk.dialect.current_time()
    since = max(0.0, (now - seen.now).total_seconds())
    rates = {terms.scope: terms.rate for terms in seen.terms if terms.rate is not None}
    for scope, level in seen.levels.items():
        came = min(rates[scope].most, level + since * rates[scope].per_second)
        facts = {"level": came - taken, "filled_at": now}
        rows = model._default_manager.using(desk.alias)
        if not rows.filter(scope=scope).update(**facts):
            rows.bulk_create([model(scope=scope, **facts)], ignore_conflicts=True)


# Saying so


def refused_now(desk: Desk) -> Refusal | None:
    """Return what keeps anybody from claiming a single row now; None where nothing of this kind does."""
    if not is_limited(desk.model, desk.alias) and not learns_of_limits(desk):
        return None
    seen = standing(desk)
    if (closed := seen.closed()) is not None:
        return closed
    allowed, refusal = seen.allowed()
    if allowed == 0:
        return refusal
    told = Answer()
    return None if _places(seen, desk, 1, told) else told.refusal
