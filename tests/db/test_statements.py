"""What verbs send where nothing special is asked for, and how often a claim looks for quarantined rows."""

from typing import Any

import pytest
from django.db import connection, models
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_taskclaim.db import dialect_for
from django_taskclaim.fields import QUARANTINED
from tests.factories import make
from tests.testapp.models import CompositeKey, Photo

pytestmark = pytest.mark.django_db(transaction=True)

in_one_statement = pytest.mark.skipif(
    not dialect_for(connection).returns_updated, reason="claims by several statements"
)


@in_one_statement
def test_a_plain_claim_is_one_statement_that_commits_by_itself(
    django_assert_num_queries: Any,
) -> None:
    make(Photo, 9)
    Photo.objects.claim_batch(1)
    with django_assert_num_queries(1) as sent:
        assert len(Photo.objects.claim_batch(5)) == 5
    assert "processing" in sent.captured_queries[0]["sql"]


@pytest.mark.parametrize("size", [1, 500])
def test_rows_of_many_claims_are_written_by_one_statement(size: int) -> None:
    """The condition on keys, or on tokens, is an OR of hundreds of terms, which some databases limit."""
    rows = [CompositeKey(tenant=n % 7, number=n) for n in range(500)]
    models.QuerySet(CompositeKey).bulk_create(rows)
    held = [row for _ in range(500 // size) for row in CompositeKey.objects.claim_batch(size)]
    for row in held:
        row.counter, row.note = row.number, str(row.number)
    with CaptureQueriesContext(connection) as sent:
        assert CompositeKey.objects.renew(held) == 500
        assert CompositeKey.objects.complete(held, update_fields=["counter", "note"]) == 500
    takes_all = (connection.features.max_query_params or 10_000) > 5_000
    assert len(sent) == 2 or not (takes_all and dialect_for(connection).returns_updated)
    assert not CompositeKey.objects.exclude(counter=F("number")).exists()


@pytest.mark.parametrize("priorities", [1, 120])
def test_one_claim_in_ten_asks_for_a_quarantined_row_and_takes_it_alone(priorities: int) -> None:
    """At any priority, and the others leave it out."""
    make(Photo, 120, priority=lambda i: i % priorities)
    make(Photo, 2, priority=lambda i: 200 - 205 * i, not_before=QUARANTINED)
    sizes = [len(Photo.objects.claim_batch(2)) for _ in range(12)]
    assert sizes == [2] * 9 + [1, 2, 2]
