"""What ``claimstatus`` shows."""

import io
import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_taskclaim import policy
from django_taskclaim.completion import Archive, as_completion
from django_taskclaim.dialects import DatabaseLater
from django_taskclaim.models import Switch, WorkerProcess
from django_taskclaim.switch import pause, pause_all
from tests.behaviour.models import Notice
from tests.factories import make
from tests.test_commands import lapsed, no_savepoint, run, shell, table_away
from tests.testapp.models import Job, Photo, PhotoProxy, UuidKey

pytestmark = pytest.mark.django_db(databases="__all__")


def cells(text: str, label: str) -> list[str]:
    """Return the numbers of a model's line."""
    line = next(line for line in text.splitlines() if line.startswith(f"{label} "))
    return line.split()[1:]


def test_progress_is_a_line_a_model() -> None:
    make(Photo, 10)
    rows = Photo.objects.claim_batch(6)
    Photo.objects.complete(rows[:3])
    Photo.objects.fail(rows[3:4], "no", retry=False)
    Photo.objects.order_by("-pk").filter(pk__gt=rows[-1].pk + 3).pause_rows()
    text = run("claimstatus", "testapp.Photo", "testapp.UuidKey")
    assert text.splitlines()[0].split() == [
        "MODEL",
        "OPEN",
        "RUNNING",
        "COMPLETE",
        "FAILED",
        "PAUSED",
        "TOTAL",
        "DONE",
    ]
    assert cells(text, "testapp.Photo") == ["3", "2", "3", "1", "1", "10", "40.0", "%"]
    assert cells(text, "testapp.UuidKey") == ["0", "0", "0", "0", "0", "0", "-"]


def test_without_a_name_every_model_is_shown() -> None:
    text = run("claimstatus")
    labels = [line.split()[0] for line in text.splitlines() if line.startswith("testapp.")]
    assert {
        "testapp.Photo",
        "testapp.Child",
        "testapp.PercentNames",
        "testapp.CompositeKey",
    } <= set(labels)
    assert "testapp.PhotoProxy" not in labels
    assert "testapp.Ledger" not in labels


def test_a_proxy_can_be_named() -> None:
    make(Photo, 2)
    assert cells(run("claimstatus", "testapp.PhotoProxy"), PhotoProxy._meta.label)[0] == "2"


def test_who_holds_what_is_shown() -> None:
    make(Photo, 10)
    for _ in range(2):
        Photo.objects.claim_batch(2)
    Photo.objects.claim_batch(3, claimed_by="user:17", lease=3600)
    text = run("claimstatus", "testapp.Photo")
    # Two batches of one process are one holder; whoever holds most comes first.
    assert re.search(r"  held by \d+@\S+ +4 rows, next lease ends in (\d+ s|1 min)", text)
    assert re.search(r"  held by user:17 +3 rows, next lease ends in (59 min|1 h)", text)
    assert text.index("4 rows") < text.index("user:17")
    assert text.count("held by") == 2


def test_many_holders_are_summed_up() -> None:
    make(Photo, 13)
    for number in range(13):
        Photo.objects.claim_batch(1, claimed_by=f"user:{number}")
    text = run("claimstatus", "testapp.Photo")
    assert text.count("held by") == 10
    assert "and 3 more holders with 3 rows" in text


def test_waiting_expired_and_due_rows_are_shown() -> None:
    make(Photo, 3)
    Photo.objects.release(Photo.objects.claim_batch(1), delay=3600)
    Photo.objects.release(Photo.objects.claim_batch(1), delay=0.001)
    lapsed(Photo, 1)
    text = run("claimstatus", "testapp.Photo")
    assert "1 open row not due yet, the first in " in text
    assert re.search(r"longest due of the rows that were put off: \S+ m?s \(oldest_due\)", text)
    assert re.search(r"1 lease expired, the first \d+ s ago; manage.py release_expired", text)


def test_where_a_column_tells_since_when_rows_are_due_all_of_them_count() -> None:
    make(Notice, 2)
    Notice.objects.update(made_at=timezone.now() - timedelta(hours=3))
    assert re.search(r"  longest due: 3 h.* \(oldest_due\)", run("claimstatus", "testapp.Notice"))


def test_of_rows_that_never_waited_nobody_says_for_how_long_they_have_been_due() -> None:
    make(Photo, 3)
    assert "due" not in run("claimstatus", "testapp.Photo")


def test_a_pause_is_shown_with_all_that_is_known() -> None:
    pause(Photo, reason="the server is down", by="ann", until=600)
    pause_all(by="bob")
    text = run("claimstatus", "testapp.Photo")
    assert re.search(
        r"PAUSED \(with all models\) by bob since (\S+ )?\d\d:\d\d:\d\d UTC$", text, re.MULTILINE
    )
    Switch.objects.filter(scope="*").delete()
    text = run("claimstatus", "testapp.Photo")
    assert re.search(
        r"PAUSED by ann since (\S+ )?\S+ UTC until (\S+ )?\S+ UTC: the server is down$",
        text,
        re.MULTILINE,
    )


def test_workers_are_shown_by_the_databases_clock() -> None:
    assert "Workers: none alive" in run("claimstatus", "testapp.Job")
    for number, age in ((1, 2), (2, 300)):
        WorkerProcess.objects.create(
            name=f"worker@host:{number}",
            labels="testapp.Job, testapp.Photo",
            host="host",
            pid=number,
            version="1",
            started_at=DatabaseLater(timedelta(hours=-1)),
            seen_at=DatabaseLater(timedelta(seconds=-age)),
            rows_held=5,
            rows_done=1234,
        )
    text = run("claimstatus", "testapp.Job")
    (line,) = (line for line in text.splitlines() if "host:1" in line)
    assert re.fullmatch(
        r"  worker@host:1  testapp.Job, testapp.Photo  running +5  1,234 +0  \d+ s ago +1 h( \d+ min)?",
        line,
    )
    assert re.search(r"worker@host:2 was last seen 5 min( \d+ s)? ago and has not signed off", text)


@no_savepoint
def test_a_table_that_cannot_be_read_stops_no_other() -> None:
    out = io.StringIO()
    with table_away(UuidKey), pytest.raises(CommandError) as caught:
        call_command("claimstatus", "testapp.UuidKey", "testapp.Photo", stdout=out)
    assert caught.value.returncode == 1
    assert "has no table testapp_uuidkey for testapp.UuidKey. Run: manage.py " in str(caught.value)
    assert cells(out.getvalue(), "testapp.Photo")


@pytest.mark.parametrize("clock", [("1", "Asia/Kolkata"), ("0", "America/New_York"), ("0", "UTC")])
def test_the_projects_time_zone_alters_no_duration(
    clock: tuple[str, str], process_env: dict[str, str]
) -> None:
    make(Job, 3)
    Job.objects.claim_batch(1, lease=3600)
    Job.objects.release(Job.objects.claim_batch(1), delay=7200)
    pause(Job, by="ann", until=600)
    zone = {"TASKCLAIM_TEST_USE_TZ": clock[0], "TASKCLAIM_TEST_TIME_ZONE": clock[1]}
    text = shell({**process_env, **zone}, "claimstatus", "testapp.Job").stdout
    assert re.search(r"next lease ends in (59 min|1 h)", text)
    assert re.search(r"the first in (1 h 59 min|2 h)", text)
    assert "PAUSED by ann since" in text
    advice = shell({**process_env, **zone}, "claimdoctor", "testapp.Job").stdout
    assert "testapp.Job is paused by ann" in advice
    assert "1 row is due, and no worker for testapp.Job is alive." in advice


@pytest.mark.parametrize(
    ("completion", "told"),
    [
        ("delete", "rows that are done are deleted"),
        (Archive("testapp.Archive"), "rows that are done are moved to the archive"),
        ("clear", "rows that are done are open again"),
    ],
)
def test_rows_that_do_not_stay_have_no_share_that_is_done(
    completion: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shrinking total would show less and less done the more is, and failed rows as all there is."""
    make(Photo, 3, status=lambda i: "failed" if i else "open")
    with monkeypatch.context() as meanwhile:
        meanwhile.setitem(
            policy._policies, Photo, policy.Policy(completion=as_completion(completion))
        )
        text = run("claimstatus", "testapp.Photo")
    assert cells(text, "testapp.Photo") == ["1", "0", "0", "2", "0", "3", "-"]
    assert told in text
    assert told not in run("claimstatus", "testapp.Photo")
