"""What a claim sends where nothing special is asked for, and how often it looks for quarantined rows."""

from typing import Any

import pytest
from django.db import connection

from django_taskclaim.db import dialect_for
from django_taskclaim.fields import QUARANTINED
from tests.factories import make
from tests.testapp.models import Photo

in_one_statement = pytest.mark.skipif(
    not dialect_for(connection).returns_updated, reason="claims by several statements"
)


@in_one_statement
@pytest.mark.django_db(transaction=True)
def test_a_plain_claim_is_one_statement_that_commits_by_itself(
    django_assert_num_queries: Any,
) -> None:
    make(Photo, 9)
    Photo.objects.claim_batch(1)
    with django_assert_num_queries(1) as sent:
        assert len(Photo.objects.claim_batch(5)) == 5
    assert "processing" in sent.captured_queries[0]["sql"]


@pytest.mark.django_db(transaction=True)
def test_one_claim_in_ten_asks_for_a_quarantined_row_and_takes_it_alone() -> None:
    """At any priority, and the others leave it out."""
    make(Photo, 30)
    make(Photo, 2, priority=lambda i: 5 - 10 * i, not_before=QUARANTINED)
    sizes = [len(Photo.objects.claim_batch(2)) for _ in range(12)]
    assert sizes == [2] * 9 + [1, 2, 2]
