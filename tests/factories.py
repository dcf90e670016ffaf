"""Rows of every shape, made with what the shape needs and no claim columns."""

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import models

from django_taskclaim.claim import Claim, attach
from django_taskclaim.states import Token
from tests.testapp.models import (
    AModelWhoseNameIsLongerThanAnyDatabaseAcceptsForATableOrAnIndexName,
    Author,
    Child,
    ChildOwnsClaim,
    ClaimOnly,
    CompositeKey,
    HiddenRows,
    OrderedByForeignKey,
    Parent,
    Photo,
    PhotoProxy,
    PrefixedOwnStatus,
    ReservedWords,
    TextKey,
    UuidKey,
)

#: The shapes that differ most: in their claim columns, their names, their keys, and the tables that these are on.
DIFFERENT: list[type[models.Model]] = [Photo, ClaimOnly, PrefixedOwnStatus]
DIFFERENT += [UuidKey, CompositeKey, Child, ChildOwnsClaim]

#: Every shape of a claimable model; a behaviour that holds for one holds for all.
SHAPES = [*DIFFERENT, PhotoProxy, TextKey, Parent, HiddenRows, ReservedWords, OrderedByForeignKey]
SHAPES += [AModelWhoseNameIsLongerThanAnyDatabaseAcceptsForATableOrAnIndexName]

#: Goes up within a test, so its keys are unique and their order is the order of making.
_numbers = itertools.count(1)


def start_over() -> None:
    """Number from 1 again, so that a test makes the same rows after any other test."""
    global _numbers
    _numbers = itertools.count(1)


def make(model: type[models.Model], n: int = 1, /, **values: Any) -> list[Any]:
    """Create *n* open rows of *model* and return them in the order of their keys, as far as keys have one.

    *values* are given to every row; a callable is called with 0 … n-1 for each row's own value. Like
    the rows of a user, they come back as they were made: without a claim.
    """
    manager = model._base_manager
    rows = []
    for i in range(n):
        own = {name: value(i) if callable(value) else value for name, value in values.items()}
        rows.append(manager.create(**(_needs(model) | own)))
    return rows


def make_claimed(
    model: Any, n: int = 1, /, *, claimed_by: str | None = None, lease: Any = None, **values: Any
) -> list[Any]:
    """Create *n* rows of *model* as ``make`` does, claim as many, and return these in the order of their making.

    Where other rows are open, some of these may be among them.
    """
    place = {row.pk: number for number, row in enumerate(make(model, n, **values))}
    claimed = model.objects.claim_batch(n, claimed_by=claimed_by, lease=lease)
    return sorted(claimed, key=lambda row: place.get(row.pk, -1))


def _needs(model: type[models.Model]) -> dict[str, Any]:
    """Return values for the fields that *model* cannot do without."""
    needs = _NEEDS.get(model)
    return needs(next(_numbers)) if needs else {}


_NEEDS: dict[type[models.Model], Callable[[int], dict[str, Any]]] = {
    Photo: lambda number: {"url": f"https://photos.example/{number}.jpeg"},
    PhotoProxy: lambda number: {"url": f"https://photos.example/{number}.jpeg"},
    TextKey: lambda number: {"key": f"{number:08d} 50% of 'Zoë' \"and\" \\ 🎈"},
    CompositeKey: lambda number: {"tenant": number // 3, "number": number},
    # Every third row has no author, so that an inner join would lose it.
    OrderedByForeignKey: lambda number: {
        "author": Author.objects.create(name=f"author {-number}") if number % 3 else None
    },
}


def claimed(row: Any) -> Any:
    """Let an instance that is in no database carry a claim, as one that ``claim_batch`` returned does."""
    attach(row, Claim(Token("worker#1", 0), "default", row.pk, lease=timedelta(seconds=60)))
    return row
