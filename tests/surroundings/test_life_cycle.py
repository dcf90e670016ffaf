"""What surrounds a table changes nothing of its claims.

The rest of the behaviour suite runs over the same models with ``-m long``.
"""

from typing import Any

import pytest
from django.apps import apps
from django.db import connection, transaction

from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.indexes import ClaimIndex
from django_taskclaim.taking import take
from tests.doctor.support import doctor_text, problems
from tests.factories import make
from tests.querysets.support import expire

if not apps.is_installed("tests.surroundings.app"):
    pytest.skip("needs partitions, and triggers in PL/pgSQL", allow_module_level=True)

from tests.surroundings.app.models import SURROUNDED, Elsewhere


@pytest.mark.parametrize("model", SURROUNDED, ids=lambda model: model.__name__)
@pytest.mark.promise(2, 3)
@pytest.mark.django_db
def test_the_life_of_rows(model: Any) -> None:
    """Claimed across partitions in order and never too many; renewed, given back, failed, reaped, fenced, reset."""
    made = make(model, 10)
    rows = model.objects.claim_batch(8)
    assert [row.pk for row in rows] == [row.pk for row in made[:8]]
    assert model.objects.renew(rows) == 8
    done, given, failed, late, *others = rows
    done.counter = 1
    done.claim.complete(update_fields=["counter"])
    given.claim.release()
    failed.claim.fail("no", retry=False)
    expire(late)
    with pytest.raises(ClaimLost):
        late.claim.complete()
    late.note = "too late"
    with pytest.raises(ClaimLost), transaction.atomic():
        late.save()
    for row in others:
        row.counter = row.pk
    assert model.objects.complete(others, update_fields=["counter"]) == 4
    progress = model.objects.progress()
    assert (progress.complete, progress.failed, progress.open) == (5, 1, 4)
    assert model.objects.reset() == 1
    assert model.objects.get(pk=others[0].pk).counter == others[0].pk
    assert not model.objects.filter(note="too late").exists()


@pytest.mark.django_db
def test_rows_of_another_schema_are_taken_and_the_doctor_finds_their_index() -> None:
    schema, _, _ = Elsewhere._meta.db_table.partition(".")
    (index,) = (one for one in Elsewhere._meta.indexes if isinstance(one, ClaimIndex))
    made = make(Elsewhere, 1200)
    with take(Elsewhere.objects.all(), 2) as rows:
        assert [row.pk for row in rows] == [row.pk for row in made[:2]]
    assert Elsewhere.objects.count() == 1198
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {Elsewhere._meta.db_table}")
        assert problems(Elsewhere) == []
        cursor.execute(f"DROP INDEX {schema}.{index.name}")
    said = doctor_text(Elsewhere)
    assert "has no index on status, priority, not_before and id" in said
