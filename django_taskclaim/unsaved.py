"""Finds what a handler sets on its rows although nothing writes it: the completion writes ``update_fields`` alone."""

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from decimal import Decimal
from typing import Any, NamedTuple

from django.conf import settings
from django.db import Error, InterfaceError, OperationalError, connections, models
from django.db.models import DEFERRED

from django_taskclaim import conf
from django_taskclaim.claim import carried_claim, claim_of
from django_taskclaim.columns import claim_columns, is_claimable
from django_taskclaim.completion import Archive, Call, Delete, Save
from django_taskclaim.guard import loaded_values
from django_taskclaim.links import LINK, is_companion, source_link
from django_taskclaim.policy import policy_for
from django_taskclaim.querysets.removing import shared_columns
from django_taskclaim.querysets.results import PREFIX, checked_results, writable

#: A process looks at its first calls of a handler, and then at one in so many; where rows fail for it, at all.
FIRST_CALLS, ONE_IN = 50, 20
#: Rows for which the database is asked about a column that turns out to be written.
ASKED = 10

_MUTABLE = (list, dict, set, bytearray)


class Seen(NamedTuple):
    """An instance that a handler gets, of a row or of its source, and values of its columns before the call."""

    row: Any
    instance: Any
    before: dict[str, Any]


class UnsavedColumns:
    """Compares the rows of one handler with what they were before each call, in one process."""

    #: Whether a row fails for what is found. Read once a claim: for each row that would cost more than all the rest.
    fails = False

    def __init__(self, model: type[models.Model], update_fields: Sequence[str]) -> None:
        self._model = model
        self._update_fields = update_fields
        self._names: dict[type[models.Model], list[str]] = {}
        self._calls = 0
        #: For how many rows the database may still be asked about a column.
        self._to_ask: dict[str, int] = {}
        self._named: set[str] = set()
        self._lock = threading.Lock()

    def read_settings(self) -> None:
        """Read whether a row fails for what is found."""
        asked = conf.setting("FAIL_UNSAVED")
        self.fails = bool(settings.DEBUG if asked is None else asked)

    def before(self, rows: Sequence[Any]) -> list[Seen]:
        """Return what the handler is given, as it is now; nothing of a call that is not looked at."""
        self._calls += 1
        if not self.fails and self._calls > FIRST_CALLS and self._calls % ONE_IN:
            return []
        return [
            Seen(row, instance, {name: _copied(value) for name, value in self._values(instance)})
            for row, instance in self._instances(rows)
        ]

    def _values(self, instance: Any) -> Iterator[tuple[str, Any]]:
        kind, own = type(instance), instance.__dict__
        if kind not in self._names:
            self._names[kind] = self._unwritten(kind)
        return ((name, own.get(name, DEFERRED)) for name in self._names[kind])

    def _instances(self, rows: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        link = source_link(self._model).field if is_companion(self._model) else None
        for row in rows:
            yield row, row
            if link is not None and link.is_cached(row):
                yield row, getattr(row, LINK)

    def _unwritten(self, kind: type[models.Model]) -> list[str]:
        """Return the columns that stay when a row is done and that its completion does not write."""
        completion, is_row = policy_for(self._model).completion, issubclass(kind, self._model)
        # A function of the user's may write anything.
        if isinstance(completion, Call) or (is_row and isinstance(completion, Delete)):
            return []
        names = writable(kind)
        if is_claimable(kind):
            names -= claim_columns(kind).guarded_names
        try:
            own, of_source, _ = checked_results(self._model, self._update_fields)
            if is_row and isinstance(completion, Archive):
                names &= {*shared_columns(kind, completion.model)}
        except (TypeError, ValueError, LookupError):
            # The completion says more.
            return []
        if is_row and isinstance(completion, Save) and not own:
            return []
        fields, written = kind._meta.concrete_fields, own if is_row else of_source
        return [f.attname for f in fields if f.attname in names and f.name not in written]

    def after(self, seen: Sequence[Seen]) -> list[Seen]:
        """Return the columns that the handler has changed and that are not known to be stored; asks nothing."""
        found = (one._replace(before=self._changed(*one)) for one in seen)
        return [one for one in found if one.before]

    def _changed(self, row: Any, instance: Any, before: dict[str, Any]) -> dict[str, Any]:
        if claim_of(row) is None:
            # Saved as another row.
            return {}
        stored, changed = loaded_values(instance) or {}, {}
        for name, now in self._values(instance):
            if now is DEFERRED or _are_same(now, before[name]):
                continue
            # What is changed in place has changed in what was loaded, too.
            is_stored = _are_same(now, stored.get(name, DEFERRED)) and not isinstance(now, _MUTABLE)
            shown = self._shown(row, instance, name)
            if not is_stored and (self.fails or self._to_ask.get(shown, ASKED) > 0):
                changed[name] = before[name]
        return changed

    def look(self, changed: Sequence[Seen]) -> None:
        """Ask the database which of these columns are as they were, and note them on the claims."""
        for row, instance, before in changed:
            claim = carried_claim(row)
            alias = claim.alias if instance is row else instance._state.db
            for name, stored in _stored(instance, alias, before).items():
                shown = self._shown(row, instance, name)
                # A value that is neither was written by somebody, or made by the database.
                same = before[name] is DEFERRED or _are_same(before[name], stored)
                if same and not _is_stored(instance, name, stored):
                    claim.unsaved += (shown,)
                else:
                    self._to_ask[shown] = self._to_ask.get(shown, ASKED) - 1

    def _shown(self, row: Any, instance: Any, name: str) -> str:
        """Return how ``update_fields`` names a column."""
        shown = str(instance._meta.get_field(name).name)
        hidden = instance is not row and shown in writable(self._model)
        return f"{PREFIX}{shown}" if hidden else shown

    def first_time(self, names: Sequence[str]) -> list[str]:
        """Return those of *names* that this process has not named before."""
        with self._lock:
            new = [name for name in names if name not in self._named]
            self._named.update(new)
            self._to_ask.update(dict.fromkeys(new, 0))
            return new


def _copied(value: Any) -> Any:
    return deepcopy(value) if isinstance(value, _MUTABLE) else value


def _are_same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:
        # As the ``==`` of arrays.
        return False


def _stored(instance: Any, alias: str, names: Iterable[str]) -> dict[str, Any]:
    """Return what the database has in these columns; nothing where the row is gone, or nobody can tell."""
    rows: models.QuerySet[Any] = models.QuerySet(type(instance), using=alias)
    try:
        return rows.filter(pk=instance.pk).values(*names).first() or {}
    except (OperationalError, InterfaceError):
        if connections[alias].in_atomic_block:
            raise
        return {}
    except Error:
        # A transaction that an error has spoilt, which its own end tells better.
        return {}


def _is_stored(instance: Any, name: str, stored: Any) -> bool:
    now, field = instance.__dict__[name], instance._meta.get_field(name)
    try:
        if isinstance(field, models.DecimalField) and stored is not None:
            # The databases round in ways of their own.
            unit = Decimal(1).scaleb(-field.decimal_places)
            return bool(abs(field.get_prep_value(now) - stored) < unit)
        return _are_same(now, stored) or _are_same(_prepared(field, now), _prepared(field, stored))
    except Exception:
        # No value of this column.
        return False


def _prepared(field: Any, value: Any) -> Any:
    value = field.get_prep_value(value)
    if isinstance(field, models.JSONField):
        # Where every key is a text, and a tuple is a list.
        return json.loads(json.dumps(value, cls=field.encoder))
    return value
