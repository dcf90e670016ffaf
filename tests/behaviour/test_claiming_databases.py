"""``claim_batch``: committed before it returns, on the database that was named."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections, models, transaction
from django.dispatch import Signal

from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.signals import (
    rows_completed,
    rows_failed,
    rows_handed_over,
    rows_released,
    rows_renewed,
)
from django_taskclaim.tokens import standing_claim
from tests.behaviour.support import facts, fresh
from tests.factories import make
from tests.testapp.models import Author, OrderedByForeignKey, Photo

pytestmark = pytest.mark.django_db


# Committed before it returns


@pytest.mark.usefixtures("strategy")
class TestDurability:
    pytestmark = pytest.mark.django_db(transaction=True)

    def test_a_claim_has_committed_when_it_returns(self, rival: Any) -> None:
        make(Photo, 3)
        Photo.objects.claim_batch(2)
        with rival.connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM testapp_photo WHERE status = 'processing'")
            assert cursor.fetchone() == (2,)

    def test_inside_a_transaction_it_is_refused_and_claims_nothing(self) -> None:
        make(Photo)
        with transaction.atomic(), pytest.raises(RuntimeError):
            Photo.objects.claim_batch(1)
        assert Photo.objects.open().count() == 1

    def test_without_autocommit_it_is_refused_and_claims_nothing(self) -> None:
        make(Photo)
        connection.set_autocommit(False)
        try:
            with pytest.raises(RuntimeError, match="autocommit"):
                Photo.objects.claim_batch(1)
            transaction.rollback()
        finally:
            connection.set_autocommit(True)
        assert Photo.objects.open().count() == 1

    def test_a_provisional_claim_goes_with_the_callers_transaction(self) -> None:
        make(Photo)
        with transaction.atomic():
            (row,) = Photo.objects.claim_batch(1, durable=False)
            assert row.claim.check()
            transaction.set_rollback(True)
        assert facts(row).status == "open"
        with pytest.raises(ClaimLost):
            row.claim.complete()

    def test_a_provisional_claim_stands_once_the_caller_commits(self) -> None:
        make(Photo)
        with transaction.atomic():
            (row,) = Photo.objects.claim_batch(1, durable=False)
        row.claim.complete()
        assert facts(row).status == "complete"

    def test_a_provisional_claim_works_without_autocommit(self) -> None:
        make(Photo)
        connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
        try:
            (row,) = Photo.objects.claim_batch(1, durable=False)
            transaction.rollback()
        finally:
            connection.set_autocommit(True)
        assert facts(row).status == "open"


def test_in_a_testcase_claims_work_as_they_are() -> None:
    """Every test without ``transaction=True`` runs so; this one proves that there is a transaction."""
    make(Photo)
    assert connection.in_atomic_block
    assert len(Photo.objects.claim_batch(1)) == 1


# Which database


@pytest.mark.django_db(databases="__all__")
class TestAliases:
    def test_claims_and_verbs_stay_on_the_alias_that_was_named(self) -> None:
        here, there = Photo.objects.create(), Photo.objects.using("other").create()
        (row,) = Photo.objects.using("other").claim_batch(5)
        assert (row.pk, row._state.db) == (there.pk, "other")
        row.note = "saved there"
        row.save()
        row.claim.renew()
        row.claim.complete(update_fields=["note"])
        assert facts(here).status == "open"
        assert facts(there).status == "complete"
        assert fresh(there).note == "saved there"

    def test_rows_of_two_databases_may_be_given_to_one_verb(self) -> None:
        Photo.objects.create()
        Photo.objects.using("other").create()
        rows = [*Photo.objects.claim_batch(1), *Photo.objects.using("other").claim_batch(1)]
        assert Photo.objects.renew(rows) == 2
        assert Photo.objects.complete(rows) == 2

    @pytest.mark.parametrize(
        ("verb", "signal", "status"),
        [
            ("complete", rows_completed, "complete"),
            ("fail", rows_failed, "open"),
            ("release", rows_released, "open"),
            ("hand_over", rows_handed_over, "processing"),
            ("renew", rows_renewed, "processing"),
        ],
    )
    @pytest.mark.django_db(transaction=True, databases="__all__")
    def test_what_the_first_database_has_written_counts_where_the_second_fails(
        self, verb: str, signal: Signal, status: str
    ) -> None:
        rows = [make(Photo)[0], Photo.objects.using("other").create()]
        rows = [*Photo.objects.using("other").claim_batch(1), *Photo.objects.claim_batch(1)]
        there, here = rows
        more = {
            "fail": {"error": "no"},
            "hand_over": {"to": "user:2"},
            "renew": {"lease": 3600},
        }.get(verb, {})
        heard: list[Any] = []
        signal.connect(hear := lambda rows, **facts: heard.extend(rows))
        try:
            with connections["other"].execute_wrapper(broken), pytest.raises(DatabaseError):
                getattr(Photo.objects, verb)(rows, **more)
        finally:
            signal.disconnect(hear)
        assert heard == [here]
        assert (here.status, facts(here).status) == (status, status)
        if verb == "renew":
            assert here.claim.remaining() > timedelta(minutes=50)
        else:
            assert not is_held(here)
        assert (there.status, is_held(there)) == ("processing", True)

    def test_the_same_key_on_another_database_is_another_row(self) -> None:
        """A save with ``using=`` copies the row there; the claim is one of a row here."""
        Photo.objects.create(pk=1)
        (row,) = Photo.objects.claim_batch(1)
        row.save(using="other")
        assert row.claim.token
        assert Photo.objects.using("other").get(pk=1).status == "open"

    @pytest.mark.parametrize("verb", ["with_token", "claim", "reaper", "people", "operator"])
    def test_nothing_is_ever_decided_from_a_replica(
        self, verb: str, reads_go_elsewhere: Any
    ) -> None:
        make(Photo, 4)
        assert not Photo.objects.exists()  # the replica has seen nothing yet
        with reads_go_elsewhere() as queries:
            rows = Photo.objects.filter(note="").order_by("-pk").claim_batch(2, claimed_by="user:1")
            assert len(rows) == 2
            if verb == "with_token":
                row = Photo.objects.with_token(rows[0].pk, rows[0].claim.token)
                assert row.claim.check()
                row.complete(update_fields=["note"])
            elif verb == "claim":
                rows[0].renew()
                rows[0].save()
                rows[0].fail("no")
                rows[1].delete()
            elif verb == "reaper":
                models.QuerySet(Photo).using("default").update(expires_at=None)
                assert Photo.objects.filter(note="").release_expired() == 2
            elif verb == "people":
                again = Photo.objects.claim_batch(3, claimed_by="user:1", include_held=True)
                assert len(again) == 3
            else:
                assert Photo.objects.filter(country="").reset(running=True) == 2
                assert Photo.objects.filter(country="").pause_rows() == 4
        assert [query["sql"] for query in queries] == []


def broken(execute: Any, *statement: Any) -> Any:
    raise DatabaseError("the disk is full")


def is_held(row: Any) -> bool:
    return standing_claim(row) is not None


def test_authors_are_left_alone() -> None:
    """The joins of a claim read; they neither lock nor write what they join to."""
    rows = make(OrderedByForeignKey, 3)
    names_before = list(Author.objects.order_by("pk").values_list("name", flat=True))
    OrderedByForeignKey.objects.filter(author__name__startswith="author").claim_batch(3)
    assert list(Author.objects.order_by("pk").values_list("name", flat=True)) == names_before
    assert rows
