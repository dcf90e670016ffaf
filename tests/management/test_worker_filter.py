"""``claimworker --filter``: what it selects, and what it refuses before anything starts."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command

from tests.commands import refused
from tests.doctor.support import handling
from tests.testapp.models import (
    Author,
    Child,
    CompositeKey,
    HiddenRows,
    OrderedByForeignKey,
    Parent,
    Photo,
    PrefixedOwnStatus,
    UuidKey,
)
from tests.testapp.odd_models import EveryField

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


def work(model: Any, *filters: str) -> list[Any]:
    """Run a worker with filters, and return the rows that its handler was given."""
    seen: list[Any] = []
    words = [word for text in filters for word in ("--filter", text)]
    with handling(model, seen.append):
        call_command("claimworker", model._meta.label, "--in-process", "--drain", *words)
    return seen


def test_only_rows_that_match_every_filter_are_claimed() -> None:
    """Column and lookup convert the value; an empty value is text, a list is divided at its commas."""
    selections: list[tuple[tuple[str, ...], set[int]]] = [
        (("country=",), {3}),
        (("country__in=NZ,AU", "width__isnull=false"), {1}),
        (("country__istartswith=n", "id__isnull=false"), {0}),
        (("width__range=5,15", "priority__gte=1"), {1}),
        (("width__gte=5", "width__gte=15", "note=a=b: c"), {2}),
        (("not_before__date=2020-02-29", "not_before__year=2020"), {2}),
        (("not_before__lt=2020-02-29T12:00Z",), {0, 1, 3}),
    ]
    for filters, wanted in selections:
        Photo.objects.all().delete()
        places = {row.pk: place for place, row in enumerate(photos())}
        assert {places[row.pk] for row in work(Photo, *filters)} == wanted, filters


def photos() -> list[Photo]:
    leap_day = datetime(2020, 2, 29, 13, tzinfo=UTC)
    return [
        Photo.objects.create(country="NZ"),
        Photo.objects.create(country="AU", width=10, priority=1),
        Photo.objects.create(country="FR", width=20, note="a=b: c", not_before=leap_day),
        Photo.objects.create(country=""),
    ]


def test_other_tables_and_other_keys_are_looked_at() -> None:
    """A row beyond a link, inherited tables, a UUID, part of a composite key, a boolean, a duration."""
    ann, bob = (Author.objects.create(name=name) for name in ("Ann", "Bob"))
    by_ann, by_bob, by_nobody = [
        OrderedByForeignKey.objects.create(author=author) for author in (ann, bob, None)
    ]
    assert work(OrderedByForeignKey, "author__name=Ann") == [by_ann]
    assert work(OrderedByForeignKey, f"author={bob.pk}") == [by_bob]
    assert work(OrderedByForeignKey, "author__isnull=true") == [by_nobody]
    first, second = (Child.objects.create(extra=extra, note=extra) for extra in "ab")
    assert work(Child, "extra=a", "note=a") == [first]
    assert [row.pk for row in work(Parent, "child__extra=b")] == [second.pk]
    wanted, _other = UuidKey.objects.create(), UuidKey.objects.create()
    assert work(UuidKey, f"id={wanted.pk}") == [wanted]
    pair = CompositeKey.objects.create(tenant=1, number=2)
    CompositeKey.objects.create(tenant=2, number=2)
    assert work(CompositeKey, "tenant=1") == [pair]
    HiddenRows.objects.create(hidden=True)
    assert work(HiddenRows, "hidden=True") == []
    long = EveryField.objects.create(span=timedelta(minutes=5))
    assert work(EveryField, "span__gt=0:04:59", "span__in=5,300") == [long]
    draft = PrefixedOwnStatus.objects.create()
    assert work(PrefixedOwnStatus, "status=draft") == [draft]


REFUSED: list[tuple[Any, str, str]] = [
    (Photo, "country", "lookup=value"),
    (Photo, "countri=NZ", "Cannot resolve keyword"),
    (Photo, "status__in=open,failed", "open rows only"),
    (Photo, "width=abc", "expected a number but got 'abc'"),
    (Photo, "width__isnull=", "must be either True or False"),
    (Photo, "width__range=3", "a range has two ends"),
    (Photo, "not_before__gt=0001-01-01T00:00+05:00", "out of range"),
    (EveryField, "blob=abc", "binary"),
    (HiddenRows, "hidden=yes", "must be either True or False"),
    (UuidKey, "id=12", "is not a valid UUID"),
    (CompositeKey, "pk=1", "tuple"),
    (Photo, "testapp.Photo:note=", "lookup=value"),
    (Photo, f"id__in=1,{'9' * 30}", "no column holds a number as large as 9999"),
    (Photo, "claimed_at__year=99999", "year 99999 is out of range"),
    (EveryField, "span=soon", "must be in [DD] [[HH:]MM:]ss"),
]


@pytest.mark.once
def test_what_makes_no_sense_is_one_sentence() -> None:
    for model, text, named in REFUSED:
        with handling(model):
            code, message = refused("claimworker", model._meta.label, "--filter", text)
        assert (code, message.count("\n")) == (2, 0)
        assert text in message
        assert named in message
