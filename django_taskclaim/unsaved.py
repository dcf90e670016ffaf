"""Finds what a handler sets on its rows although nothing writes it: the completion writes ``update_fields`` alone."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from decimal import Decimal
from operator import itemgetter
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

#: Rows of a process whose lists and dictionaries are copied, so that a change in place is seen.
COPIED = 50
#: Rows for which the database is asked about a column that turns out to be written.
ASKED = 10

_MUTABLE = (list, dict, set, bytearray)


#: The rows of a call, what the handler gets for each (the row or its source), and what reads their values, with those
#: before. Of a single row it is its dictionary.
Held = tuple[Sequence[Any], Any, Callable[[Any], Any], Any]


class Changed(NamedTuple):
    """The columns of an instance that a handler has changed, with their values before."""

    row: Any
    instance: Any
    before: dict[str, Any]


class Watch:
    """Compares the rows of one handler with what they were before each call, in one process."""

    #: Whether a row fails for what is found. Read once a claim: for each row that would cost more than all the rest.
    fails = False

    def __init__(self, model: type[models.Model], update_fields: Sequence[str]) -> None:
        self._model = model
        self._update_fields = update_fields
        self._has_sources = is_companion(model)
        self._names: dict[type[models.Model], list[str]] = {}
        self._getters: dict[type[models.Model], Callable[[Any], tuple[Any, ...]]] = {}
        self._to_copy = COPIED
        #: For how many rows the database may still be asked about a column.
        self._to_ask: dict[str, int] = {}
        self._named: set[str] = set()
        self._lock = threading.Lock()
        #: Whether a single row is only read. Found once a claim, as ``fails``.
        self._is_quick = False

    def read_settings(self) -> None:
        """Read whether a row fails for what is found."""
        asked = conf.setting("FAIL_UNSAVED")
        self.fails = bool(settings.DEBUG if asked is None else asked)
        self._is_quick = not (self.fails or self._has_sources or self._to_copy > 0)

    def before(self, rows: Sequence[Any]) -> Held:
        """Return what the handler is given, as it is now."""
        if self._is_quick and len(rows) == 1:
            own = rows[0].__dict__
            try:
                read = self._getters[type(rows[0])]
                return rows, own, read, read(own)
            except KeyError:
                # Read as below.
                pass
        owners = given = rows
        if self._has_sources:
            owners, given = zip(*self._pairs(rows), strict=True)
        values = self._read(given)
        if self.fails or self._to_copy > 0:
            self._to_copy -= len(rows)
            values = [tuple(map(_copied, one)) for one in values]
        return owners, given, self._read, values

    def _read(self, given: Sequence[Any]) -> list[tuple[Any, ...]]:
        getters = self._getters
        try:
            return [getters[type(one)](one.__dict__) for one in given]
        except KeyError:
            # The first of their class, or a column is deferred.
            return [self._values(one) for one in given]

    def _values(self, instance: Any) -> tuple[Any, ...]:
        own = instance.__dict__
        return tuple(own.get(name, DEFERRED) for name in self._names_of(type(instance)))

    def _pairs(self, rows: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
        link = source_link(self._model).field
        for row in rows:
            yield row, row
            if link.is_cached(row):
                yield row, getattr(row, LINK)

    def _names_of(self, kind: type[models.Model]) -> list[str]:
        names = self._names.get(kind)
        if names is None:
            names = self._names[kind] = self._unwritten(kind)
            # Of a single name it would return the value alone.
            self._getters[kind] = itemgetter(*names, names[0]) if names else _nothing
        return names

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

    def after(self, held: Held) -> list[Changed]:
        """Return what the handler has changed and is not known to be stored; asks nothing."""
        rows, given, read, values = held
        try:
            if read(given) == values:
                return []
        except Exception:
            # A value's ``==`` raises, as that of arrays does: look at each.
            pass
        if isinstance(given, dict):
            given, values = rows, [values]
        return [one for one in map(self._changed, rows, given, values) if one.before]

    def _changed(self, row: Any, instance: Any, values: tuple[Any, ...]) -> Changed:
        own, stored = instance.__dict__, loaded_values(instance) or {}
        before = dict(zip(self._names_of(type(instance)), values, strict=False))

        def is_changed(name: str) -> bool:
            now = own.get(name, DEFERRED)
            if now is DEFERRED or _are_same(now, before[name]):
                return False
            # What is changed in place has changed there, too.
            if not isinstance(now, _MUTABLE) and _are_same(now, stored.get(name, DEFERRED)):
                return False
            return self.fails or self._to_ask.get(self._told(row, instance, name), ASKED) > 0

        # An instance without a claim was saved as another row.
        names = [] if claim_of(row) is None else [name for name in before if is_changed(name)]
        return Changed(row, instance, {name: before[name] for name in names})

    def look(self, changed: Sequence[Changed]) -> None:
        """Ask the database which of these columns are as they were, and note them on the claims."""
        for row, instance, before in changed:
            claim = carried_claim(row)
            alias = claim.alias if instance is row else instance._state.db
            for name, stored in _stored(instance, alias, before).items():
                told = self._told(row, instance, name)
                # A value that is neither was written by somebody, or made by the database.
                same = before[name] is DEFERRED or _are_same(before[name], stored)
                if same and not _is_stored(instance, name, stored):
                    claim.unsaved += (told,)
                else:
                    self._to_ask[told] = self._to_ask.get(told, ASKED) - 1

    def _told(self, row: Any, instance: Any, name: str) -> str:
        """Return how ``update_fields`` names a column."""
        told = str(instance._meta.get_field(name).name)
        hidden = instance is not row and told in writable(self._model)
        return f"{PREFIX}{told}" if hidden else told

    def first_time(self, names: Sequence[str]) -> list[str]:
        """Return those of *names* that this process has not named before."""
        with self._lock:
            new = [name for name in names if name not in self._named]
            self._named.update(new)
            self._to_ask.update(dict.fromkeys(new, 0))
            return new


def _nothing(own: dict[str, Any]) -> tuple[Any, ...]:
    return ()


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
