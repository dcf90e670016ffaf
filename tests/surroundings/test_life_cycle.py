"""What surrounds a table changes nothing of its claims: the life of a row, and workers that are killed.

The rest of the behaviour suite runs over the same models with ``-m long``.
"""

import signal
from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, transaction

from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.indexes import ClaimIndex
from django_taskclaim.taking import take
from tests.doctor.support import problems, told
from tests.factories import make
from tests.querysets.support import clock, set_raw
from tests.worker.conftest import Worker, start_worker, wait_until

__all__ = ["start_worker"]

if not apps.is_installed("tests.surroundings.app"):
    pytest.skip(
        "needs partitions by range and hash, and triggers in PL/pgSQL", allow_module_level=True
    )

from tests.surroundings.app.models import SURROUNDED, Elsewhere

surrounded = pytest.mark.parametrize("model", SURROUNDED, ids=lambda model: model.__name__)


@surrounded
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
    set_raw(late, "expires_at", clock("-1 HOUR"))
    assert model.objects.release_expired() == 1
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
def test_the_doctor_finds_a_table_of_another_schema_and_its_index() -> None:
    schema, _, _ = Elsewhere._meta.db_table.partition(".")
    (index,) = (one for one in Elsewhere._meta.indexes if isinstance(one, ClaimIndex))
    make(Elsewhere, 1200)
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {Elsewhere._meta.db_table}")
        assert problems(Elsewhere) == []
        cursor.execute(f"DROP INDEX {schema}.{index.name}")
    said = told(Elsewhere)
    assert "has no index on status, priority, not_before and id" in said
    assert "reads the whole table" in said


@pytest.mark.django_db
def test_rows_of_another_schema_are_taken() -> None:
    made = make(Elsewhere, 4)
    with take(Elsewhere.objects.all(), 2) as rows:
        assert [row.pk for row in rows] == [row.pk for row in made[:2]]
    assert Elsewhere.objects.count() == 2


@surrounded
@pytest.mark.long
@pytest.mark.processes
@pytest.mark.django_db(transaction=True, databases="__all__")
def test_workers_that_are_killed(start_worker: Callable[..., Worker], model: Any) -> None:
    make(model, 200)
    words = ("--processes", "2", "--lease", "2", "--batch-size", "5")
    worker = start_worker(*words, model=model._meta.label, TASKCLAIM_TEST_SURROUNDED="1")
    wait_until(lambda: model.objects.filter(status="complete").count() > 20)
    worker.signal(signal.SIGKILL)
    drain = start_worker("--drain", *words, model=model._meta.label, TASKCLAIM_TEST_SURROUNDED="1")
    assert drain.wait() == 0
    assert set(model.objects.values_list("status", "counter")) == {("complete", 1)}
