"""Orders to a worker that is dead, where the database refuses half-way: each ends, and says what it came to."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.utils import timezone

from django_taskclaim.control.models import OperatorAct, WorkerOrder
from django_taskclaim.control.orders import OrderError, order
from django_taskclaim.models import WorkerProcess
from django_taskclaim.querysets import operating
from tests.factories import make
from tests.querysets.refusing import FROZEN, SAID, refused
from tests.querysets.support import set_raw
from tests.testapp.models import Job, Photo, UuidKey

pytestmark = pytest.mark.django_db(databases="__all__")

DEAD = "worker@web-1:815"


@pytest.fixture
def held(settings: Any) -> None:
    """Four rows of each model that the dead worker serves, two of which make a chunk."""
    settings.TASKCLAIM = {"CHUNK_SIZE": 2}
    long_ago = timezone.now() - timedelta(hours=1)
    WorkerProcess.objects.create(
        name=DEAD,
        labels="testapp.Photo, testapp.Job, testapp.UuidKey",
        host="web-1",
        pid=815,
        version="1",
        started_at=long_ago,
        seen_at=long_ago,
    )
    for model in (Photo, Job, UuidKey):
        make(model, 4)
        for row in model.objects.claim_batch(4, durable=False):
            set_raw(row, "claimed_by", f"'{DEAD}#1f'")


@pytest.fixture
def refuses(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, int], None]:
    """Return what makes a chunk of a model, by its number, a refusal of the database's."""

    def arrange(model: Any, number: int) -> None:
        usual, chunks = operating._take_from, []

        def write(desk: Any, *claimed: Any) -> int:
            if desk.model is model:
                chunks.append(1)
                if len(chunks) == number:
                    raise OperationalError("the disk is full")
            return usual(desk, *claimed)

        monkeypatch.setattr(operating, "_take_from", write)

    return arrange


@pytest.mark.usefixtures("held")
def test_what_one_model_refuses_keeps_no_other_from_its_rows(
    refuses: Callable[[Any, int], None],
) -> None:
    refuses(Job, 2)
    with pytest.raises(OrderError) as told:
        order(DEAD, "release", by="ada", reason="gone", using="default")
    assert str(told.value) == (
        f"Of the silent worker process {DEAD}, 10 rows were put back, and then refused:"
        " testapp.Job: the disk is full"
    )
    assert (told.value.put_back, list(told.value.errors)) == (10, ["testapp.Job"])
    assert [model.objects.open().count() for model in (Photo, Job, UuidKey)] == [4, 2, 4]
    assert WorkerOrder.objects.get().done_at is not None
    recorded = OperatorAct.objects.order_by("pk").values_list("model", "rows", "key")
    assert list(recorded) == [
        ("testapp.photo", 4, DEAD),
        ("testapp.job", 2, DEAD),
        ("testapp.uuidkey", 4, DEAD),
    ]


@pytest.mark.usefixtures("held")
def test_the_rest_follows_with_the_next_order(refuses: Callable[[Any, int], None]) -> None:
    refuses(Photo, 1)
    with pytest.raises(OrderError):
        order(DEAD, "release", by="ada", using="default")
    assert order(DEAD, "release", by="ada", using="default").put_back == 4
    assert not Photo.objects.filter(status="processing").exists()


@pytest.mark.usefixtures("held")
@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_row_that_nobody_can_write_is_told_and_keeps_no_other() -> None:
    Photo.objects.filter(pk=Photo.objects.order_by("pk")[1].pk).update(note=FROZEN)
    with refused(Photo), pytest.raises(OrderError, match=SAID) as told:
        order(DEAD, "release", by="ada", using="default")
    assert (told.value.put_back, list(told.value.errors)) == (11, ["testapp.Photo"])
