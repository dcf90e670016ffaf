"""The pages of SQL for three in the morning are true: each statement is run on its database, and does what it says.

The tests name a statement by the heading above it.
"""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_taskclaim.control.models import OperatorAct
from django_taskclaim.db import DatabaseLater
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.querysets.writes import stop_everyone
from django_taskclaim.switch import pause, paused_by
from tests import documents
from tests.commands import completed, failed, in_each_state, live_worker
from tests.factories import make, make_claimed
from tests.querysets.support import clock, facts, set_raw, stored
from tests.testapp.models import Job, Photo

pytestmark = pytest.mark.django_db(databases="__all__")

FOLDER = documents.DOCS / "sql"
SECTION = re.compile(r"^## (.*?)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)

WORKER, OTHER = "worker@web-3:4711#a1b2", "worker@web-3:47110#c3d4"
ONE_EACH = dict.fromkeys(["open", "processing", "complete", "failed", "paused"], 1)


def statements(vendor: str) -> dict[str, str]:
    """Return the statement under each heading of a page."""
    text = (FOLDER / f"{vendor}.md").read_text(encoding="utf-8")
    return {heading: BLOCK.findall(section)[0] for heading, section in SECTION.findall(text)}


def paste(heading: str, **replaced: Any) -> Any:
    """Run a statement as somebody at a prompt would; return the rows shown, else how many were written."""
    text = statements(connection.vendor)[heading].replace("photos_photo", "testapp_photo")
    text = text.replace("photos.photo", "testapp.photo")
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, str(new))
    with connection.cursor() as cursor:
        cursor.execute(text)
        return cursor.fetchall() if cursor.description else cursor.rowcount


def contradictions() -> dict[str, int]:
    """Return how many rows of each state contradict themselves, by the page's own statement."""
    return dict(paste("Which rows contradict themselves?"))


def held_by(holder: str, n: int = 1, **raw: str) -> list[Any]:
    """Return rows that *holder* has claimed, with these columns written past everything."""
    rows = make_claimed(Photo, n)
    for row in rows:
        set_raw(row, "claimed_by", "%s", [holder])
        for role, expression in raw.items():
            set_raw(row, role, expression)
    return rows


def contradictory() -> dict[str, Any]:
    """Return a row in each state, with what a row in that state cannot have."""
    rows = in_each_state(Photo)
    for state, row in rows.items():
        set_raw(row, "expires_at", "NULL" if state == "processing" else clock("+1 HOUR"))
    return rows


def assert_free(row: Any) -> None:
    """The row can be claimed again, and its former holder has lost it."""
    assert row.pk in [one.pk for one in Photo.objects.claim_batch(10)]
    with pytest.raises(ClaimLost):
        row.claim.complete()


# Looking


def test_rows_and_their_holders() -> None:
    assert list(paste("Is it paused?")) == []
    in_each_state(Photo)
    assert dict(paste("How far is it?")) == ONE_EACH
    Photo.objects.all().delete()
    held_by(WORKER, 3)
    held_by("worker@web-3:4711#other")
    held_by("user:17", 2, expires_at=clock("-1 HOUR"))
    shown = {name: (rows, int(left)) for name, rows, left in paste("Who holds what?")}
    assert {name: rows for name, (rows, _) in shown.items()} == {WORKER[:17]: 4, "user:17": 2}
    # PostgreSQL's now() stands still within the transaction of this test, however long that lasts.
    assert shown[WORKER[:17]][1] < 600
    assert shown["user:17"][1] < -3000


def test_rows_that_wait_are_stuck_or_have_failed() -> None:
    make(Photo, 3)
    Photo.objects.release(Photo.objects.claim_batch(2), delay=7200)
    ((waiting, seconds),) = paste("What waits, and for how long?")
    assert waiting == 2
    assert int(seconds) < 8000
    Photo.objects.all().delete()
    (ended,) = held_by(WORKER, expires_at=clock("-1 HOUR"))
    (endless,) = held_by(WORKER, expires_at="NULL")
    held_by(OTHER)
    assert {row[:2] for row in paste("What is stuck?")} == {
        (ended.pk, WORKER),
        (endless.pk, WORKER),
    }
    failed(Photo, 2, ConnectionError("gone"))
    failed(Photo, 1, ValueError("no"))
    shown = [(name, rows, text) for name, rows, _at, text in paste("Which errors are there?")]
    assert shown == [("ConnectionError", 2, "gone"), ("ValueError", 1, "no")]


def test_workers_throttles_and_acts() -> None:
    lag = {"label": "testapp.photo", "source": "lag", "reason": "slow", "until": "2036-01-01"}
    live_worker("testapp.Photo", seen=2, rows_done=7, throttles=[lag])
    live_worker("testapp.Photo", seen=3000)
    first, second = paste("Which workers live?")
    assert (first[0], second[0], first[3]) == ("worker@host:0", "worker@host:1", 7)
    assert int(first[5]) < 3000 <= int(second[5])
    assert "slow" in str(first[-1])
    stop_everyone(Photo, "default", timedelta(hours=1), "the API said 429")
    (stopped,) = paste("Is it throttled?")
    assert stopped[1] == "the API said 429"
    paste("Write down what you did")
    wanted = ("testapp.photo", "reset", 10, "ada", "the image server is back")
    ((_at, *told),) = paste("Who did what lately?")
    assert tuple(told) == wanted
    assert OperatorAct.objects.filter(at__gt=DatabaseLater(timedelta(hours=-1))).exists()


# The switch


def test_stop_and_go_on() -> None:
    make(Photo)
    pause(Photo, reason="before", until=60)
    paste("Stop a model")
    ((scope, _since, until, who, reason),) = paste("Is it paused?")
    assert (scope, who, reason) == ("testapp.photo", "ada", "the image server is down")
    assert until is None
    assert Photo.objects.claim_batch(1) == []
    pause(Job)
    assert paste("Let a model go on") == 1
    assert paused_by(Job) is not None
    assert len(Photo.objects.claim_batch(1)) == 1
    for _ in range(2):
        paste("Stop everything, for an hour")
    make(Photo)
    assert Photo.objects.claim_batch(1) == []
    switch = paused_by(Photo)
    assert switch is not None
    assert switch.until == switch.paused_at + timedelta(hours=1)  # type: ignore[operator]


# Rows


def test_free_rows_that_are_held() -> None:
    (row,), (others,) = held_by(WORKER), held_by(OTHER)
    untouched = stored(others)
    assert paste("Free the rows of a dead worker") == 1
    freed = facts(row)
    assert (freed.status, freed.iteration, freed.attempts) == ("open", 1, 0)
    assert_free(row)
    (row,) = held_by(WORKER, expires_at=clock("-1 HOUR"))
    (person,) = held_by("user:17", expires_at=clock("-1 HOUR"))
    assert paste("Free all rows whose lease has ended") == 2
    assert stored(others) == untouched
    assert [facts(one).attempts for one in (row, person)] == [1, 0]
    assert contradictions() == {}
    assert_free(row)


def test_reset_failed_rows() -> None:
    """A row is as the verb would have left it."""
    failed(Photo, 12, ConnectionError("gone"))
    failed(Photo, 1, ValueError("no"))
    assert paste("Reset ten failed rows") == 10
    assert len(Photo.objects.claim_batch(20)) == 10
    assert {row.error_class for row in Photo.objects.failed()} == {"ConnectionError", "ValueError"}
    Photo.objects.all().delete()
    by_hand, by_the_verb = failed(Photo, 2, ConnectionError("gone"), url="same")
    Photo.objects.filter(pk=by_the_verb.pk).reset()
    assert paste("Reset all that failed like that") == 1
    assert stored(by_hand) | {"Photo.id": 0} == stored(by_the_verb) | {"Photo.id": 0}


def test_set_rows_aside_and_take_one_out() -> None:
    (row,), (other,) = make(Photo, 1, country="NZ"), make(Photo, 1)
    assert paste("Set rows aside") == 1
    assert [facts(one).status for one in (row, other)] == ["paused", "open"]
    assert paste("Let them go on") == 1
    assert (facts(row).status, facts(row).iteration) == ("open", 1)
    Photo.objects.all().delete()
    (row,) = held_by(WORKER)
    assert paste("Take one row out that breaks its worker", **{"id = 17": f"id = {row.pk}"}) == 1
    now = facts(row)
    assert (now.status, now.error_class) == ("failed", "FailedByOperator")
    assert contradictions() == {}
    with pytest.raises(ClaimLost):
        row.claim.complete()


def test_put_contradictory_rows_right_and_delete_old_ones() -> None:
    completed(Photo)
    assert contradictions() == {}
    rows = contradictory()
    assert contradictions() == ONE_EACH
    assert paste("Put open and paused ones right") == 2
    assert contradictions() == dict.fromkeys(["processing", "complete", "failed"], 1)
    assert paste("Put complete and failed ones right") == 2
    assert contradictions() == {"processing": 1}
    assert facts(rows["complete"]).claimed_by is not None
    completed(Photo, 1, "29 DAY")
    assert paste("Delete a thousand rows that are long done") == 1
    assert Photo.objects.count() == 6


@pytest.mark.once
def test_each_statement_is_run_and_stands_on_every_page() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    for vendor in ("mysql", "postgresql", "sqlite"):
        assert [one for one in statements(vendor) if f'"{one}"' not in source] == []
        assert set(statements(vendor)) == set(statements("sqlite"))
