"""``take``: rows without claim columns, handed to one block and gone when it ends well."""

from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db import models as django_models
from django.db.models import F
from django.db.models.functions import Upper
from django.test import TestCase

from django_taskclaim import take
from django_taskclaim.exceptions import TaskClaimError
from tests.factories import SHAPES, make
from tests.meanwhile import autocommit_off
from tests.querysets.support import execute, fresh, keys
from tests.taking.models import Letter, Line, Postmark, Writer
from tests.testapp.models import Child, ChildOwnsClaim

pytestmark = pytest.mark.django_db

#: For what only a transaction that really commits, or a table of its own, can show.
committing = pytest.mark.django_db(transaction=True)


class Broken(Exception):
    """What a block of these tests ends with."""


# What becomes of the rows


@pytest.mark.parametrize("model", SHAPES, ids=lambda model: model.__name__[:20])
def test_rows_of_every_shape_are_updated_or_go_when_the_block_ends_well(model: Any) -> None:
    make(model, 5)
    rows = model._base_manager.order_by("pk")
    in_order = keys(rows)
    with take(model._base_manager.all(), 3, delete=False) as taken:
        assert keys(taken) == in_order[:3]
        model._base_manager.filter(pk__in=in_order[:3]).update(note="sent")
    assert [row.note for row in rows.all()] == ["sent"] * 3 + [""] * 2
    in_tables = model in (Child, ChildOwnsClaim)
    with take(model._base_manager.all(), 3, delete=not in_tables) as taken:
        assert model._base_manager.count() == 5
        for row in taken if in_tables else ():
            row.delete()
    assert keys(rows.all()) == in_order[3:]


def test_what_the_block_does_to_its_rows_stays(letters: list[Letter]) -> None:
    with take(Letter.objects.all(), 3, delete=False) as rows:
        rows[0].text = "mine"
        rows[0].save()
        rows[1].delete()
    assert fresh(rows[0]).text == "mine"
    with take(Letter.objects.all(), 3) as rows:
        rows[0].delete()
    assert Letter.objects.count() == 2
    with take(Letter.objects.none(), 3) as rows:
        assert rows == []


@committing
@pytest.mark.promise(5)
def test_a_block_that_raises_leaves_everything_as_it_was(letters: list[Letter]) -> None:
    def block(rows: list[Letter]) -> None:
        rows[0].delete()
        Writer.objects.create(name="Ada")
        raise Broken

    with pytest.raises(Broken), take(Letter.objects.all(), 3) as rows:
        block(rows)
    assert Letter.objects.count() == 6
    assert not Writer.objects.exists()


# Which rows


def test_the_order_asked_for_is_kept(letters: list[Letter]) -> None:
    known = keys(letters)
    for queryset, expected in [
        (Letter.objects.all(), known[:2]),  # Meta.ordering says otherwise
        (Letter.objects.order_by("sent", F("text").desc()), known[:-3:-1]),
        (Letter.objects.order_by(Upper("text").asc()), known[:2]),
    ]:
        with take(queryset, 2, delete=False) as rows:
            assert keys(rows) == expected


def test_filters_joins_and_columns_are_the_querysets_own(
    letters: list[Letter], django_assert_num_queries: Any
) -> None:
    ada = Writer.objects.create(name="Ada")
    Letter.objects.filter(pk__in=keys(letters[2:])).update(writer=ada)
    Postmark.objects.bulk_create([Postmark(letter=letters[2]) for _ in range(3)])
    queryset = Letter.objects.filter(writer__name="Ada").select_related("writer")
    queryset = queryset.annotate(shout=Upper("text")).select_for_update()
    with (
        take(queryset.prefetch_related("postmark_set"), 2, delete=False) as rows,
        django_assert_num_queries(0),
    ):
        assert keys(rows) == keys(letters[2:4])
        assert (rows[0].writer, rows[0].shout) == (ada, "LETTER 2")  # type: ignore[attr-defined]
        assert len(rows[0].postmark_set.all()) == 3
    with take(Letter.objects.filter(postmark__isnull=False), 2) as rows:
        # Once, although its three postmarks show it three times.
        assert rows == letters[2:3]
        Postmark.objects.all().delete()


# Referring rows, transactions and hooks


@committing
def test_the_databases_own_references_are_kept(letters: list[Letter]) -> None:
    postmark = Postmark.objects.create(letter=letters[0])
    with pytest.raises(IntegrityError), take(Letter.objects.all(), 2):
        pass
    assert Letter.objects.count() == 6
    assert fresh(postmark).letter_id == letters[0].pk


def test_a_block_deletes_as_django_does(letters: list[Letter]) -> None:
    Postmark.objects.create(letter=letters[0])
    with take(Letter.objects.all(), 2, delete=False) as rows:
        for row in rows:
            row.delete()
    assert Letter.objects.count() == 4
    assert not Postmark.objects.exists()


@committing
@pytest.mark.promise(2)
def test_a_callers_transaction_is_refused(letters: list[Letter]) -> None:
    with transaction.atomic(), pytest.raises(RuntimeError, match="ATOMIC_REQUESTS"):
        take(Letter.objects.all(), 1).__enter__()
    with autocommit_off():
        with pytest.raises(RuntimeError):
            take(Letter.objects.all(), 1).__enter__()
        transaction.rollback()
    assert Letter.objects.count() == 6


class InsideATestCase(TestCase):
    """Django's TestCase counts as no transaction."""

    def test_rows_are_taken_and_given_back(self) -> None:
        Letter.objects.bulk_create([Letter(), Letter()])
        with pytest.raises(Broken), take(Letter.objects.all(), 1):
            raise Broken
        with take(Letter.objects.all(), 1):
            pass
        assert Letter.objects.count() == 1


@committing
@pytest.mark.promise(5)
def test_a_transaction_that_the_block_ended_itself_deletes_nothing(letters: list[Letter]) -> None:
    """So it is with a deadlock that the block swallows on MySQL and MariaDB: the locks are gone."""
    with pytest.raises(TaskClaimError, match="nothing was kept"), take(Letter.objects.all(), 2):
        execute("ROLLBACK")
    assert Letter.objects.count() == 6


# Tables that are not Django's, and what is refused


@committing
def test_a_sequence_is_key_enough_if_it_is_unique(lines: list[Line]) -> None:
    """Deleting by a key that two rows share would delete a row that nobody was handed."""
    with take(Line.objects.order_by("-seq"), 2, delete=False) as rows:
        assert keys(rows) == [6, 5]
        Line.objects.filter(pk__in=[5, 6]).update(text="read")
    with take(Line.objects.all(), 2) as rows:
        assert keys(rows) == [1, 2]
    assert Line.objects.filter(text="read").count() == 2
    Line.objects.bulk_create([Line(seq=3, text="the other line 3")])
    for limit in (1, 2):
        with pytest.raises(TaskClaimError, match="not unique"), take(Line.objects.all(), limit):
            pass
    assert Line.objects.count() == 5


@pytest.mark.once
@pytest.mark.parametrize(
    ("rows", "limit", "options", "error"),
    [
        (lambda: Letter, 1, {}, TypeError),
        (lambda: Letter.objects.all()[:3], 1, {}, TypeError),
        (lambda: Letter.objects.all().union(Letter.objects.all()), 1, {}, TypeError),
        (lambda: Letter.objects.annotate(n=django_models.Count("postmark")), 1, {}, TypeError),
        (lambda: Letter.objects.values("id"), 1, {}, TypeError),
        (lambda: Letter.objects, 0, {}, ValueError),
        (lambda: Letter.objects, 1001, {}, ValueError),
        (lambda: Letter.objects, 1, {"idle": 0}, ValueError),
        (lambda: Child.objects, 1, {}, TypeError),
    ],
)
def test_what_cannot_be_taken_is_refused_before_the_block(
    rows: Any, limit: Any, options: Any, error: type[Exception]
) -> None:
    with pytest.raises(error) as refusal:
        take(rows(), limit, **options)
    assert len(str(refusal.value)) > 20
