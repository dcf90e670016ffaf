"""Each lost claim is logged once: by the verb that noticed, or by the worker that holds the row and knows more."""

from typing import Any

import pytest

from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.worker import records
from tests.behaviour.support import lose
from tests.factories import make
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db


def claimed(n: int = 1) -> list[Any]:
    make(Photo, n)
    rows: list[Any] = Photo.objects.claim_batch(n)
    return rows


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, list[str]]]:
    return [
        (record.event, record.keys)  # type: ignore[attr-defined]
        for record in caplog.records
        if getattr(record, "event", "") in ("lost", "raised")
    ]


def test_a_verb_logs_a_loss_once_however_often_it_is_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (row,) = claimed()
    lose(row)
    for verb in (row.complete, row.release, lambda: row.fail("x")):
        with pytest.raises(ClaimLost):
            verb()
    assert events(caplog) == [("lost", [str(row.pk)])]


def test_a_verb_names_those_rows_that_were_not_named_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rows = claimed(3)
    for row in rows[:2]:
        Photo.objects.filter(pk=row.pk).reset(running=True)
    with pytest.raises(ClaimLost):
        rows[0].complete()
    with pytest.raises(ClaimLost) as lost:
        Photo.objects.complete(rows)
    assert lost.value.lost == rows[:2]
    assert events(caplog) == [("lost", [str(rows[0].pk)]), ("lost", [str(rows[1].pk)])]


def test_a_row_that_carries_no_claim_is_logged_whenever_it_is_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """That is a mistake in the code, and each is worth a line."""
    (row,) = claimed()
    row.complete()
    for _ in range(2):
        with pytest.raises(ClaimLost):
            row.complete()
    assert len(events(caplog)) == 2


def test_a_worker_logs_the_loss_itself_with_what_the_handler_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (row,) = claimed()
    records.watch([row])
    lose(row)
    with pytest.raises(ClaimLost):
        row.fail("the handler's own verb")
    assert events(caplog) == []
    records.lost(row, "noticed when its result was written", error=ValueError("no picture"))
    records.lost(row, "noticed again")
    record = caplog.records[-1]
    assert events(caplog) == [("lost", [str(row.pk)])]
    assert "noticed when its result was written; its handler raised ValueError: no picture" in (
        record.getMessage()
    )
    assert (record.error, record.told) == ("ValueError", "no picture")  # type: ignore[attr-defined]
    assert record.exc_info is not None


def test_what_a_handler_raises_after_its_loss_was_logged_is_logged_by_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (row,) = claimed()
    records.watch([row])
    records.lost(row, "could not be renewed in time")
    records.lost(row, "noticed when its result was written", error=ValueError("too late"))
    assert [event for event, _ in events(caplog)] == ["lost", "raised"]
    assert "too late" in caplog.records[1].getMessage()


def test_the_loss_that_a_handler_itself_noticed_is_nothing_more_to_tell(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (row,) = claimed()
    records.watch([row])
    records.lost(row, "could not be renewed in time")
    records.lost(row, "noticed when its result was written", error=ClaimLost([row]))
    assert [event for event, _ in events(caplog)] == ["lost"]
