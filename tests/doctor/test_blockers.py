"""Why nothing moves: each reason is named with what ends it."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.switch import pause, pause_all, set_overrides
from tests.commands import live_worker
from tests.doctor.support import doctor_text, handling, problems
from tests.factories import make, make_claimed
from tests.querysets.support import clock, set_raw
from tests.testapp.models import Child, HiddenRows, Job, Parent, Photo, UuidKey

pytestmark = pytest.mark.django_db(databases="__all__")


def finished() -> None:
    Job.objects.complete(make_claimed(Job, 3))


def works() -> None:
    make(Job, 2)
    live_worker("testapp.Other", "testapp.Job")


def no_worker() -> None:
    make(Job, 1)
    live_worker("testapp.Parent")
    live_worker("testapp.Job", seen=300)


def paused() -> None:
    make(Job, 1)
    pause(Job, reason="the supplier is down", by="ann@web1", until=600)


def all_paused() -> None:
    make(Job, 1)
    pause_all(by="bob")


def waiting() -> None:
    Job.objects.release(make_claimed(Job, 2), delay=3600)


def held() -> None:
    make(Job, 3)
    Job.objects.claim_batch(2, claimed_by="user:17", lease=7200)
    Job.objects.claim_batch(1, claimed_by="user:18", lease=1800)


def failed_and_set_aside() -> None:
    make(Job, 4)
    rows = Job.objects.claim_batch(3)
    Job.objects.fail(rows[:2], ValueError("no"), retry=False)
    Job.objects.fail(rows[2:], KeyError("no"), retry=False)
    Job.objects.pause_rows()


@pytest.mark.parametrize(
    ("scene", "parts"),
    [
        (finished, ["Nothing is open or running: 3 rows of 3 finished"]),
        (works, ["2 rows due, and workers are alive"]),
        (no_worker, ["no worker for testapp.Job is alive", "5 min", "manage.py claimworker"]),
        (
            paused,
            [
                "testapp.Job is paused by ann@web1 since ",
                "the supplier is down",
                "manage.py claimresume testapp.Job",
            ],
        ),
        (all_paused, ["All models are paused by bob", "manage.py claimresume --all"]),
        (waiting, ["No row is due: 2 waiting, next due "]),
        (held, ["No row is due: 3 held by others, next free "]),
        (
            failed_and_set_aside,
            [
                "3 rows failed; a reset opens failed rows again",
                "→ manage.py claimreset testapp.Job",
                "→ manage.py claimreset testapp.Job --paused",
            ],
        ),
    ],
)
def test_a_reason_is_named_with_what_ends_it(
    scene: Callable[[], Any], parts: list[str], settings: Any
) -> None:
    scene()
    for settings.USE_TZ in (True, False):
        text = doctor_text(Job)
        assert [part for part in parts if part not in text] == [], text


def test_a_pause_of_the_parent_is_named_for_its_child() -> None:
    make(Child, 1)
    pause(Parent, by="bob")
    assert "testapp.Parent is paused by bob" in doctor_text(Child)
    assert "→ manage.py claimresume testapp.Parent" in doctor_text(Child)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"limit_per": {"note": 1}}, "2 kept back by a limit per key"),
        ({"serial_by": "note"}, "2 kept back by a limit per key"),
        ({"max_running": 2}, "2 kept back by the limit of 2 running at once."),
    ],
)
def test_a_limit_that_keeps_rows_back_is_named(options: dict[str, Any], part: str) -> None:
    with handling(UuidKey, **options):
        make(UuidKey, 3, note="acme")
        make(UuidKey, 1, note="other")
        assert part not in doctor_text(UuidKey)
        UuidKey.objects.claim_batch(4, claimed_by="user:17")
        assert part in doctor_text(UuidKey), doctor_text(UuidKey)


def test_expired_rows_are_a_problem_once_every_reaper_should_have_come(settings: Any) -> None:
    for row in make_claimed(Job, 2):
        set_raw(row, "expires_at", clock("-1 SECOND"))
    settings.TASKCLAIM = {"REAPER_INTERVAL": timedelta(hours=1)}
    assert "nobody has put them back yet" in doctor_text(Job)
    settings.TASKCLAIM = {"REAPER_INTERVAL": 0.0001, "LEASE": 0.0001}
    set_overrides(Job, lease=7200)
    assert "nobody has put them back yet" in doctor_text(Job)
    set_overrides(Job, lease=None)
    (problem,) = problems(Job)
    assert "The leases of 2 rows have ended" in problem.msg
    assert problem.hint.startswith("manage.py release_expired testapp.Job")
    ClaimQuerySet(Job).release_expired()
    assert problems(Job) == []


def test_a_missing_handler_and_rows_that_a_queryset_hides_are_named() -> None:
    make(Photo, 1)
    assert "testapp.Photo has no handler" in doctor_text(Photo)
    make(HiddenRows, 2, hidden=True)
    make(HiddenRows, 1)
    with CaptureQueriesContext(connection) as asked:
        assert "The default manager hides 2 due rows of 3" in doctor_text(HiddenRows)
    # Of open rows on both sides: PostgreSQL reads a list of all 2,000,000 again for each of them.
    (question,) = (one["sql"] for one in asked if "U0" in one["sql"])
    assert question.count("'open'") == 2
    with handling(HiddenRows, queryset=HiddenRows.everything.filter(hidden=True)):
        text = doctor_text(HiddenRows)
    assert "The handler's queryset hides 1 due row of 3" in text
    assert "has no handler" not in text
