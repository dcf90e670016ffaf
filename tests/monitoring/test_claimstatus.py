"""``claimstatus``: the text for people, the figures, exit codes and JSON for monitors."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from django_taskclaim import policy
from django_taskclaim.completion import as_completion
from django_taskclaim.models import Switch
from django_taskclaim.monitoring.overview import overview
from django_taskclaim.switch import pause
from tests.commands import failed, in_each_state, lapsed, live_worker, outcome, run
from tests.factories import make
from tests.querysets.models import Notice
from tests.querysets.support import clock, execute, set_raw, table_of
from tests.testapp.models import Job, Photo, UuidKey

pytestmark = pytest.mark.django_db(databases="__all__")

PHOTO = "testapp.Photo"

#: Clears a terminal's screen, and begins a line.
CODES = "\x1b[2J\nforged"


def judged(*words: str) -> tuple[int, str]:
    """Return the exit code of ``claimstatus -v 0``, and its reason."""
    code, out, reason = outcome("claimstatus", *words, verbosity=0)
    assert out == ""
    return code, reason


# Figures, on each database


def everything() -> None:
    """One row in each state, one that waits, an expired lease, a pause, two throttles, three workers."""
    in_each_state(Photo)
    make(Photo)
    Photo.objects.release(Photo.objects.order_by("-pk").claim_batch(1), delay=3600)
    (expired,) = lapsed(Photo)
    set_raw(expired, "expires_at", clock("-1 HOUR"))
    pause(Photo, by="ann", reason=f"deploy{CODES}", until=600)
    execute(f"UPDATE {table_of(Switch)} SET paused_at = {clock('-3 HOUR')}")
    throttles = [
        {"label": "testapp.photo", "source": "lag", "reason": f"slow{CODES}", "until": until}
        for until in ("2100-01-01T00:00:00+00:00", "2020-01-01T00:00:00+00:00")
    ]
    live_worker(PHOTO, "testapp.Job", rows_held=2, rows_done=7, throttles=throttles)
    live_worker("testapp.Job")
    live_worker(PHOTO, seen=300, throttles=throttles)


def test_json_has_every_figure() -> None:
    everything()
    seen = json.loads(run("claimstatus", PHOTO, "testapp.Job", "--format", "json"))
    photo, job = seen["models"]
    # Nothing is asked of workers where people claim.
    assert (job["figures"]["workers"], photo["figures"].pop("workers")) == (2, None)
    figures = photo["figures"]
    ages = {name: figures.pop(name) for name in ("oldest_due", "oldest_expired", "paused_for")}
    rows = {"open": 2, "processing": 2, "complete": 1, "failed": 1, "paused": 1, "total": 7}
    more = {"due": 1, "waiting": 1, "unfinished": 5, "expired": 1, "throttles": 2, "unknown": 0}
    assert figures == rows | more
    assert ages["oldest_due"] is None
    assert 3600 <= ages["oldest_expired"] < 7200
    assert 10_800 <= ages["paused_for"] < 14_400
    assert (photo["model"], photo["database"]) == (PHOTO, "default")
    assert photo["at"].endswith("+00:00")
    assert seen["failing"] == []


def test_rows_whose_leases_have_ended_do_not_keep_a_model_pausing() -> None:
    everything()
    assert overview(Photo, "default").is_finishing
    execute(f"UPDATE {table_of(Photo)} SET expires_at = {clock('-1 HOUR')}")
    assert not overview(Photo, "default").is_finishing


@pytest.mark.parametrize("use_tz", [True, False])
def test_the_oldest_due_row_is_known_by_its_waiting_time_or_a_column_of_the_users(
    use_tz: bool, settings: Any
) -> None:
    """A row that is complete or that waits does not count."""
    settings.USE_TZ = use_tz
    first, second, _third = make(Notice, 3)
    Notice.objects.complete(Notice.objects.filter(pk=first.pk).claim_batch(1))
    Notice.objects.release(Notice.objects.filter(pk=second.pk).claim_batch(1), delay=3600)
    for row, hours in zip(Notice.objects.order_by("pk"), (9, 8, 2), strict=True):
        Notice.objects.filter(pk=row.pk).update(made_at=row.made_at - timedelta(hours=hours))
    words = ("testapp.Notice", "--fail-if")
    assert judged(*words, "oldest_due>=2h")[0] == 1
    assert judged(*words, "oldest_due>3h") == (0, "")
    make(Photo, 2)
    (row,) = Photo.objects.claim_batch(1)
    # Nobody knows since when a row is due that never waited.
    assert judged(PHOTO, "--fail-if", "oldest_due>0")[0] == 0
    Photo.objects.release(row, delay=1)
    set_raw(row, "not_before", clock("-1 HOUR"))
    assert judged(PHOTO, "--fail-if", "oldest_due>50m")[0] == 1
    assert judged(PHOTO, "--fail-if", "oldest_due>2h")[0] == 0


# Conditions


def nothing() -> None:
    """No row and no worker."""


def three_due() -> None:
    make(Photo, 3)


CONDITIONS: list[tuple[Callable[[], None], str, str]] = [
    (nothing, "failed>0,due>0,expired>0,oldest_due>0,paused_for>0,throttles>0", ""),
    (nothing, "workers<1,total=0", "total is 0 (total=0)"),
    (three_due, "due>3,due<3,due!=3", ""),
    (three_due, "open = 3 , waiting<1", "open is 3 (open=3), waiting is 0 (waiting<1)"),
    (everything, "failed>1,workers<1,total!=7,paused_for>5h,oldest_expired>3h", ""),
    (everything, "throttles>1,failed>=1", "throttles is 2 (throttles>1), failed is 1 (failed>=1)"),
    (everything, "paused_for>1h,oldest_expired>30m", "paused_for is 3 h, oldest_expired is 1 h"),
]


@pytest.mark.once
@pytest.mark.parametrize(("situation", "condition", "reason"), CONDITIONS)
def test_a_condition_decides_the_exit_code(situation: Any, condition: str, reason: str) -> None:
    situation()
    code, said = judged(PHOTO, "--fail-if", condition)
    assert code == bool(reason), said
    for part in reason.split(", "):
        assert part in said


@pytest.mark.once
def test_complete_rows_are_required() -> None:
    make(Photo, 2)
    assert "unfinished is 2" in judged(PHOTO, "--require-complete")[1]
    Photo.objects.complete(Photo.objects.claim_batch(2))
    assert judged(PHOTO, "--require-complete") == (0, "")
    failed(Photo)
    assert "failed is 1" in judged(PHOTO, "--require-complete")[1]


def test_rows_with_a_status_that_no_verb_writes_are_not_complete() -> None:
    """Where the database claims ``Open`` as ``open``, that is what it is."""
    for row, status in zip(make(Photo, 4), ("done", "", "Open", "open"), strict=True):
        set_raw(row, "status", f"'{status}'")
    seen, rows = Photo.objects.progress(), Photo.objects.claim_batch(4)
    assert (seen.total, seen.open, seen.unknown) == (4, len(rows), 4 - len(rows))
    Photo.objects.complete(rows)
    assert f"unfinished is {seen.unknown}" in judged(PHOTO, "--require-complete")[1]
    assert f"{seen.unknown} rows of {PHOTO} with a status that" in run("claimstatus", PHOTO)


@pytest.mark.once
def test_the_reason_names_every_model_that_fails() -> None:
    """Workers are asked for models with a handler."""
    failed(Photo)
    failed(UuidKey)
    words = (PHOTO, "testapp.Job", "testapp.UuidKey", "--fail-if", "due>5,failed>0")
    code, reason = judged(*words)
    assert (code, reason.count("failed is 1")) == (1, 2)
    assert "testapp.Job" not in reason
    code, out, _ = outcome("claimstatus", *words, "--format=json")
    assert (code, len(json.loads(out)["failing"])) == (1, 2)
    reason = judged("--fail-if", "workers<1")[1]
    assert "testapp.Job: workers is 0" in reason
    assert "testapp.ClaimOnly" not in reason


# The text


@pytest.mark.once
def test_a_model_is_a_line_of_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that do not stay complete have no share that is done."""
    in_each_state(Photo)
    make(Photo, 5)
    make(Job, 2)
    changed = policy.Policy(completion=as_completion("delete"))
    monkeypatch.setitem(policy.policies, Job, changed)
    table = run("claimstatus").partition("\n\n")[0]
    lines = {line.split()[0]: line.split()[1:] for line in table.splitlines()}
    assert lines["MODEL"] == ["OPEN", "RUNNING", "COMPLETE", "FAILED", "PAUSED", "TOTAL", "DONE"]
    assert lines[PHOTO] == ["6", "1", "1", "1", "1", "10", "10.0", "%"]
    assert lines["testapp.Job"] == ["2", "0", "0", "0", "0", "2", "-"]
    assert "testapp.PhotoProxy" not in lines


@pytest.mark.once
@pytest.mark.parametrize("use_tz", [True, False])
def test_holders_waits_pauses_and_workers_are_shown(use_tz: bool, settings: Any) -> None:
    """Two batches of one process are one holder; ten holders are shown. What is stored cannot send codes."""
    settings.USE_TZ = use_tz
    failed(Photo, 1, ValueError("no\x1b[2J picture"))
    make(Photo, 16)
    for _ in range(2):
        Photo.objects.claim_batch(2)
    for number in range(12):
        Photo.objects.claim_batch(1, claimed_by=f"user:{number}{CODES}", lease=86_400)
    everything()
    text = run("claimstatus", PHOTO)
    assert re.search(r"failed: \d+: ValueError: no \[2J picture", text)
    assert re.search(r"held by \d+@\S+: 6 rows", text)
    assert re.search(r"held by user:\d+ \[2J forged: 1 row, a lease ends at \S+ ", text)
    assert text.count("held by") == 10
    assert "and by 3 more" in text
    assert re.search(r"The leases of 1 row have ended, .*\n      manage.py release_expired", text)
    assert re.search(r"testapp.Photo is paused by ann since .*, until .*: deploy", text)
    assert re.search(r"worker@host:0  testapp.Photo, testapp.Job +2 +7 +0", text)
    assert "\n  worker@host:2" not in text, "it has been silent for minutes"
    assert not re.search(r"\x1b|^forged", text, re.MULTILINE)
