"""Limits of a whole fleet: what a model's claims keep to together, ``rate``, ``max_running`` and ``hours``.

The policy names them, and what is stored for the model in ``FleetLimit`` goes before it. They are looked at with each
claim of such a model, by the database's clock; those that count wait in line, so what one has counted no other changes
before it commits. Claims of other models send nothing more than before: that a limit was stored for one of them stops
its claims like a pause, until they have learned to look.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.apps import apps
from django.db import models

from django_taskclaim.allowances import Hours, Rate, parsed_hours, parsed_rate
from django_taskclaim.dialects import DatabaseNow
from django_taskclaim.fields import as_utc
from django_taskclaim.policy import policies_by_class
from django_taskclaim.querysets.scope import ClaimTarget
from django_taskclaim.states import Status
from django_taskclaim.switch_reading import limits_scope, own_scopes, scope_of, scopes_over
from django_taskclaim.switch_reading import throttle_scope as throttle_scope_of
from django_taskclaim.tokens import clock

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


#: What is known of the database's table, by alias and scope: which models have a row that limits them, …
stored: set[tuple[str, str]] = set()
#: … and, by ``clock()``, when that was asked last.
asked: dict[tuple[str, str], float] = {}


def know_stored(alias: str, scope: str, *, there: bool) -> None:
    """Remember whether something is stored for the model that is called *scope*."""
    (stored.add if there else stored.discard)((alias, scope))


def is_stored(model: type[models.Model], alias: str) -> bool:
    """Say whether limits are known to be stored for *model*."""
    return any((alias, scope) in stored for scope in own_scopes(model))


def is_limited(model: type[models.Model], alias: str) -> bool:
    """Say whether claims of *model* have to look what holds for them."""
    return is_stored(model, alias) or bool(named_terms(model))


def claim_scopes(model: type[models.Model], *, knows_limits: bool) -> list[str]:
    """Return the scopes of the switch that stop a claim through *model*, which may look at no limits."""
    own = own_scopes(model)
    unknown = [] if knows_limits else [limits_scope(scope) for scope in own]
    return [*scopes_over(model), *(throttle_scope_of(scope) for scope in own), *unknown]


def learns_of_limits(target: ClaimTarget) -> bool:
    """Ask, every few seconds at most, whether limits were stored for a model that had none; True if so."""
    own, now = own_scopes(target.model), clock()
    place = target.alias, own[-1]
    if is_limited(target.model, target.alias) or now - asked.get(place, -ASK_EVERY) < ASK_EVERY:
        return False
    asked[place] = now
    found = [row.scope for row in _rows(target.alias, own) if _is_set(row)]
    for scope in found:
        know_stored(target.alias, scope, there=True)
    return bool(found)


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
    def counted(self) -> list[str]:
        """The names of what is counted, for which claims have to wait for each other."""
        options = ("rate", "max_running")
        return [name for name in options if any(getattr(terms, name) for terms in self.terms)]

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


def standing(target: ClaimTarget) -> Standing:
    """Ask what holds for claims of the target's model, without a lock."""
    held, rows = _held(target)
    now = as_utc(next(iter(rows.values())).now) if rows else target.dialect.current_time()
    levels = {
        one.scope: _level(one.rate, rows.get(one.scope), now)
        for one in held
        if one.rate is not None
    }
    ahead = [scope for scope in levels if scope in rows and _is_ahead(rows[scope], now)]
    return Standing(now, held, levels, ahead)


def terms_of(target: ClaimTarget) -> list[Terms]:
    """Ask what is set for the target's model, and return the limits that its claims keep to."""
    return _held(target)[0]


def _held(target: ClaimTarget) -> tuple[list[Terms], dict[str, Any]]:
    """Return the limits that hold, and what is stored, by scope."""
    named, own = named_terms(target.model), own_scopes(target.model)
    rows = {row.scope: row for row in _rows(target.alias, own)}
    for scope in own:
        know_stored(target.alias, scope, there=scope in rows and _is_set(rows[scope]))
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


class Grant:
    """How many rows one claim of a limited model may take, and what it has taken."""

    def __init__(self, target: ClaimTarget, answer: Answer) -> None:
        self._target, self._answer = target, answer
        self._standing = standing(target)

    @property
    def is_ahead(self) -> bool:
        """Whether a clock before this one has filled a rate, which only a claim under the lock can mend."""
        return bool(self._standing.ahead)

    @property
    def counted(self) -> list[str]:
        """The names of what is counted, for which claims have to wait for each other."""
        return self._standing.counted

    def room(self, wanted: int) -> int:
        """Return how many of the *wanted* rows hours and rates let be claimed."""
        answer = self._answer
        answer.refusal = self._standing.closed()
        if answer.refusal is not None:
            return 0
        allowed, refusal = self._standing.allowed()
        if allowed is None or allowed >= wanted:
            return wanted
        answer.refusal = refusal
        return allowed

    def room_under_lock(self, wanted: int) -> int:
        """Return how many of the *wanted* rows may be claimed, by what no other claim changes any more."""
        target = self._target
        seen = self._standing = standing(target)
        if seen.ahead:
            # Filled from now on: not before this clock shows again what the one before it has shown.
            _rows(target.alias, seen.ahead).update(filled_at=seen.now)
        return self._places(self.room(wanted))

    def _places(self, wanted: int) -> int:
        """Return how many of the *wanted* rows may be processing beside those that are."""
        target, terms = self._target, self._standing.most_running()
        if terms is None or not wanted:
            return wanted
        most = terms.max_running or 0
        running = target.rows.order_by().filter(**{target.columns.status.name: Status.PROCESSING})
        held = len(target.dialect.first(running, target.table, most, target.columns.key))
        if most - held < wanted:
            self._answer.refusal = Refusal("max_running", None, None, terms)
        return max(0, min(wanted, most - held))

    def charge(self, taken: int, room: int) -> None:
        """Take so many rows off what each rate allows."""
        if room and taken < room:
            # It was not for a limit that the claim took no more.
            self._answer.refusal = None
        seen, target = self._standing, self._target
        if not taken or not seen.levels:
            return
        model = apps.get_model("taskclaim", "FleetLimit")
        # The rows have been claimed since it was asked what holds, later where the machine stood still. What came
        # meanwhile counts, but not beside all that may come together: a minute from the claim on would exceed the rate.
        now = target.dialect.current_time()
        since = max(0.0, (now - seen.now).total_seconds())
        rates = {terms.scope: terms.rate for terms in seen.terms if terms.rate is not None}
        for scope, level in seen.levels.items():
            came = min(rates[scope].most, level + since * rates[scope].per_second)
            facts = {"level": came - taken, "filled_at": now}
            rows = model._default_manager.using(target.alias)
            if not rows.filter(scope=scope).update(**facts):
                rows.bulk_create([model(scope=scope, **facts)], ignore_conflicts=True)

    def refusal(self) -> Refusal | None:
        """Return what keeps anybody from claiming a single row now; None where nothing of this kind does."""
        return None if self._places(self.room(1)) else self._answer.refusal


# Saying so


def refused_now(target: ClaimTarget) -> Refusal | None:
    """Return what keeps anybody from claiming a single row now; None where nothing of this kind does."""
    if not is_limited(target.model, target.alias) and not learns_of_limits(target):
        return None
    return Grant(target, Answer()).refusal()
