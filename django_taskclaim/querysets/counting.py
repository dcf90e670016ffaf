"""How many rows of each key are processing, and so how many more may be claimed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django_taskclaim.dialects.statements import Key
from django_taskclaim.fields import AnyField
from django_taskclaim.querysets.scope import ClaimTarget, Rows
from django_taskclaim.states import Status


@dataclass(frozen=True, slots=True)
class KeyLimit:
    """At most ``most`` rows with one value of ``field`` are processing; rows where it is NULL are not limited."""

    field: AnyField
    most: int

    @property
    def option(self) -> str:
        """The option of ``@handler`` that sets it."""
        return "limit_per"

    @property
    def name(self) -> str:
        """The field as querysets call it, without a join."""
        return self.field.attname

    def count(self, target: ClaimTarget) -> "KeyCount":
        """Return what counts for one claim."""
        return KeyCount(self, target)


class KeyCount:
    """How many more rows of each key may be claimed. The database is asked once for each key."""

    def __init__(self, limit: KeyLimit, target: ClaimTarget) -> None:
        self.limit = limit
        self._running: Counter[Any] = Counter()
        self._processing = target.rows.order_by().filter(
            **{target.columns.status.name: Status.PROCESSING}
        )
        self._target = target

    def learn(self, keys: Iterable[Any]) -> None:
        """Count what is processing of *keys*, whoever holds it, expired or not.

        Counted by value here: what two values are equal is another question on each database.
        """
        new = [key for key in dict.fromkeys(keys) if key is not None and key not in self._running]
        for part in self._target.dialect.chunks(new, self._target.table):
            rows = self._processing.filter(**{f"{self.limit.name}__in": part})
            found = Counter(rows.values_list(self.limit.name, flat=True))
            for key in part:
                self._running[key] = found[key]

    def admits(self, key: Any, row: Key) -> bool:
        """Say whether *row*, which has this key, may be claimed now."""
        return self.has_room(key)

    def has_room(self, key: Any) -> bool:
        return key is None or self._running[key] < self.limit.most

    def left(self, key: Any) -> int:
        """Return how many more rows of a key there may be."""
        return max(0, self.limit.most - self._running[key])

    def add(self, key: Any, number: int) -> None:
        if key is not None:
            self._running[key] += number

    @property
    def full(self) -> list[Any]:
        """The keys known to have no room."""
        return [key for key in self._running if not self.has_room(key)]

    def first_of_each(self, due: Rows, keys: Sequence[Any], wanted: int) -> list[Key]:
        """Return the rows of *due* that stand first among those with each of *keys*, as many as there is room for."""
        if not keys:
            return []
        most = min(max(self.left(key) for key in keys), wanted)
        target = self._target
        (found,) = target.dialect.first_of_each([due], target.table, self.limit.field, keys, most)
        return found

    def overlooked(self, seen: Iterable[Key]) -> list[Key]:
        """Return rows beside those *seen* that have to go before them."""
        return []
