"""``claim_batch``: committed before it returns, on the database that was named."""

from typing import Any

import pytest
from django.db import models, transaction

from django_taskclaim.exceptions import ClaimLost
from tests.factories import make
from tests.meanwhile import autocommit_off
from tests.querysets.support import DEADLINE, elsewhere, facts, fresh
from tests.testapp.models import Photo


@pytest.mark.promise(2)
@pytest.mark.usefixtures("strategy")
@pytest.mark.django_db(transaction=True)
class TestDurability:
    def test_a_claim_has_committed_when_it_returns(self) -> None:
        make(Photo, 3)
        Photo.objects.claim_batch(2)
        taken = Photo.objects.filter(status="processing")
        assert elsewhere(taken.count).result(DEADLINE) == 2

    def test_in_a_transaction_it_is_refused_unless_it_may_be_provisional(self) -> None:
        (row,) = make(Photo)
        with transaction.atomic():
            with pytest.raises(RuntimeError):
                Photo.objects.claim_batch(1)
            (held,) = Photo.objects.claim_batch(1, durable=False)
            assert held.claim.check()
            transaction.set_rollback(True)
        assert facts(row).status == "open"
        with pytest.raises(ClaimLost):
            held.claim.complete()
        with transaction.atomic():
            (held,) = Photo.objects.claim_batch(1, durable=False)
        held.claim.complete()
        assert facts(row).status == "complete"

    def test_switched_off_autocommit_counts_as_a_transaction(self) -> None:
        (row,) = make(Photo)
        with autocommit_off():
            with pytest.raises(RuntimeError, match="autocommit"):
                Photo.objects.claim_batch(1)
            assert len(Photo.objects.claim_batch(1, durable=False)) == 1
            transaction.rollback()
        assert facts(row).status == "open"


@pytest.mark.django_db(databases="__all__")
class TestAliases:
    def test_claims_and_verbs_stay_on_the_alias_that_was_named(self) -> None:
        """The same key on another database is another row, a copy that was saved there with ``using``, too."""
        here, there = Photo.objects.create(pk=1), Photo.objects.using("other").create(pk=1)
        (row,) = Photo.objects.using("other").claim_batch(5)
        assert row._state.db == "other"
        row.note = "saved there"
        row.save()
        row.claim.renew()
        row.claim.complete(update_fields=["note"])
        assert facts(here).status == "open"
        assert (facts(there).status, fresh(there).note) == ("complete", "saved there")
        there.delete()
        (row,) = Photo.objects.claim_batch(1)
        row.save(using="other")
        assert row.claim.token
        assert Photo.objects.using("other").get(pk=1).status == "open"

    def test_nothing_is_ever_decided_from_a_replica(self, reads_go_elsewhere: Any) -> None:
        make(Photo, 4)
        assert not Photo.objects.exists()  # the replica has seen nothing yet
        with reads_go_elsewhere() as queries:
            rows = Photo.objects.filter(note="").order_by("-pk").claim_batch(3, claimed_by="user:1")
            row = Photo.objects.with_token(rows[0].pk, rows[0].claim.token)
            assert row.claim.check()
            row.complete(update_fields=["note"])
            rows[1].renew()
            rows[1].save()
            rows[1].fail("no", retry=False)
            rows[2].delete()
            again = Photo.objects.claim_batch(3, claimed_by="user:1", include_held=True)
            models.QuerySet(Photo).using("default").update(expires_at=None)
            assert Photo.objects.filter(note="").release_expired() == len(again) == 1
            assert Photo.objects.filter(country="").reset(complete=True) == 2
            assert Photo.objects.filter(country="").pause_rows() == 3
        assert [query["sql"] for query in queries] == []
