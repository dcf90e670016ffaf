"""What one ``claim_batch`` asks of the database, and what a renewal comes back with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, NamedTuple

from django.db import models

from django_taskclaim.dialects.statements import SQL, Key
from django_taskclaim.fields import AnyField


@dataclass(slots=True)
class Spelling:
    """How a statement is spelt in which one bound value changes from time to time, or none.

    Compiling a queryset costs as much Python as twenty rows do. Two that were compiled with different values show
    where the value stands; from then on it is put there.
    """

    _known: SQL | None = None
    _value: Any = None
    _place: int | None = None

    def of(self, value: Any, compile_it: Callable[[], SQL | None]) -> SQL | None:
        """Return the statement with *value*; *compile_it* makes it as long as its spelling is not known."""
        if self._known is not None and value is None:
            return self._known
        if self._known is not None and self._place is not None:
            params = list(self._known.params)
            params[self._place] = value
            return SQL(self._known.text, tuple(params))
        found = compile_it()
        if self._known is not None and found is not None and self._known.text == found.text:
            self._place = self._only_change(found, value)
        self._known, self._value = found, value
        return found

    def _only_change(self, found: SQL, value: Any) -> int | None:
        before = () if self._known is None else self._known.params
        changes = [n for n, (a, b) in enumerate(zip(before, found.params, strict=True)) if a != b]
        if len(changes) != 1:
            return None
        (place,) = changes
        return place if (before[place], found.params[place]) == (self._value, value) else None


@dataclass(slots=True)
class Spellings:
    """The spellings of the statements that differ by the bound alone from claim to claim of one holder."""

    bound: Any = None
    _kinds: dict[Any, Spelling] = field(default_factory=dict)

    def of(self, kind: Any, compile_it: Callable[[], SQL | None]) -> SQL | None:
        """Return the statement of this *kind* for the present bound."""
        return self._kinds.setdefault(kind, Spelling()).of(self.bound, compile_it)


@dataclass(frozen=True)
class ClaimOrder:
    """What one ``claim_batch`` asks of the database.

    ``rows`` returns the open, due rows of the claim table while the switch is on, in the order of the claim; only its
    ordering may join other tables. ``never_waited`` returns those of them that nobody has ever put off.
    ``returning`` names the columns wanted back.
    """

    rows: "Callable[[], models.QuerySet[Any]]"
    never_waited: "Callable[[], models.QuerySet[Any]]"
    #: Whether the candidates follow the model's own order and look at no other table.
    simple: bool
    limit: int
    holder: str
    lease: timedelta
    scopes: Sequence[str]
    returning: Sequence[AnyField]
    #: Where how to spell the candidates is kept, if claims like this one follow.
    spellings: Spellings | None = None

    @cached_property
    def candidates(self) -> "models.QuerySet[Any]":
        """The rows that the claim chooses among."""
        return self.rows()

    def place_of(self, field: AnyField) -> int:
        """Return where the column stands in the rows that the claim returns."""
        # Not ``index``: to compare two fields takes Django longer than all else here.
        return next(place for place, one in enumerate(self.returning) if one is field)

    def spelt(self, kind: Any, compile_it: Callable[[], SQL | None]) -> SQL | None:
        """Return what *compile_it* makes of the candidates; of the same *kind* are statements that look alike."""
        return compile_it() if self.spellings is None else self.spellings.of(kind, compile_it)


class Renewal(NamedTuple):
    """What became of each claim of one renewal, by key."""

    renewed: list[Key]
    #: Locked by another transaction: neither renewed nor lost.
    skipped: list[Key]
    lost: list[Key]
