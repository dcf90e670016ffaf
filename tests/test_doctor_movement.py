"""Why nothing moves, by the doctor's sentences."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import models

from django_taskclaim import policy
from django_taskclaim.dialects import DatabaseLater, DatabaseNow
from django_taskclaim.doctor import examine
from django_taskclaim.doctor.movement import reasons
from django_taskclaim.models import WorkerProcess
from django_taskclaim.overview import overview
from django_taskclaim.policy import Policy
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.switch import pause, pause_all
from tests.behaviour.support import set_raw
from tests.factories import make
from tests.test_commands import lapsed
from tests.test_doctor import doctor, handling, problems, told
from tests.testapp.models import Child, HiddenRows, Job, Parent, Photo

pytestmark = pytest.mark.django_db(databases="__all__")


def worker(model: type[models.Model], *, seen: timedelta = timedelta(0)) -> None:
    """Let a worker have reported a while ago."""
    WorkerProcess.objects.create(
        name="worker@host:1",
        labels=f"testapp.Other, {model._meta.label}",
        host="host",
        pid=1,
        version="1",
        started_at=DatabaseNow(),
        seen_at=DatabaseLater(-seen),
    )


def test_nothing_is_wrong() -> None:
    make(Job, 2)
    worker(Job)
    assert "2 rows due, and workers are alive" in told(Job)


def test_an_empty_table() -> None:
    assert "There is nothing to do: the table is empty." in told(Job)


def test_all_is_done() -> None:
    make(Job, 3)
    Job.objects.complete(Job.objects.claim_batch(3))
    assert "nothing to do: 3 rows of 3 finished" in told(Job)


def test_a_pause_names_who_why_and_until_when() -> None:
    make(Job, 1)
    pause(Job, reason="the supplier is down", by="ann@web1", until=600)
    text = told(Job)
    assert "testapp.Job is paused by ann@web1 since " in text
    assert ": the supplier is down. Nothing is claimed meanwhile." in text
    assert ", until " in text
    assert "manage.py claimresume testapp.Job" in text


def test_a_pause_of_everything() -> None:
    make(Job, 1)
    pause_all(by="bob")
    assert "All models are paused by bob" in told(Job)
    assert "manage.py claimresume --all" in told(Job)


def test_a_pause_of_the_parent_is_taken_back_there() -> None:
    make(Child, 1)
    pause(Parent, by="bob")
    assert "testapp.Parent is paused by bob" in told(Child)
    assert "→ manage.py claimresume testapp.Parent" in told(Child)


def test_all_rows_wait() -> None:
    make(Job, 2)
    Job.objects.release(Job.objects.claim_batch(2), delay=3600)
    text = told(Job)
    assert "All 2 open rows wait; the first is due in " in text
    assert "59 min" in text or "1 h" in text


def test_all_rows_are_held() -> None:
    make(Job, 3)
    Job.objects.claim_batch(2, claimed_by="user:17", lease=7200)
    Job.objects.claim_batch(1, claimed_by="user:18", lease=1800)
    text = told(Job)
    assert "All rows left are held, by user:17 (2) and user:18 (1); the next lease ends in " in text
    assert "29 min" in text or "30 min" in text


@pytest.mark.django_db(transaction=True)
def test_rows_that_a_limit_per_key_keeps_back_are_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the doctor and to whoever asks for rows and gets none."""
    monkeypatch.setitem(policy._policies, Job, Policy(own_limit_per={"note": 1}))
    make(Job, 3, note="acme")
    make(Job, 1, note="other")
    assert Job.objects.why_empty().ready == 4
    Job.objects.claim_batch(4, claimed_by="user:17")
    assert (
        "2 due rows are kept back by a limit per key (note): others of their keys are running."
        in told(Job)
    )
    why = Job.objects.why_empty("user:18")
    assert (why.ready, why.limited) == (0, 2)
    assert "2 kept back by a limit per key" in str(why)


@pytest.mark.django_db(transaction=True)
def test_rows_that_wait_for_their_turn_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(policy._policies, Job, Policy(own_serial_by="note"))
    make(Job, 3, note="acme")
    (head,) = Job.objects.claim_batch(4)
    Job.objects.fail(head, "broken", retry=False)
    assert "2 due rows may have to wait for their turn (note)" in told(Job)
    Job.objects.reset()
    assert "for their turn" not in told(Job)


@pytest.mark.django_db(transaction=True)
def test_a_full_fleet_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(policy._policies, Job, Policy(own_max_running=2))
    make(Job, 3)
    assert "may at once" not in told(Job)
    Job.objects.claim_batch(4)
    assert "2 rows are running, and no more than 2 may at once." in told(Job)


def test_expired_rows_are_a_problem_once_every_reaper_should_have_come(settings: Any) -> None:
    lapsed(Job, 2)
    assert "nobody has put them back yet" in told(Job)
    settings.TASKCLAIM = {"REAPER_INTERVAL": 0.0001, "LEASE": 0.0001}
    (problem,) = problems(examine(Job, "default"))
    assert "The leases of 2 rows have ended" in problem.message
    assert problem.advice.startswith("manage.py release_expired testapp.Job")
    ClaimQuerySet(Job).release_expired()
    assert problems(examine(Job, "default")) == []


def test_rows_without_an_end_of_the_lease_are_told_of_once(settings: Any) -> None:
    """By the doctor as a contradiction; the control room, which looks for none, tells of them as well."""
    make(Job, 2)
    for row in Job.objects.claim_batch(2):
        set_raw(row, "expires_at", "NULL")
    advice = "manage.py claimdoctor testapp.Job --repair"
    (problem,) = problems(examine(Job, "default"))
    assert "2 rows of testapp.Job are processing without an end of the lease" in problem.message
    assert problem.advice == advice
    (shown,) = reasons(overview(Job, "default"))
    assert shown.message.startswith("2 rows are processing without an end of the lease")
    assert shown.advice == advice
    lapsed(Job, 1)
    settings.TASKCLAIM = {"REAPER_INTERVAL": 0.0001, "LEASE": 0.0001}
    once, late = problems(examine(Job, "default"))
    assert once == problem
    assert "The leases of 1 row have ended" in late.message


def test_no_worker_is_alive() -> None:
    make(Job, 1)
    assert (
        "1 row is due, and no worker for testapp.Job is alive. → manage.py claimworker testapp.Job"
        in told(Job)
    )
    worker(Job, seen=timedelta(minutes=5))
    assert "no worker for testapp.Job is alive; the last was heard of 5 min" in told(Job)


def test_that_nobody_works_is_in_the_doctors_last_line() -> None:
    make(Job, 1)
    code, text = doctor("testapp.Job")
    assert code == 0
    assert text.endswith(
        "No problem found, but nobody works: 1 row is due, and no worker for testapp.Job is alive.\n"
    )
    worker(Job)
    assert doctor("testapp.Job")[1].endswith("No problem found.\n")


def test_a_worker_of_another_model_does_not_help() -> None:
    make(Job, 1)
    worker(Parent)
    assert "no worker for testapp.Job is alive." in told(Job)


def test_no_handler() -> None:
    make(Photo, 1)
    assert "testapp.Photo has no handler" in told(Photo)
    with handling(Photo):
        assert "has no handler" not in told(Photo)


def test_rows_that_the_manager_hides() -> None:
    make(HiddenRows, 2, hidden=True)
    make(HiddenRows, 1)
    assert "The default manager hides 2 due rows of 3" in told(HiddenRows)
    with handling(HiddenRows, queryset=HiddenRows.everything.filter(hidden=True)):
        assert "The handler's queryset hides 1 due row of 3, so no worker claims it." in told(
            HiddenRows
        )


def test_failed_and_paused_rows_are_named_with_what_brings_them_back() -> None:
    make(Job, 4)
    rows = Job.objects.claim_batch(3)
    Job.objects.fail(rows[:2], ValueError("no"), retry=False)
    Job.objects.fail(rows[2:], KeyError("no"), retry=False)
    Job.objects.pause_rows()
    text = told(Job)
    assert "3 rows have failed and wait for a reset: 2 × ValueError and 1 × KeyError." in text
    assert "→ manage.py claimreset testapp.Job" in text
    aside = "1 row is set aside (status paused). → manage.py claimresume testapp.Job --rows"
    assert aside in text
