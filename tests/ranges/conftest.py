"""Sources with keys of every kind, with gaps and skew, and ranges over them."""

import uuid
from typing import Any

import pytest
from django.db.models import F

from tests.testapp.models import (
    CompositeRange,
    CompositeSource,
    IntRange,
    IntSource,
    TextRange,
    TextSource,
    UuidRange,
    UuidSource,
)

KINDS = [IntRange, UuidRange, TextRange, CompositeRange]


@pytest.fixture(params=KINDS, ids=lambda model: model.__name__)
def ranges(request: pytest.FixtureRequest) -> Any:
    """Each kind of key in turn."""
    return request.param


def fill(ranges: Any, n: int) -> None:
    """Give the source of *ranges* n more rows."""
    source = SOURCES[ranges]
    have = source.objects.count()
    source.objects.bulk_create([source(**KEYS[source](number)) for number in range(have, have + n)])


SOURCES: dict[Any, Any] = {
    IntRange: IntSource,
    UuidRange: UuidSource,
    TextRange: TextSource,
    CompositeRange: CompositeSource,
}

KEYS: dict[Any, Any] = {
    # Gaps that grow.
    IntSource: lambda n: {"id": n * n - 50},
    UuidSource: lambda n: {"id": uuid.uuid4()},
    # No order of numbers, and characters that collations sort as they like.
    TextSource: lambda n: {"key": f"{'aÄ_-z'[n % 5]}{n}'\"\\"},
    # One tenant has nearly all.
    CompositeSource: lambda n: {"tenant": 5 if n % 10 else n, "number": n},
}


def counters(ranges: Any) -> set[int]:
    """Return how often rows were worked on: one number where all is well."""
    return set(SOURCES[ranges].objects.values_list("counter", flat=True))


def work(rows: Any) -> int:
    """Do what the tests' handlers do with a chunk."""
    return int(rows.update(counter=F("counter") + 1))


def claimed(ranges: Any, lease: float = 60) -> Any:
    """Claim one range as a worker does."""
    (range_,) = ranges.objects.claim_batch(1, lease=lease)
    return range_


def work_through(ranges: Any, size: int) -> int:
    """Claim and complete all open ranges, and return how many."""
    done = 0
    while claims := ranges.objects.claim_batch(1):
        for rows in claims[0].rows(size):
            work(rows)
        claims[0].claim.complete()
        done += 1
    return done


def covered(ranges: Any) -> list[tuple[Any, Any]]:
    """Return the ranges in the order of their positions."""
    found = ranges.objects.order_by("position")
    return [(one.lower, one.upper) for one in found]


def assert_seamless(ranges: Any) -> None:
    """Each range begins where the one before ends, the first with no bound and the last with the last key."""
    pairs = covered(ranges)
    assert [lower for lower, _ in pairs] == [None, *(upper for _, upper in pairs[:-1])]
    source = SOURCES[ranges]
    last = ranges.objects.order_by("position").last()
    names = [field.attname for field in source._meta.pk_fields]
    assert last.upper_key == source.objects.order_by(*names).last().pk
