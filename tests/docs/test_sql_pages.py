"""The pages of SQL for three in the morning are true: each statement is run on its database, and does what it says.

A statement finds its test by the heading above it.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_taskclaim.control.models import OperatorAct
from django_taskclaim.dialects import DatabaseLater, DatabaseNow
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.models import Throttle
from django_taskclaim.querysets.repairing import count
from django_taskclaim.switch import pause, paused_by
from tests import documents
from tests.behaviour.support import clock, facts, set_raw, stored
from tests.commands import completed, failed, in_each_state, live_worker
from tests.factories import make
from tests.testapp.models import Job, Photo

pytestmark = pytest.mark.django_db(databases="__all__")

FOLDER = documents.DOCS / "sql"
SECTION = re.compile(r"^## (.*?)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)

WORKER, OTHER = "worker@web-3:4711#a1b2", "worker@web-3:47110#c3d4"
ONE_EACH = dict.fromkeys(["open", "processing", "complete", "failed", "paused"], 1)

TESTS: dict[str, Callable[[], None]] = {}


def statements(vendor: str) -> dict[str, str]:
    """Return the statement under each heading of a page."""
    text = (FOLDER / f"{vendor}.md").read_text(encoding="utf-8")
    return {heading: BLOCK.findall(section)[0] for heading, section in SECTION.findall(text)}


PAGE = statements(connection.vendor)


def under(heading: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register the test of the statement under a heading."""

    def register(test: Callable[[], None]) -> Callable[[], None]:
        TESTS[heading] = test
        return test

    return register


def paste(heading: str, **replaced: Any) -> Any:
    """Run a statement as somebody at a prompt would; return the rows shown, else how many were written."""
    text = PAGE[heading].replace("photos_photo", "testapp_photo")
    text = text.replace("photos.photo", "testapp.photo")
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, str(new))
    with connection.cursor() as cursor:
        cursor.execute(text)
        return cursor.fetchall() if cursor.description else cursor.rowcount


def held_by(holder: str, n: int = 1, **raw: str) -> list[Any]:
    """Return rows that *holder* has claimed, with these columns written past everything."""
    make(Photo, n)
    rows = Photo.objects.claim_batch(n)
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


@under("How far is it?")
def how_far() -> None:
    in_each_state(Photo)
    assert dict(paste("How far is it?")) == ONE_EACH


@under("Who holds what?")
def who_holds() -> None:
    held_by(WORKER, 3)
    held_by("worker@web-3:4711#other")
    held_by("user:17", 2, expires_at=clock("-1 HOUR"))
    shown = {name: (rows, int(left)) for name, rows, left in paste("Who holds what?")}
    assert {name: rows for name, (rows, _) in shown.items()} == {WORKER[:17]: 4, "user:17": 2}
    assert 0 < shown[WORKER[:17]][1] <= 60
    assert shown["user:17"][1] < -3000


@under("Which workers live?")
def workers() -> None:
    live_worker("testapp.Photo", seen=2, rows_done=7)
    live_worker("testapp.Photo", seen=3000)
    first, second = paste("Which workers live?")
    assert (first[0], second[0], first[4]) == ("worker@host:0", "worker@host:1", 7)
    assert int(first[6]) < 3000 <= int(second[6])


@under("Is it paused?")
def is_paused() -> None:
    assert list(paste("Is it paused?")) == []
    pause(Photo, by="ann", reason="deploy")
    pause(Job, by="bob")
    ((scope, _since, until, who, reason),) = paste("Is it paused?")
    assert (scope, until, who, reason) == ("testapp.photo", None, "ann", "deploy")


@under("Is it throttled?")
def is_throttled() -> None:
    common = {"process": "w", "label": "testapp.photo", "reason": "slow", "since_at": DatabaseNow()}
    for source, hours in (("lag", 1), ("old", -1)):
        until = DatabaseLater(timedelta(hours=hours))
        Throttle.objects.create(**common, source=source, until=until)
    assert [row[1] for row in paste("Is it throttled?")] == ["lag"]


@under("What waits, and for how long?")
def what_waits() -> None:
    make(Photo, 3)
    Photo.objects.release(Photo.objects.claim_batch(2), delay=7200)
    ((waiting, seconds),) = paste("What waits, and for how long?")
    assert waiting == 2
    assert 6000 < int(seconds) <= 7200


@under("What is stuck?")
def what_is_stuck() -> None:
    (ended,) = held_by(WORKER, expires_at=clock("-1 HOUR"))
    (endless,) = held_by(WORKER, expires_at="NULL")
    held_by(OTHER)
    assert {row[:2] for row in paste("What is stuck?")} == {
        (ended.pk, WORKER),
        (endless.pk, WORKER),
    }


@under("Which errors are there?")
def which_errors() -> None:
    failed(Photo, 2, ConnectionError("gone"))
    failed(Photo, 1, ValueError("no"))
    shown = [(name, rows, text) for name, rows, _at, text in paste("Which errors are there?")]
    assert shown == [("ConnectionError", 2, "gone"), ("ValueError", 1, "no")]


@under("Which rows contradict themselves?")
def which_contradict() -> None:
    completed(Photo)
    assert list(paste("Which rows contradict themselves?")) == []
    contradictory()
    assert dict(paste("Which rows contradict themselves?")) == ONE_EACH


@under("Who did what lately?")
def who_did_what() -> None:
    act = {"at": DatabaseNow(), "model": "testapp.photo", "act": "reset", "by": "ada"}
    OperatorAct.objects.create(**act, rows=3, reason="mended")
    ((_at, *told),) = paste("Who did what lately?")
    assert told == ["testapp.photo", "reset", 3, "ada", "mended"]


# The switch


@under("Stop a model")
def stop_a_model() -> None:
    make(Photo)
    pause(Photo, reason="before", until=60)
    paste("Stop a model")
    switch = paused_by(Photo)
    assert switch is not None
    assert (switch.by, switch.reason) == ("ada", "the image server is down")
    assert switch.until is None
    assert Photo.objects.claim_batch(1) == []
    assert paused_by(Job) is None


@under("Stop everything, for an hour")
def stop_everything() -> None:
    make(Photo)
    for _ in range(2):
        paste("Stop everything, for an hour")
    assert Photo.objects.claim_batch(1) == []
    switch = paused_by(Job)
    assert switch is not None
    assert switch.until == switch.paused_at + timedelta(hours=1)  # type: ignore[operator]


@under("Let a model go on")
def let_a_model_go_on() -> None:
    make(Photo)
    pause(Photo)
    pause(Job)
    assert paste("Let a model go on") == 1
    assert len(Photo.objects.claim_batch(1)) == 1
    assert paused_by(Job) is not None


# Rows


@under("Free the rows of a dead worker")
def free_a_dead_worker() -> None:
    (row,), (others,) = held_by(WORKER), held_by(OTHER)
    untouched = stored(others)
    assert paste("Free the rows of a dead worker") == 1
    assert stored(others) == untouched
    freed = facts(row)
    assert (freed.status, freed.iteration, freed.attempts) == ("open", 1, 0)
    assert_free(row)


@under("Free all rows whose lease has ended")
def free_the_expired() -> None:
    (row,) = held_by(WORKER, expires_at=clock("-1 HOUR"))
    (person,) = held_by("user:17", expires_at=clock("-1 HOUR"))
    (running,) = held_by(OTHER)
    untouched = stored(running)
    assert paste("Free all rows whose lease has ended") == 2
    assert stored(running) == untouched
    assert [facts(one).attempts for one in (row, person)] == [1, 0]
    assert_free(row)


@under("Reset ten failed rows")
def reset_ten() -> None:
    failed(Photo, 12, ConnectionError("gone"))
    failed(Photo, 1, ValueError("no"))
    assert paste("Reset ten failed rows") == 10
    assert len(Photo.objects.claim_batch(20)) == 10
    assert {row.error_class for row in Photo.objects.failed()} == {"ConnectionError", "ValueError"}


@under("Reset all that failed like that")
def reset_all() -> None:
    """The row is as the verb would have left it."""
    by_hand, by_the_verb = failed(Photo, 2, ConnectionError("gone"), url="same")
    Photo.objects.filter(pk=by_the_verb.pk).reset()
    assert paste("Reset all that failed like that") == 1
    assert stored(by_hand) | {"Photo.id": 0} == stored(by_the_verb) | {"Photo.id": 0}


@under("Set rows aside")
def set_aside() -> None:
    (row,), (other,) = make(Photo, 1, country="NZ"), make(Photo, 1)
    assert paste("Set rows aside") == 1
    assert [facts(one).status for one in (row, other)] == ["paused", "open"]


@under("Let them go on")
def let_them_go_on() -> None:
    (row,) = make(Photo, 1, country="NZ", status="paused")
    assert paste("Let them go on") == 1
    assert (facts(row).status, facts(row).iteration) == ("open", 1)


@under("Take one row out that breaks its worker")
def take_one_out() -> None:
    (row,) = held_by(WORKER)
    assert paste("Take one row out that breaks its worker", **{"id = 17": f"id = {row.pk}"}) == 1
    now = facts(row)
    assert (now.status, now.error_class, now.expires_at) == ("failed", "FailedByOperator", None)
    with pytest.raises(ClaimLost):
        row.claim.complete()


@under("Put open and paused ones right")
def put_waiting_ones_right() -> None:
    contradictory()
    assert paste("Put open and paused ones right") == 2
    assert not {name for name in count(Photo.objects.all()) if name.startswith(("open", "paused"))}


@under("Put complete and failed ones right")
def put_ended_ones_right() -> None:
    rows = contradictory()
    assert paste("Put complete and failed ones right") == 2
    assert not {name for name in count(Photo.objects.all()) if name.startswith("complete")}
    assert facts(rows["complete"]).claimed_by is not None


@under("Delete a thousand rows that are long done")
def delete_old_ones() -> None:
    completed(Photo, 2)
    completed(Photo, 1, "29 DAY")
    in_each_state(Photo)
    assert paste("Delete a thousand rows that are long done") == 2
    assert Photo.objects.count() == 6


@under("Write down what you did")
def write_it_down() -> None:
    paste("Write down what you did")
    (act,) = OperatorAct.objects.all()
    told = (act.model, act.act, act.rows, act.by, act.reason)
    assert told == ("testapp.photo", "reset", 10, "ada", "the image server is back")
    assert OperatorAct.objects.filter(at__gt=DatabaseLater(timedelta(hours=-1))).exists()


@pytest.mark.parametrize("heading", PAGE)
def test_a_statement_does_what_it_says(heading: str) -> None:
    """No row contradicts itself afterwards, unless the test began with such rows."""
    TESTS[heading]()
    if "right" not in heading and "contradict" not in heading and "stuck" not in heading:
        assert count(Photo.objects.all()) == {}


@pytest.mark.once
def test_every_database_has_the_same_statements() -> None:
    for vendor in ("mysql", "postgresql", "sqlite"):
        assert set(statements(vendor)) == set(TESTS)
