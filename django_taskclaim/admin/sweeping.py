"""An act over any number of rows: in chunks of keys, a few seconds a request, every row accounted for.

The rows are those of the user's own queryset, whatever it joins or annotates: their keys are read in key order, and
the verb is given the keys alone. A request that runs out of time hands on where it stands, signed for itself alone.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from django.core import signing
from django.db import models, router
from django.utils.translation import gettext as _

from django_taskclaim import conf
from django_taskclaim.admin import phrases
from django_taskclaim.admin.acts import Act
from django_taskclaim.admin.rows import EXPIRED
from django_taskclaim.claim import clock
from django_taskclaim.columns import claim_columns
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.operating import written_before
from django_taskclaim.querysets.refusals import refusals
from django_taskclaim.states import Status

#: A request works for so many seconds, then answers; servers and proxies give up on those that take long.
BUDGET = 5.0

#: The form field in which a sweep that is not at its end travels.
FIELD = "taskclaim_sweep"

#: A sweep that nobody went on with for so many seconds is over.
MAX_AGE = 3600

_SALT = "django_taskclaim.admin.sweeping"

#: Why rows were left alone, beside their state.
FORBIDDEN, MEANWHILE = "forbidden", "meanwhile"
#: What such a reason begins with where the database refused; its error follows.
REFUSED = "refused "

#: Given rows, returns those that the user may act on.
Sieve = Callable[[list[Any]], set[Any]]


@dataclass(slots=True)
class Tally:
    """What has become of the rows so far."""

    changed: int = 0
    seen: int = 0
    left: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Sweep:
    """How far an act has got; ``after`` is the key of the last row seen, None before the first."""

    tally: Tally = field(default_factory=Tally)
    after: Any = None
    done: bool = False

    def dumps(self, salt: str) -> str:
        """Return the sweep as text that a form may carry to the next request, signed with *salt*; see ``salt_of``."""
        left = dict(self.tally.left)
        facts = [str(self.after), self.tally.changed, self.tally.seen, left]
        return signing.dumps(facts, salt=salt, compress=True)

    @classmethod
    def loads(cls, text: str, model: type[models.Model], salt: str) -> "Sweep":
        """Return the sweep that *text* carries; BadSignature where it was not signed with this *salt*."""
        after, changed, seen, left = signing.loads(text, salt=salt, max_age=MAX_AGE)
        return cls(Tally(changed, seen, Counter(left)), model._meta.pk.to_python(after))


def salt_of(*facts: Any) -> str:
    """Return what a text is signed with that counts for these facts only: site, model, database, user and act."""
    return sha256(json.dumps([_SALT, *map(str, facts)]).encode()).hexdigest()


def alias_of(rows: models.QuerySet[Any]) -> str:
    """Return the database on which *rows* are written: the one they were asked of by name, else the router's."""
    return rows._db or router.db_for_write(rows.model)  # type: ignore[attr-defined]


def sweep(
    rows: models.QuerySet[Any], act: Act, so_far: Sweep, *, sieve: Sieve | None, seconds: float
) -> int:
    """Go on with *act* over *rows* for about so many seconds, and return how many rows were changed just now.

    *so_far* is moved on; its ``done`` says whether the end was reached. Each chunk is committed by itself.
    """
    end = time.monotonic() + seconds
    before = so_far.tally.changed
    for keys in _chunks(rows, so_far):
        _act_on(rows, act, keys, so_far.tally, sieve)
        if time.monotonic() >= end:
            return so_far.tally.changed - before
    so_far.done = True
    return so_far.tally.changed - before


def _chunks(rows: models.QuerySet[Any], so_far: Sweep) -> Iterator[dict[Any, str]]:
    """Yield key and state of the rows, in key order, a chunk at a time."""
    size = int(conf.setting("CHUNK_SIZE"))
    status = claim_columns(rows.model).status.name
    ordered = rows.using(alias_of(rows)).order_by("pk")
    while True:
        rest = ordered if so_far.after is None else ordered.filter(pk__gt=so_far.after)
        found = dict(rest.values_list("pk", status)[:size])
        if not found:
            return
        so_far.after = list(found)[-1]
        yield found


def _act_on(
    rows: models.QuerySet[Any],
    act: Act,
    found: Mapping[Any, str],
    tally: Tally,
    sieve: Sieve | None,
) -> None:
    allowed = set(found) if sieve is None else sieve(list(found))
    claims = ClaimQuerySet[Any](rows.model, using=alias_of(rows))
    states = _states(claims, act, {key: state for key, state in found.items() if key in allowed})
    chosen = [key for key, state in states.items() if state in act.changes]
    began = clock()
    try:
        changed = act.verb(claims.filter(pk__in=chosen)) if chosen else 0
    except Exception as error:
        tally.changed += written_before(error)
        raise
    tally.seen += len(found)
    tally.changed += changed
    tally.left.update(state for state in states.values() if state not in act.changes)
    tally.left[FORBIDDEN] += len(found) - len(allowed)
    refused = [one for one in refusals(rows.model, claims.db, since=began) if one.key in chosen]
    tally.left.update(REFUSED + one.error for one in refused)
    tally.left[MEANWHILE] += len(chosen) - changed - len(refused)


def _states(claims: ClaimQuerySet[Any], act: Act, found: Mapping[Any, str]) -> dict[Any, str]:
    """Tell expired rows from running ones where the act does."""
    if EXPIRED not in act.changes:
        return dict(found)
    running = [key for key, state in found.items() if state == Status.PROCESSING]
    expired = set(claims.filter(pk__in=running).expired().values_list("pk", flat=True))
    return {key: EXPIRED if key in expired else state for key, state in found.items()}


def left_alone(tally: Tally) -> str:
    """Say how many rows were left alone, and why; nothing where none was."""
    reasons = [
        _("%(number)s %(state)s") % {"number": phrases.amount(count), "state": _why(reason)}
        for reason, count in sorted(tally.left.items())
        if count
    ]
    return _("Left alone: %(reasons)s.") % {"reasons": phrases.listed(reasons)} if reasons else ""


def _why(reason: str) -> str:
    if reason == FORBIDDEN:
        return _("that you may not change")
    if reason.startswith(REFUSED):
        error = reason.removeprefix(REFUSED)
        return _("that the database refuses to have written (%(error)s)") % {"error": error}
    if reason == MEANWHILE:
        return _("that somebody else has locked or changed meanwhile")
    return str(phrases.STATES.get(reason, reason))
