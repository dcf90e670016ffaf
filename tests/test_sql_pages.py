"""The pages of SQL for three in the morning are true: each statement is run on its database, and does what it says.

A statement finds its test by the heading above it, so one that is added wants a test of its own.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_taskclaim.control.models import OperatorAct
from django_taskclaim.dialects import DatabaseLater, DatabaseNow
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.models import Throttle, WorkerProcess
from django_taskclaim.querysets.repairing import count
from django_taskclaim.switch import pause, paused_by
from tests.behaviour.support import clock, facts, set_raw, stored
from tests.behaviour.test_operators import in_each_state
from tests.behaviour.test_pruning import completed
from tests.factories import make
from tests.testapp.models import Job, Photo

pytestmark = pytest.mark.django_db(databases="__all__")

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "sql"
SECTION = re.compile(r"^## (.*?)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)

WORKER, OTHER = "worker@web-3:4711#a1b2", "worker@web-3:47110#c3d4"


def statements(page: Path) -> dict[str, str]:
    """Return the statement under each heading of a page."""
    found = {}
    for heading, text in SECTION.findall(page.read_text(encoding="utf-8")):
        (found[heading],) = BLOCK.findall(text)
    return found


PAGE = statements(FOLDER / f"{connection.vendor}.md")


def paste(heading: str, **replaced: Any) -> Any:
    """Run a statement as somebody at a prompt would; returns the rows shown, else how many were written."""
    text = PAGE[heading].replace("photos_photo", "testapp_photo")
    text = text.replace("photos.photo", "testapp.photo")
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, str(new))
    with connection.cursor() as cursor:
        cursor.execute(text)
        return cursor.fetchall() if cursor.description else cursor.rowcount


def held_by(holder: str, n: int = 1, **values: Any) -> list[Any]:
    """Return rows that *holder* has claimed."""
    make(Photo, n, **values)
    rows = Photo.objects.claim_batch(n)
    for row in rows:
        set_raw(row, "claimed_by", "%s", [holder])
    return rows


def failed(n: int, error: Exception, **values: Any) -> list[Any]:
    make(Photo, n, **values)
    rows = Photo.objects.claim_batch(n)
    Photo.objects.fail(rows, error, retry=False)
    return rows


def without_key(row: Any) -> dict[str, Any]:
    return {name: value for name, value in stored(row).items() if name != "Photo.id"}


def how_far() -> None:
    in_each_state(Photo)
    shown = dict(paste("How far is it?"))
    assert shown == dict.fromkeys(["open", "processing", "complete", "failed", "paused"], 1)


def who_holds() -> None:
    held_by(WORKER, 3)
    held_by("worker@web-3:4711#other")
    held_by("user:17", 2)
    for row in Photo.objects.filter(claimed_by="user:17"):
        set_raw(row, "expires_at", clock("-1 HOUR"))
    shown = {name: (rows, int(left)) for name, rows, left in paste("Who holds what?")}
    assert {name: rows for name, (rows, _) in shown.items()} == {
        "worker@web-3:4711": 4,
        "user:17": 2,
    }
    assert 0 < shown["worker@web-3:4711"][1] <= 60
    assert -3660 < shown["user:17"][1] <= -3500


def workers() -> None:
    for name, age in (("v", 2), ("w", 300)):
        WorkerProcess.objects.create(
            name=name,
            labels="testapp.Photo",
            host="h",
            pid=1,
            version="1",
            started_at=DatabaseLater(timedelta(hours=-1)),
            seen_at=DatabaseLater(timedelta(seconds=-age)),
            rows_done=7,
        )
    (first, second) = paste("Which workers live?")
    assert (first[0], second[0], first[4]) == ("v", "w", 7)
    assert int(first[6]) < 30
    assert 300 <= int(second[6]) < 330


def is_paused() -> None:
    assert list(paste("Is it paused?")) == []
    pause(Photo, by="ann", reason="deploy")
    pause(Job, by="bob")
    ((scope, _since, until, who, reason),) = paste("Is it paused?")
    assert (scope, until, who, reason) == ("testapp.photo", None, "ann", "deploy")
    pause(Photo, until=3600)
    assert len(paste("Is it paused?")) == 1


def is_throttled() -> None:
    for source, hours in (("lag", 1), ("old", -1)):
        Throttle.objects.create(
            process="w",
            label="testapp.photo",
            source=source,
            reason="slow",
            since_at=DatabaseNow(),
            until=DatabaseLater(timedelta(hours=hours)),
        )
    assert [row[1] for row in paste("Is it throttled?")] == ["lag"]


def what_waits() -> None:
    make(Photo, 3)
    Photo.objects.release(Photo.objects.claim_batch(2), delay=7200)
    ((waiting, seconds),) = paste("What waits, and for how long?")
    assert waiting == 2
    assert 7100 < int(seconds) <= 7260


def what_is_stuck() -> None:
    ended, endless, _running = held_by(WORKER, 3)
    set_raw(ended, "expires_at", clock("-1 HOUR"))
    set_raw(endless, "expires_at", "NULL")
    shown = paste("What is stuck?")
    assert {row[0] for row in shown} == {ended.pk, endless.pk}
    assert {row[1] for row in shown} == {WORKER}


def which_errors() -> None:
    failed(2, ConnectionError("gone"))
    failed(1, ValueError("no"))
    shown = paste("Which errors are there?")
    assert [(name, rows, text) for name, rows, _at, text in shown] == [
        ("ConnectionError", 2, "gone"),
        ("ValueError", 1, "no"),
    ]
    assert all(at for _name, _rows, at, _text in shown)


def stop_a_model() -> None:
    make(Photo)
    pause(Photo, reason="before", until=60)
    paste("Stop a model")
    switch = paused_by(Photo)
    assert switch is not None
    facts_of_it = (switch.by, switch.reason, switch.until)
    assert facts_of_it == ("ada", "the image server is down", None)
    assert Photo.objects.claim_batch(1) == []
    assert paused_by(Job) is None


def stop_everything() -> None:
    make(Photo)
    for _ in range(2):
        paste("Stop everything, for an hour")
    assert Photo.objects.claim_batch(1) == []
    switch = paused_by(Job)
    assert switch is not None
    assert switch.until is not None
    assert switch.paused_at is not None
    assert switch.until - switch.paused_at == timedelta(hours=1)


def let_a_model_go_on() -> None:
    make(Photo)
    pause(Photo)
    pause(Job)
    assert paste("Let a model go on") == 1
    assert len(Photo.objects.claim_batch(1)) == 1
    assert paused_by(Job) is not None


def free_a_dead_worker() -> None:
    (row,), (others,) = held_by(WORKER), held_by(OTHER)
    untouched = stored(others)
    assert paste("Free the rows of a dead worker") == 1
    assert stored(others) == untouched
    freed = facts(row)
    assert (freed.status, freed.iteration, freed.attempts) == ("open", 1, 0)
    again_and_lost(row)


def again_and_lost(row: Any) -> None:
    """The row can be claimed again, and who held it before has lost it."""
    assert row.pk in [one.pk for one in Photo.objects.claim_batch(10)]
    with pytest.raises(ClaimLost):
        row.claim.complete()


def free_the_expired() -> None:
    (row,), (person,), (running,) = held_by(WORKER), held_by("user:17"), held_by(OTHER)
    for one in (row, person):
        set_raw(one, "expires_at", clock("-1 HOUR"))
    untouched = stored(running)
    assert paste("Free all rows whose lease has ended") == 2
    assert stored(running) == untouched
    assert [facts(one).attempts for one in (row, person)] == [1, 0]
    assert count(Photo.objects.all()) == {}
    again_and_lost(row)


def reset_ten() -> None:
    rows = failed(12, ConnectionError("gone"))
    (other,) = failed(1, ValueError("no"))
    assert paste("Reset ten failed rows") == 10
    assert [facts(row).status for row in rows] == ["open"] * 10 + ["failed"] * 2
    assert facts(other).status == "failed"
    assert len(Photo.objects.claim_batch(20)) == 10


def reset_all() -> None:
    by_hand, by_the_verb = failed(2, ConnectionError("gone"), url="same")
    Photo.objects.filter(pk=by_the_verb.pk).reset()
    assert paste("Reset all that failed like that") == 1
    assert without_key(by_hand) == without_key(by_the_verb)


def set_aside() -> None:
    (row,), (other,) = make(Photo, 1, country="NZ"), make(Photo, 1)
    assert paste("Set rows aside") == 1
    assert [facts(one).status for one in (row, other)] == ["paused", "open"]


def let_them_go_on() -> None:
    (row,) = make(Photo, 1, country="NZ", status="paused")
    assert paste("Let them go on") == 1
    assert (facts(row).status, facts(row).iteration) == ("open", 1)
    assert count(Photo.objects.all()) == {}


def take_one_out() -> None:
    (row,) = held_by(WORKER)
    assert paste("Take one row out that breaks its worker", **{"id = 17": f"id = {row.pk}"}) == 1
    now = facts(row)
    assert (now.status, now.error_class, now.expires_at) == ("failed", "FailedByOperator", None)
    assert count(Photo.objects.all()) == {}
    with pytest.raises(ClaimLost):
        row.claim.complete()


def contradictory() -> dict[str, Any]:
    rows = in_each_state(Photo)
    set_raw(rows["processing"], "expires_at", "NULL")
    for state in ("open", "paused", "complete", "failed"):
        set_raw(rows[state], "expires_at", clock("+1 HOUR"))
    return rows


def which_contradict() -> None:
    completed(Photo)
    assert list(paste("Which rows contradict themselves?")) == []
    contradictory()
    shown = dict(paste("Which rows contradict themselves?"))
    assert shown == dict.fromkeys(["open", "processing", "complete", "failed", "paused"], 1)


def put_waiting_ones_right() -> None:
    contradictory()
    assert paste("Put open and paused ones right") == 2
    assert not {name for name in count(Photo.objects.all()) if name.startswith(("open", "paused"))}


def put_ended_ones_right() -> None:
    rows = contradictory()
    assert paste("Put complete and failed ones right") == 2
    assert not {name for name in count(Photo.objects.all()) if name.startswith("complete")}
    assert facts(rows["complete"]).claimed_by is not None


def delete_old_ones() -> None:
    completed(Photo, 2)
    completed(Photo, 1, "29 DAY")
    in_each_state(Photo)
    assert paste("Delete a thousand rows that are long done") == 2
    assert Photo.objects.count() == 6


def who_did_what() -> None:
    act = {"at": DatabaseNow(), "model": "testapp.photo", "act": "reset", "by": "ada"}
    OperatorAct.objects.create(**act, rows=3, reason="mended")
    ((_at, *told),) = paste("Who did what lately?")
    assert told == ["testapp.photo", "reset", 3, "ada", "mended"]


def write_it_down() -> None:
    paste("Write down what you did")
    act = OperatorAct.objects.get()
    told = (act.model, act.act, act.rows, act.by, act.reason)
    assert told == ("testapp.photo", "reset", 10, "ada", "the image server is back")
    assert abs(act.at - OperatorAct.objects.values_list(DatabaseNow(), flat=True)[0]) < timedelta(
        minutes=5
    )


TESTS: dict[str, Callable[[], None]] = {
    "How far is it?": how_far,
    "Who holds what?": who_holds,
    "Which workers live?": workers,
    "Is it paused?": is_paused,
    "Is it throttled?": is_throttled,
    "What waits, and for how long?": what_waits,
    "What is stuck?": what_is_stuck,
    "Which errors are there?": which_errors,
    "Stop a model": stop_a_model,
    "Stop everything, for an hour": stop_everything,
    "Let a model go on": let_a_model_go_on,
    "Free the rows of a dead worker": free_a_dead_worker,
    "Free all rows whose lease has ended": free_the_expired,
    "Reset ten failed rows": reset_ten,
    "Reset all that failed like that": reset_all,
    "Set rows aside": set_aside,
    "Let them go on": let_them_go_on,
    "Take one row out that breaks its worker": take_one_out,
    "Which rows contradict themselves?": which_contradict,
    "Put open and paused ones right": put_waiting_ones_right,
    "Put complete and failed ones right": put_ended_ones_right,
    "Delete a thousand rows that are long done": delete_old_ones,
    "Who did what lately?": who_did_what,
    "Write down what you did": write_it_down,
}


@pytest.mark.parametrize("heading", PAGE)
def test_a_statement_does_what_it_says(heading: str) -> None:
    TESTS[heading]()


def test_every_database_has_the_same_statements() -> None:
    pages = sorted(FOLDER.glob("*.md"))
    assert [page.stem for page in pages] == ["README", "mysql", "postgresql", "sqlite"]
    for page in pages[1:]:
        assert list(statements(page)) == list(TESTS), page
