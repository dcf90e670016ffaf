"""The pages of SQL for three in the morning are true: each statement is run on its database, and does what it says.

A statement finds its test by the heading above it.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection

from django_taskclaim.control.models import OperatorAct
from django_taskclaim.dialects import DatabaseLater, DatabaseNow
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.models import Throttle
from django_taskclaim.switch import pause, paused_by
from tests import documents
from tests.commands import completed, failed, in_each_state, live_worker
from tests.factories import make
from tests.querysets.support import clock, facts, set_raw, stored
from tests.testapp.models import Job, Photo

pytestmark = pytest.mark.django_db(databases="__all__")

FOLDER = documents.DOCS / "sql"
SECTION = re.compile(r"^## (.*?)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)

WORKER, OTHER = "worker@web-3:4711#a1b2", "worker@web-3:47110#c3d4"
ONE_EACH = dict.fromkeys(["open", "processing", "complete", "failed", "paused"], 1)

Paste = Callable[..., Any]


def statements(vendor: str) -> dict[str, str]:
    """Return the statement under each heading of a page."""
    text = (FOLDER / f"{vendor}.md").read_text(encoding="utf-8")
    return {heading: BLOCK.findall(section)[0] for heading, section in SECTION.findall(text)}


def named_after(heading: str) -> str:
    """Return the name of the test of the statement under a heading."""
    return "test_" + re.sub(r"\W+", "_", heading.lower()).strip("_")


def execute(heading: str, **replaced: Any) -> Any:
    """Run a statement as somebody at a prompt would; return the rows shown, else how many were written."""
    text = statements(connection.vendor)[heading].replace("photos_photo", "testapp_photo")
    text = text.replace("photos.photo", "testapp.photo")
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, str(new))
    with connection.cursor() as cursor:
        cursor.execute(text)
        return cursor.fetchall() if cursor.description else cursor.rowcount


@pytest.fixture
def paste(request: pytest.FixtureRequest) -> Paste:
    """Return what runs the statement that this test is named after."""
    headings = {named_after(heading): heading for heading in statements(connection.vendor)}
    return partial(execute, headings[request.node.name])


def contradictions() -> dict[str, int]:
    """Return how many rows of each state contradict themselves, by the page's own statement."""
    return dict(execute("Which rows contradict themselves?"))


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


def test_how_far_is_it(paste: Paste) -> None:
    in_each_state(Photo)
    assert dict(paste()) == ONE_EACH


def test_who_holds_what(paste: Paste) -> None:
    held_by(WORKER, 3)
    held_by("worker@web-3:4711#other")
    held_by("user:17", 2, expires_at=clock("-1 HOUR"))
    shown = {name: (rows, int(left)) for name, rows, left in paste()}
    assert {name: rows for name, (rows, _) in shown.items()} == {WORKER[:17]: 4, "user:17": 2}
    assert 0 < shown[WORKER[:17]][1] <= 60
    assert shown["user:17"][1] < -3000


def test_which_workers_live(paste: Paste) -> None:
    live_worker("testapp.Photo", seen=2, rows_done=7)
    live_worker("testapp.Photo", seen=3000)
    first, second = paste()
    assert (first[0], second[0], first[4]) == ("worker@host:0", "worker@host:1", 7)
    assert int(first[6]) < 3000 <= int(second[6])


def test_is_it_paused(paste: Paste) -> None:
    assert list(paste()) == []
    pause(Photo, by="ann", reason="deploy")
    pause(Job, by="bob")
    ((scope, _since, until, who, reason),) = paste()
    assert (scope, until, who, reason) == ("testapp.photo", None, "ann", "deploy")


def test_is_it_throttled(paste: Paste) -> None:
    common = {"process": "w", "label": "testapp.photo", "reason": "slow", "since_at": DatabaseNow()}
    for source, hours in (("lag", 1), ("old", -1)):
        until = DatabaseLater(timedelta(hours=hours))
        Throttle.objects.create(**common, source=source, until=until)
    assert [row[1] for row in paste()] == ["lag"]


def test_what_waits_and_for_how_long(paste: Paste) -> None:
    make(Photo, 3)
    Photo.objects.release(Photo.objects.claim_batch(2), delay=7200)
    ((waiting, seconds),) = paste()
    assert waiting == 2
    assert 6000 < int(seconds) <= 7200


def test_what_is_stuck(paste: Paste) -> None:
    (ended,) = held_by(WORKER, expires_at=clock("-1 HOUR"))
    (endless,) = held_by(WORKER, expires_at="NULL")
    held_by(OTHER)
    assert {row[:2] for row in paste()} == {
        (ended.pk, WORKER),
        (endless.pk, WORKER),
    }


def test_which_errors_are_there(paste: Paste) -> None:
    failed(Photo, 2, ConnectionError("gone"))
    failed(Photo, 1, ValueError("no"))
    shown = [(name, rows, text) for name, rows, _at, text in paste()]
    assert shown == [("ConnectionError", 2, "gone"), ("ValueError", 1, "no")]


def test_which_rows_contradict_themselves(paste: Paste) -> None:
    completed(Photo)
    assert list(paste()) == []
    contradictory()
    assert dict(paste()) == ONE_EACH


def test_who_did_what_lately(paste: Paste) -> None:
    act = {"at": DatabaseNow(), "model": "testapp.photo", "act": "reset", "by": "ada"}
    OperatorAct.objects.create(**act, rows=3, reason="mended")
    ((_at, *told),) = paste()
    assert told == ["testapp.photo", "reset", 3, "ada", "mended"]


# The switch


def test_stop_a_model(paste: Paste) -> None:
    make(Photo)
    pause(Photo, reason="before", until=60)
    paste()
    switch = paused_by(Photo)
    assert switch is not None
    assert (switch.by, switch.reason) == ("ada", "the image server is down")
    assert switch.until is None
    assert Photo.objects.claim_batch(1) == []
    assert paused_by(Job) is None


def test_stop_everything_for_an_hour(paste: Paste) -> None:
    make(Photo)
    for _ in range(2):
        paste()
    assert Photo.objects.claim_batch(1) == []
    switch = paused_by(Job)
    assert switch is not None
    assert switch.until == switch.paused_at + timedelta(hours=1)  # type: ignore[operator]


def test_let_a_model_go_on(paste: Paste) -> None:
    make(Photo)
    pause(Photo)
    pause(Job)
    assert paste() == 1
    assert len(Photo.objects.claim_batch(1)) == 1
    assert paused_by(Job) is not None


# Rows


def test_free_the_rows_of_a_dead_worker(paste: Paste) -> None:
    (row,), (others,) = held_by(WORKER), held_by(OTHER)
    untouched = stored(others)
    assert paste() == 1
    assert stored(others) == untouched
    freed = facts(row)
    assert (freed.status, freed.iteration, freed.attempts) == ("open", 1, 0)
    assert_free(row)


def test_free_all_rows_whose_lease_has_ended(paste: Paste) -> None:
    (row,) = held_by(WORKER, expires_at=clock("-1 HOUR"))
    (person,) = held_by("user:17", expires_at=clock("-1 HOUR"))
    (running,) = held_by(OTHER)
    untouched = stored(running)
    assert paste() == 2
    assert stored(running) == untouched
    assert [facts(one).attempts for one in (row, person)] == [1, 0]
    assert contradictions() == {}
    assert_free(row)


def test_reset_ten_failed_rows(paste: Paste) -> None:
    failed(Photo, 12, ConnectionError("gone"))
    failed(Photo, 1, ValueError("no"))
    assert paste() == 10
    assert len(Photo.objects.claim_batch(20)) == 10
    assert {row.error_class for row in Photo.objects.failed()} == {"ConnectionError", "ValueError"}


def test_reset_all_that_failed_like_that(paste: Paste) -> None:
    """The row is as the verb would have left it."""
    by_hand, by_the_verb = failed(Photo, 2, ConnectionError("gone"), url="same")
    Photo.objects.filter(pk=by_the_verb.pk).reset()
    assert paste() == 1
    assert stored(by_hand) | {"Photo.id": 0} == stored(by_the_verb) | {"Photo.id": 0}


def test_set_rows_aside(paste: Paste) -> None:
    (row,), (other,) = make(Photo, 1, country="NZ"), make(Photo, 1)
    assert paste() == 1
    assert [facts(one).status for one in (row, other)] == ["paused", "open"]


def test_let_them_go_on(paste: Paste) -> None:
    (row,) = make(Photo, 1, country="NZ", status="paused")
    assert paste() == 1
    assert (facts(row).status, facts(row).iteration) == ("open", 1)
    assert contradictions() == {}


def test_take_one_row_out_that_breaks_its_worker(paste: Paste) -> None:
    (row,) = held_by(WORKER)
    assert paste(**{"id = 17": f"id = {row.pk}"}) == 1
    now = facts(row)
    assert (now.status, now.error_class) == ("failed", "FailedByOperator")
    assert contradictions() == {}
    with pytest.raises(ClaimLost):
        row.claim.complete()


def test_put_open_and_paused_ones_right(paste: Paste) -> None:
    contradictory()
    assert paste() == 2
    assert contradictions() == dict.fromkeys(["processing", "complete", "failed"], 1)


def test_put_complete_and_failed_ones_right(paste: Paste) -> None:
    rows = contradictory()
    assert paste() == 2
    assert contradictions() == dict.fromkeys(["open", "processing", "paused"], 1)
    assert facts(rows["complete"]).claimed_by is not None


def test_delete_a_thousand_rows_that_are_long_done(paste: Paste) -> None:
    completed(Photo, 2)
    completed(Photo, 1, "29 DAY")
    in_each_state(Photo)
    assert paste() == 2
    assert Photo.objects.count() == 6


def test_write_down_what_you_did(paste: Paste) -> None:
    paste()
    (act,) = OperatorAct.objects.all()
    told = (act.model, act.act, act.rows, act.by, act.reason)
    assert told == ("testapp.photo", "reset", 10, "ada", "the image server is back")
    assert OperatorAct.objects.filter(at__gt=DatabaseLater(timedelta(hours=-1))).exists()


@pytest.mark.once
def test_each_statement_has_its_test_and_stands_on_every_page() -> None:
    tests = {name for name in globals() if name.startswith("test_")}
    tests.discard("test_each_statement_has_its_test_and_stands_on_every_page")
    for vendor in ("mysql", "postgresql", "sqlite"):
        assert {named_after(heading) for heading in statements(vendor)} == tests
