"""Sources with keys of every kind, with gaps and skew, and ranges over them."""

import uuid
from typing import Any

import pytest
from django.core.management import call_command
from django.db.models import F

from django_taskclaim.ranges.keys import RangeTarget
from django_taskclaim.ranges.walking import split_largest
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
    # No order of numbers, and characters that collations sort in different ways.
    TextSource: lambda n: {"key": f"{'aÄ_-z'[n % 5]}{n}'\"\\"},
    # One tenant has nearly all.
    CompositeSource: lambda n: {"tenant": 5 if n % 10 else n, "number": n},
}


@pytest.fixture(params=SOURCES, ids=lambda model: model.__name__)
def ranges(request: pytest.FixtureRequest) -> Any:
    """Each kind of key in turn."""
    return request.param


def fill(ranges: Any, n: int) -> None:
    """Give the source of *ranges* n more rows."""
    source = SOURCES[ranges]
    have = source.objects.count()
    source.objects.bulk_create([source(**KEYS[source](number)) for number in range(have, have + n)])


def planned(n: int, chunk_size: int = 1_000) -> None:
    fill(IntRange, n)
    IntRange.objects.plan(chunk_size=chunk_size)


def counters(ranges: Any) -> set[int]:
    """Return how often rows were worked on: one number where all is well."""
    return set(SOURCES[ranges].objects.values_list("counter", flat=True))


def work(rows: Any) -> int:
    """Do what the tests' handlers do with a chunk."""
    return int(rows.update(counter=F("counter") + 1))


def split(ranges: Any, at_least: int = 1) -> bool:
    """Split the running range with most rows left, as idle workers do."""
    return split_largest(RangeTarget(ranges, "default"), at_least)


def claimed(ranges: Any, lease: float = 60) -> Any:
    """Claim one range as a worker does."""
    (range_,) = ranges.objects.claim_batch(1, lease=lease)
    return range_


def work_through(ranges: Any, size: int | None = None) -> int:
    """Claim and complete all open ranges, and return how many."""
    done = 0
    while claims := ranges.objects.claim_batch(1):
        for rows in claims[0].rows(size):
            work(rows)
        claims[0].claim.complete()
        done += 1
    return done


def drain(model: Any, *options: str) -> None:
    """Run a worker in this process until nothing is left."""
    words = ["--in-process", "--drain", "--poll", "0.1", *options]
    call_command("claimworker", model._meta.label, *words, verbosity=0)


def assert_seamless(ranges: Any) -> None:
    """Each range begins where the one before ends, the first with no bound and the last with the last key."""
    by_lower = {one.lower: one for one in ranges.objects.all()}
    found = [by_lower.pop(None)]
    while by_lower:
        found.append(by_lower.pop(found[-1].upper))
    assert found[-1].position == max(one.position for one in found)
    source = SOURCES[ranges]
    names = [field.attname for field in source._meta.pk_fields]
    assert found[-1].upper_key == source.objects.order_by(*names).last().pk
