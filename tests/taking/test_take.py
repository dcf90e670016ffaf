"""``take``: rows without claim columns, handed to one block at a time and gone when it ends well."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import (
    IntegrityError,
    NotSupportedError,
    OperationalError,
    connection,
    models,
    transaction,
)
from django.db.models import F
from django.db.models.functions import Upper
from django.db.models.signals import post_delete
from django.test import TestCase, override_settings

from django_taskclaim import take
from django_taskclaim.exceptions import TaskClaimError
from tests.behaviour.support import execute, fresh
from tests.factories import SHAPES, make
from tests.taking.conftest import table_of_lines
from tests.taking.models import Letter, Line, Postmark, Writer
from tests.testapp.models import Child, ChildOwnsClaim, CompositeKey, OrderedByForeignKey

pytestmark = pytest.mark.django_db

#: For what only a transaction that really commits, or a table of its own, can show.
committing = pytest.mark.django_db(transaction=True)

IN_SEVERAL_TABLES = [Child, ChildOwnsClaim]


def keys_of(rows: Any) -> list[Any]:
    return [row.pk for row in rows]


class Broken(Exception):
    """What a block of these tests ends with."""


# What becomes of the rows


@pytest.mark.parametrize("model", SHAPES, ids=lambda model: model.__name__[:20])
def test_rows_go_when_the_block_ends_well(model: Any) -> None:
    make(model, 5)
    in_order = keys_of(model._base_manager.order_by("pk"))
    with take(model._base_manager.all(), 3, cascade=model in IN_SEVERAL_TABLES) as rows:
        assert keys_of(rows) == in_order[:3]
        assert model._base_manager.count() == 5
    assert keys_of(model._base_manager.order_by("pk")) == in_order[3:]


@pytest.mark.parametrize("model", SHAPES, ids=lambda model: model.__name__[:20])
def test_rows_are_updated_instead(model: Any) -> None:
    make(model, 5)
    with take(model._base_manager.all(), 3, update={"note": "sent"}):
        pass
    notes = [row.note for row in model._base_manager.order_by("pk")]
    assert notes == ["sent"] * 3 + [""] * 2


def test_an_update_may_be_computed(letters: list[Letter]) -> None:
    with take(Letter.objects.all(), 2, update={"tries": F("tries") + 1, "sent": True}) as rows:
        Letter.objects.filter(pk=rows[0].pk).update(tries=10)
    assert [fresh(row).tries for row in rows] == [11, 1]
    assert Letter.objects.filter(sent=True).count() == 2


def test_an_empty_update_leaves_the_rows_as_the_block_left_them(letters: list[Letter]) -> None:
    with take(Letter.objects.all(), 3, update={}) as rows:
        rows[0].text = "mine"
        rows[0].save()
        rows[1].delete()
    assert Letter.objects.count() == 5
    assert fresh(rows[0]).text == "mine"


@committing
def test_a_block_that_raises_leaves_everything_as_it_was(letters: list[Letter]) -> None:
    def block(rows: list[Letter]) -> None:
        rows[0].delete()
        Writer.objects.create(name="Ada")
        raise Broken

    with pytest.raises(Broken), take(Letter.objects.all(), 3) as rows:
        block(rows)
    assert Letter.objects.count() == 6
    assert not Writer.objects.exists()
    with take(Letter.objects.all(), 6) as rows:
        assert len(rows) == 6


def test_what_the_block_has_done_to_its_rows_is_fine(letters: list[Letter]) -> None:
    with take(Letter.objects.all(), 3) as rows:
        rows[0].delete()
        rows[1].text = "changed"
        rows[1].save()
    assert Letter.objects.count() == 3
    with take(Letter.objects.all(), 3, update={"sent": True}) as rows:
        rows[0].delete()
    assert Letter.objects.filter(sent=True).count() == 2


def test_nothing_left_is_an_empty_list() -> None:
    with take(Letter.objects.all(), 3) as rows:
        assert rows == []
        Writer.objects.create(name="Ada")
    assert Writer.objects.exists()
    with take(Letter.objects.none(), 3) as rows:
        assert rows == []


def test_as_many_as_one_statement_takes() -> None:
    CompositeKey.objects.bulk_create([CompositeKey(tenant=1, number=n) for n in range(1001)])
    with take(CompositeKey.objects.all(), 1000) as rows:
        assert len(rows) == 1000
    assert CompositeKey.objects.get().number == 1000


# Which rows


def test_the_order_asked_for_is_kept(letters: list[Letter]) -> None:
    keys = keys_of(letters)
    for queryset, expected in [
        (Letter.objects.all(), keys[:2]),  # Meta.ordering says otherwise
        (Letter.objects.order_by("-id"), keys[:-3:-1]),
        (Letter.objects.order_by("id").reverse(), keys[:-3:-1]),
        (Letter.objects.order_by("sent", F("text").desc()), keys[:-3:-1]),
        (Letter.objects.order_by(Upper("text").asc()), keys[:2]),
        (Letter.objects, keys[:2]),
    ]:
        with take(queryset, 2, update={}) as rows:
            assert keys_of(rows) == expected


def test_the_order_may_follow_a_link() -> None:
    rows = make(OrderedByForeignKey, 6)
    expected = sorted((row for row in rows if row.author), key=lambda row: row.author.name)
    queryset = OrderedByForeignKey.objects.order_by(F("author__name").asc(nulls_last=True))
    with take(queryset, 3) as taken:
        assert keys_of(taken) == keys_of(expected)[:3]


def test_filters_joins_and_columns_are_the_querysets_own(
    letters: list[Letter], django_assert_num_queries: Any
) -> None:
    ada = Writer.objects.create(name="Ada")
    Letter.objects.filter(pk__in=keys_of(letters[2:])).update(writer=ada)
    Postmark.objects.bulk_create([Postmark(letter=letters[2]) for _ in range(3)])
    queryset = Letter.objects.filter(writer__name="Ada").select_related("writer")
    queryset = (
        queryset.annotate(shout=Upper("text")).defer("tries").prefetch_related("postmark_set")
    )
    with take(queryset, 2, update={}) as rows, django_assert_num_queries(0):
        assert keys_of(rows) == keys_of(letters[2:4])
        assert (rows[0].writer, rows[0].shout) == (ada, "LETTER 2")  # type: ignore[attr-defined]
        assert len(rows[0].postmark_set.all()) == 3
        assert "tries" in rows[0].get_deferred_fields()
    with take(Letter.objects.filter(postmark__isnull=False), 2) as rows:
        # Once, although its three postmarks show it three times.
        assert rows == letters[2:3]
        Postmark.objects.all().delete()


def test_a_lock_that_the_queryset_asks_for_is_not_taken(letters: list[Letter]) -> None:
    queryset = Letter.objects.filter(writer=None).select_for_update()
    with take(queryset.select_related("writer"), 2) as rows:
        assert len(rows) == 2
    assert queryset.query.select_for_update


# What does not go well


@committing
def test_the_databases_own_references_are_minded(letters: list[Letter]) -> None:
    postmark = Postmark.objects.create(letter=letters[0])
    with pytest.raises(IntegrityError), take(Letter.objects.all(), 2):
        pass
    assert Letter.objects.count() == 6
    assert fresh(postmark).letter_id == letters[0].pk


def test_djangos_cascade_is_there_for_the_asking(letters: list[Letter]) -> None:
    Postmark.objects.create(letter=letters[0])
    with heard(Letter) as gone:
        with take(Letter.objects.exclude(pk=letters[0].pk), 1):
            pass
        assert gone == []
        with take(Letter.objects.all(), 2, cascade=True) as rows:
            pass
    assert sorted(gone) == keys_of(rows)
    assert not Postmark.objects.exists()


@contextmanager
def heard(model: type[models.Model]) -> Iterator[list[Any]]:
    """Collect the keys of rows that Django says it has deleted."""
    gone: list[Any] = []

    def note(instance: Any, **kwargs: Any) -> None:
        gone.append(instance.pk)

    post_delete.connect(note, sender=model)
    try:
        yield gone
    finally:
        post_delete.disconnect(note, sender=model)


def test_an_order_by_what_is_computed_is_refused(letters: list[Letter]) -> None:
    queryset = Letter.objects.annotate(shout=Upper("text")).order_by("shout")
    with pytest.raises(TypeError, match="shout"), take(queryset, 1):
        pytest.fail("handed over")  # pragma: no cover
    assert Letter.objects.count() == 6


@committing
def test_a_callers_transaction_is_refused(letters: list[Letter]) -> None:
    with (
        transaction.atomic(),
        pytest.raises(RuntimeError, match="ATOMIC_REQUESTS"),
        take(Letter.objects.all(), 1),
    ):
        pytest.fail("handed over")  # pragma: no cover
    connection.set_autocommit(False)
    try:
        with pytest.raises(RuntimeError), take(Letter.objects.all(), 1):
            pytest.fail("handed over")  # pragma: no cover
    finally:
        connection.set_autocommit(True)
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
def test_a_transaction_that_the_block_ended_itself_deletes_nothing(letters: list[Letter]) -> None:
    """A deadlock that the block swallows does the same on MySQL and MariaDB: the locks are gone before the end."""
    with pytest.raises(TaskClaimError, match="nothing was kept"), take(Letter.objects.all(), 2):
        execute("ROLLBACK")
    assert Letter.objects.count() == 6


@committing
def test_a_hook_that_raises_after_the_commit_is_just_that(letters: list[Letter]) -> None:
    def broken() -> None:
        raise OperationalError("the mail server is away")

    with pytest.raises(OperationalError, match="mail"), take(Letter.objects.all(), 2):
        transaction.on_commit(broken)
    assert Letter.objects.count() == 4


# Tables that are not Django's


@committing
def test_a_sequence_is_key_enough(lines: list[Line]) -> None:
    with take(Line.objects.all(), 2) as rows:
        assert keys_of(rows) == [1, 2]
    with take(Line.objects.order_by("-seq"), 2, update={"text": "read"}) as rows:
        assert keys_of(rows) == [6, 5]
    assert list(Line.objects.order_by("seq").values_list("text", flat=True)) == [
        "line 3",
        "line 4",
        "read",
        "read",
    ]


@committing
def test_a_key_that_is_none_loses_no_row(lines: list[Line]) -> None:
    """Two lines of the same number: deleting by it would take a row along that nobody was handed."""
    Line.objects.bulk_create([Line(seq=1, text="the other line 1")])
    with pytest.raises(TaskClaimError, match="not unique"), take(Line.objects.all(), 1):
        pass
    assert Line.objects.count() == 7


@committing
@pytest.mark.skipif(
    connection.vendor != "mysql", reason="only where row locks are found through an index"
)
def test_a_key_without_an_index_is_refused() -> None:
    with (
        table_of_lines("seq bigint, text varchar(50)"),
        pytest.raises(NotSupportedError, match="no index on seq"),
        take(Line.objects.all(), 1),
    ):
        pytest.fail("handed over")  # pragma: no cover


def test_a_database_that_cannot_pass_over_locked_rows_is_refused(
    letters: list[Letter], monkeypatch: pytest.MonkeyPatch
) -> None:
    if connection.vendor == "sqlite":
        monkeypatch.setattr(connection, "vendor", "oracle")
    elif connection.vendor == "mysql":
        monkeypatch.setattr(connection.features, "has_select_for_update_skip_locked", False)
    else:
        pytest.skip("needs a database that may lack has_select_for_update_skip_locked")
    with pytest.raises(NotSupportedError, match="SKIP LOCKED"), take(Letter.objects.all(), 1):
        pytest.fail("handed over")  # pragma: no cover


# The session


def idle_timeout() -> int:
    """Return for how many seconds this session's transaction may be idle; 0 is for ever."""
    question = {
        "PostgreSQL": "SELECT setting::int / 1000 FROM pg_settings"
        " WHERE name = 'idle_in_transaction_session_timeout'",
        "MariaDB": "SELECT @@SESSION.idle_transaction_timeout",
        "MySQL": "SELECT @@SESSION.wait_timeout",
    }[connection.display_name]
    with connection.cursor() as cursor:
        cursor.execute(question)
        return int(cursor.fetchone()[0])


needs_sessions = pytest.mark.skipif(
    not connection.features.has_select_for_update, reason="the database has no sessions to end"
)


@committing
@needs_sessions
@override_settings(TASKCLAIM={"LEASE": 30})
def test_the_server_is_told_how_long_the_block_may_be_silent(letters: list[Letter]) -> None:
    usual = idle_timeout()
    with take(Letter.objects.all(), 1):
        assert idle_timeout() == 60
    assert idle_timeout() == usual
    with take(Letter.objects.all(), 1, idle=timedelta(seconds=45)):
        assert idle_timeout() == 45
    with pytest.raises(Broken), take(Letter.objects.all(), 1, idle=45):
        raise Broken
    assert idle_timeout() == usual


@committing
@needs_sessions
def test_a_shorter_bound_of_the_session_stands(letters: list[Letter]) -> None:
    setting = {
        "PostgreSQL": "idle_in_transaction_session_timeout = '30s'",
        "MariaDB": "SESSION idle_transaction_timeout = 30",
        "MySQL": "SESSION wait_timeout = 30",
    }[connection.display_name]
    execute(f"SET {setting}")
    try:
        with take(Letter.objects.all(), 1, idle=60):
            assert idle_timeout() == 30
        assert idle_timeout() == 30
    finally:
        connection.close()
