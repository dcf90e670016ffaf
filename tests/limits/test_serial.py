"""``serial_by``: rows of one key one at a time and in order."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_taskclaim.exceptions import RetryLater
from tests.factories import make
from tests.querysets.support import ROW_LOCKS, Rule, at_once
from tests.testapp.models import Child, ChildOwnsClaim, CompositeKey, Photo, PhotoProxy

pytestmark = pytest.mark.django_db


def photos(countries: str, **values: Any) -> list[Photo]:
    """Make a row for each letter, its country."""
    rows: list[Photo] = make(Photo, len(countries), country=lambda i: countries[i], **values)
    return rows


def claim(rows: list[Any], queryset: Any = None) -> list[int]:
    """Claim what can be claimed, and return the places of those rows."""
    found = (Photo.objects.all() if queryset is None else queryset).claim_batch(9)
    return [rows.index(row) for row in found]


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize(
    ("model", "column"),
    [(Photo, "counter"), (Child, "counter"), (ChildOwnsClaim, "extra"), (CompositeKey, "counter")],
)
def test_one_row_of_each_key_at_a_time_and_in_order(model: Any, column: str, rule: Rule) -> None:
    rule(model, serial_by=column)
    rows = make(model, 6, **{column: lambda i: i // 3})
    done: list[Any] = []
    for _ in range(3):
        found = model.objects.claim_batch(6)
        assert model.objects.claim_batch(6) == []
        done += sorted(row.pk for row in found)
        assert model.objects.complete(found) == 2
    keys = [row.pk for row in rows]
    assert done == [keys[i] for i in (0, 3, 1, 4, 2, 5)]


#: What becomes of the head of a key, and which places of "AAB" are claimed next.
ENDS: dict[str, tuple[Callable[[Any], Any], list[int]]] = {
    "complete": (lambda head: head.complete(), [1]),
    "waits for its retry": (lambda head: head.fail("not yet"), []),
    "put back": (lambda head: head.release(), [0]),
    "due again, behind the others in claim order": (lambda head: head.fail(RetryLater(0)), [0]),
    "failed": (lambda head: head.fail("no", retry=False), []),
}


@pytest.mark.usefixtures("strategy")
@pytest.mark.parametrize("end", ENDS)
def test_the_head_of_a_key_decides_when_the_next_row_has_its_turn(end: str, rule: Rule) -> None:
    """Other keys go on."""
    rule(Photo, serial_by="country", backoff=lambda failures: 600)
    rows = photos("AABB")
    head, other = Photo.objects.claim_batch(9)
    finish, next_of_a = ENDS[end]
    finish(head)
    other.complete()
    assert sorted(claim(rows)) == [*next_of_a, 3]


def test_a_paused_row_blocks_its_key_when_its_turn_comes(rule: Rule) -> None:
    rule(Photo, serial_by="country")
    rows = photos("AAB")
    Photo.objects.filter(pk=rows[1].pk).pause_rows()
    head, other = Photo.objects.claim_batch(9)
    Photo.objects.complete([head, other])
    assert claim(rows) == []
    Photo.objects.resume_rows()
    assert claim(rows) == [1]


def test_neither_filter_nor_order_of_a_queryset_changes_the_head(rule: Rule) -> None:
    rule(Photo, serial_by="country")
    rows = photos("AABB", url=lambda i: "other" if i == 0 else "mine")
    assert claim(rows, Photo.objects.filter(url="mine").order_by("-pk")) == [2]
    assert claim(rows, Photo.objects.filter(url="other")) == [0]


def test_priority_and_the_order_of_the_handler_decide_who_is_next(rule: Rule) -> None:
    rule(Photo, serial_by="country")
    rows = photos("AA")
    (head,) = Photo.objects.claim_batch(9)
    rows += photos("A", priority=5)
    assert claim(rows) == []
    head.complete()
    assert claim(rows) == [2]
    rule(Photo, serial_by="country", order_by=("-width",))
    rows = photos("CCD", width=lambda i: i)
    assert sorted(claim(rows)) == [1, 2]


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
@pytest.mark.usefixtures("strategy")
def test_claims_that_meet_take_one_row_of_each_key(rule: Rule) -> None:
    """Also while rows of a higher priority arrive and the heads are opened by an operator."""
    rule(Photo, serial_by="country")
    rows = photos("AABBCC" * 4)
    Photo.objects.filter(pk=rows[0].pk).pause_rows()

    def meddle() -> list[Any]:
        Photo.objects.filter(pk=rows[0].pk).resume_rows()
        photos("B", priority=9)
        return []

    found = at_once(*[lambda: Photo.objects.claim_batch(2)] * 6, meddle)
    running = [row.country for some in found for row in some]
    assert len(running) == len(set(running))
    assert rows[1] not in [row for some in found for row in some]


def test_heads_behind_a_crowd_are_reached(rule: Rule) -> None:
    """Also a retry that stands behind 450 rows of its key, which have to wait for it."""
    rule(Photo, serial_by="country")
    Photo.objects.bulk_create(Photo(country="A") for _ in range(450))
    crowd, others = list(Photo.objects.order_by("pk")), photos("BBCC")
    found = Photo.objects.claim_batch(9)
    assert found == [crowd[0], others[0], others[2]]
    assert Photo.objects.claim_batch(9) == []
    found[0].release(delay=timedelta(0))
    assert Photo.objects.claim_batch(9) == crowd[:1]


def test_a_row_that_two_series_limit_has_its_turn_in_both(rule: Rule) -> None:
    """A proxy and the model it stands for each name one. The head of one key is not the head of another."""
    rule(Photo, serial_by="country")
    rule(PhotoProxy, serial_by="url")
    rows = photos("AB", url="same")
    Photo.objects.filter(pk=rows[0].pk).pause_rows()
    assert PhotoProxy.objects.claim_batch(9) == []


def test_a_thousand_keys_that_are_blocked_keep_no_other_key_back(rule: Rule) -> None:
    rule(Photo, serial_by="url")
    for status in ("failed", "open"):
        make(Photo, 1000, url=lambda i: str(i), status=status)
    (free,) = make(Photo, 1)
    assert Photo.objects.claim_batch(9) == [free]
