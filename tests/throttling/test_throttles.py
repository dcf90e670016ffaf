"""What a process's throttles say to its threads, write down for people, and bear."""

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import Error, connection, connections

from django_taskclaim.contention import contention_retried, retry_on_contention
from django_taskclaim.dialects import DatabaseLater, DatabaseNow
from django_taskclaim.doctor.movement import why_nothing_moves
from django_taskclaim.handlers import Handler
from django_taskclaim.models import Throttle
from django_taskclaim.overview import overview
from django_taskclaim.throttling import Answer, Sql, Surroundings, ok, stop
from django_taskclaim.throttling.records import prune
from django_taskclaim.throttling.throttles import Throttles
from django_taskclaim.worker.claimer import Claimer
from django_taskclaim.worker.inflight import InFlight, Result, units_of
from django_taskclaim.worker.options import WorkerOptions
from django_taskclaim.worker.outcomes import DONE
from django_taskclaim.worker.service import Service
from tests.factories import make
from tests.test_commands import run
from tests.testapp.models import Child, Job, Photo, PhotoProxy, UuidKey
from tests.throttling.conftest import Session, needs, wait_until

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

Make = Callable[..., Throttles]

ROWS = Sql("SELECT COUNT(*) FROM testapp_uuidkey", at_most=0, name="rows")


def configure(settings: Any, *checks: Any, **more: Any) -> None:
    settings.TASKCLAIM = {"HEALTH_CHECKS": list(checks), "HEALTH_EVERY": 60, **more}


def look(throttles: Throttles) -> bool:
    """Let every check be due, and update."""
    for watch in throttles._watches:
        watch.due_at = 0.0
    return throttles.update()


def told_by(throttles: Throttles) -> str | None:
    """Look, and return what stops claims then."""
    look(throttles)
    return throttles.reason_for(Photo)


class Told:
    """A check that says what it was told to."""

    def __init__(self, answer: object = None) -> None:
        self.answer = answer
        self.asked: list[Surroundings] = []

    def __call__(self, where: Surroundings) -> object:
        self.asked.append(where)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture(autouse=True)
def spoken(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "django_taskclaim.throttling")
    return caplog


def records(spoken: pytest.LogCaptureFixture) -> list[Any]:
    """Return what throttles said; a thread of another test may say something of its own meanwhile."""
    return [one for one in spoken.records if one.name == "django_taskclaim.throttling"]


def test_without_checks_nothing_is_asked_and_nothing_stops(
    throttles: Make, django_assert_num_queries: Any
) -> None:
    process = throttles()
    assert process.room(Photo) is None
    with django_assert_num_queries(0):
        assert process.update() is False
    assert process.reason_for(Photo) is None


def test_a_stop_begins_changes_and_ends_with_its_cause(
    throttles: Make, settings: Any, spoken: pytest.LogCaptureFixture
) -> None:
    configure(settings, ROWS)
    process = throttles()
    assert process.room(Photo) == 0, "nothing is claimed before the first look"
    assert process.update() is True
    assert process.room(Photo) is None
    assert process.reason_for(Photo) is None
    make(UuidKey, 2)
    look(process)
    assert process.reason_for(Photo) == "rows is 2, more than 0"
    assert not process.gives_back(Photo)
    row = Throttle.objects.get()
    assert (row.process, row.label, row.source) == ("worker@here:1", "testapp.photo", "rows")
    assert row.reason == "rows is 2, more than 0"
    assert row.since_at <= row.until
    make(UuidKey, 1)
    look(process)
    again = Throttle.objects.get()
    assert (again.pk, again.since_at) == (row.pk, row.since_at)
    assert again.reason == "rows is 3, more than 0"
    assert again.until >= row.until
    UuidKey.objects.all().delete()
    look(process)
    assert process.reason_for(Photo) is None
    assert not Throttle.objects.exists()
    told = [(r.event, r.model, r.source) for r in records(spoken)]
    assert told == [
        ("throttled", "testapp.Photo", "rows"),
        ("unthrottled", "testapp.Photo", "rows"),
    ]


def test_a_check_of_the_server_is_asked_once_for_all_models(
    throttles: Make, settings: Any, django_assert_num_queries: Any
) -> None:
    make(UuidKey, 1)
    configure(settings, ROWS)
    process = throttles(Photo, UuidKey)
    process.update()
    assert process.reason_for(Photo) == process.reason_for(UuidKey) == "rows is 1, more than 0"
    assert set(Throttle.objects.values_list("label", flat=True)) == {
        "testapp.photo",
        "testapp.uuidkey",
    }
    with django_assert_num_queries(0):
        process.update()


def test_a_models_own_checks_stop_it_alone(throttles: Make, settings: Any) -> None:
    make(UuidKey, 1)
    process = Throttles("worker@here:1", "default", {Photo: [ROWS], UuidKey: []})
    process.update()
    assert process.reason_for(Photo)
    assert process.reason_for(UuidKey) is None


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ok(), None),
        (None, None),
        (True, None),
        (stop("the moon is full"), "the moon is full"),
        ("the moon is full", "the moon is full"),
        (False, "the check says no"),
    ],
)
def test_a_callable_may_answer_shortly(
    throttles: Make, settings: Any, answer: object, reason: str | None
) -> None:
    check = Told(answer)
    configure(settings, check)
    process = throttles()
    process.update()
    wait_until(lambda: len(check.asked) >= 1)
    assert check.asked[0] == Surroundings(Photo, "default")
    if reason:
        assert wait_until(lambda: told_by(process)) == reason
    else:
        wait_until(lambda: look(process) or len(check.asked) >= 3)
        assert process.reason_for(Photo) is None


@pytest.mark.parametrize("trouble", [RuntimeError("no connection to the moon"), 42])
def test_a_check_that_does_not_work_stops_nothing_and_is_told(
    throttles: Make, settings: Any, spoken: pytest.LogCaptureFixture, trouble: object
) -> None:
    """The last thing it said is forgotten as well, and the warning is not repeated each time."""
    check = Told("wait")
    if isinstance(trouble, Exception):
        check.__qualname__ = "moon_is_up"  # type: ignore[attr-defined]
    configure(settings, check)
    process = throttles()
    process.update()
    wait_until(lambda: told_by(process))
    check.answer = trouble
    wait_until(lambda: not look(process) and process.reason_for(Photo) is None)
    many = len(check.asked)
    wait_until(lambda: not look(process) and len(check.asked) > many + 3)
    warnings = [r for r in records(spoken) if r.event == "check_broken"]
    assert len(warnings) == 1
    assert warnings[0].levelno == logging.WARNING
    text = warnings[0].getMessage()
    assert text.startswith("The health check ")
    assert "does not work, so it stops nothing" in text
    assert ("RuntimeError: no connection to the moon" in text) or ("not 42" in text)


def test_a_statement_that_does_not_work_stops_nothing(
    throttles: Make, settings: Any, spoken: pytest.LogCaptureFixture
) -> None:
    configure(settings, Sql("SELECT nothing FROM nowhere", at_most=1), ROWS)
    make(UuidKey, 1)
    process = throttles()
    # One look may leave the second check to the next one.
    wait_until(lambda: told_by(process) == "rows is 1, more than 0")
    assert "does not work" in spoken.text


def test_a_check_that_hangs_holds_nobody_up(
    throttles: Make, settings: Any, spoken: pytest.LogCaptureFixture
) -> None:
    hangs = threading.Event()
    calls: list[float] = []

    def moon(where: Surroundings) -> None:
        calls.append(time.monotonic())
        hangs.wait(60)

    make(UuidKey, 1)
    configure(settings, moon, ROWS, HEALTH_EVERY=0.3)
    process = throttles()
    try:
        began = time.monotonic()
        wait_until(lambda: told_by(process) == "rows is 1, more than 0")
        wait_until(lambda: "has not answered for" in (look(process), spoken.text)[1])
        assert time.monotonic() - began < 30
        assert len(calls) == 1, "it is not asked again while it hangs"
    finally:
        hangs.set()
    wait_until(lambda: (look(process), len(calls) > 1)[1])


def test_what_a_slow_check_said_last_holds_until_it_answers(
    throttles: Make, settings: Any, spoken: pytest.LogCaptureFixture
) -> None:
    slow = threading.Event()
    calls: list[int] = []

    def moon(where: Surroundings) -> str | None:
        calls.append(1)
        if len(calls) == 1:
            return "the moon is full"
        slow.wait(60)
        return None

    configure(settings, moon)
    process = throttles()
    try:
        wait_until(lambda: told_by(process))
        wait_until(lambda: (look(process), len(calls) == 2)[1])
        assert told_by(process) == "the moon is full"
    finally:
        slow.set()
    wait_until(lambda: process.reason_for(Photo) is None)
    assert "does not work" not in spoken.text


def test_a_check_of_ones_own_leaves_no_connection_behind(throttles: Make, settings: Any) -> None:
    seen: list[Any] = []

    def rows(where: Surroundings) -> Answer:
        seen.append(where.connection)
        with where.connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM testapp_uuidkey")
            (count,) = cursor.fetchone()
        return stop(f"{count} rows")

    configure(settings, rows)
    process = throttles()
    process.update()
    assert wait_until(lambda: process.reason_for(Photo)) == "0 rows"
    wait_until(lambda: seen[0].connection is None)
    assert seen[0] is not connections["default"]


def test_a_stop_may_say_how_long_it_lasts(throttles: Make, settings: Any) -> None:
    """So long it is not asked again, and then it ends by itself."""
    check = Told(stop("until the moon sets", lasting=9))
    configure(settings, check, HEALTH_EVERY=0.05)
    process = throttles()
    began = time.monotonic()
    process.update()
    wait_until(lambda: process.reason_for(Photo), what="the thread answers")
    check.answer = ok()
    time.sleep(0.2)
    process.update()
    assert Throttle.objects.get().reason == "until the moon sets"
    wait_until(lambda: process.reason_for(Photo) is None)
    assert time.monotonic() - began >= 9
    assert len(check.asked) == 1
    process.update()
    assert not Throttle.objects.exists()


def test_a_stop_ends_by_itself_when_nobody_asks_any_more(throttles: Make, settings: Any) -> None:
    make(UuidKey, 1)
    configure(settings, ROWS, HEALTH_EVERY=3)
    process = throttles()
    process.update()
    assert process.reason_for(Photo)
    wait_until(lambda: process.reason_for(Photo) is None)


# The circuit breaker


def test_failures_trip_the_breaker_of_their_model(throttles: Make, settings: Any) -> None:
    settings.TASKCLAIM = {"BREAKER": {"outcomes": 4, "rest": 600}}
    process = throttles(Photo, UuidKey)
    process.heard(Photo, good=2, bad=2)
    process.heard(UuidKey, good=4)
    assert process.reason_for(Photo) == "2 of the last 4 tries failed"
    assert process.gives_back(Photo)
    assert process.reason_for(UuidKey) is None
    assert not process.gives_back(UuidKey)
    process.update()
    row = Throttle.objects.get()
    assert (row.label, row.source) == ("testapp.photo", "circuit breaker")
    left = row.until - row.since_at
    assert timedelta(seconds=590) < left <= timedelta(seconds=600)


def test_after_the_rest_a_small_batch_decides(throttles: Make, settings: Any) -> None:
    settings.TASKCLAIM = {"BREAKER": {"outcomes": 4, "rest": 8}}
    process = throttles()
    process.heard(Photo, bad=4)
    assert process.reason_for(Photo)
    wait_until(lambda: process.reason_for(Photo) is None)
    assert process.room(Photo) == 3
    process.claimed(Photo, 3)
    assert process.reason_for(Photo) == "waiting for what becomes of 3 rows"
    process.heard(Photo, good=1)
    assert process.reason_for(Photo) is None
    assert process.room(Photo) is None
    process.update()
    assert not Throttle.objects.exists()


def test_without_a_breaker_failures_stop_nothing(throttles: Make) -> None:
    process = throttles()
    process.heard(Photo, bad=1000)
    assert process.reason_for(Photo) is None
    assert process.room(Photo) is None


def contend(others: Callable[[], Session]) -> None:
    """Meet real contention once: another session holds what the first try wants, and lets go before the second."""
    make(Photo, 1)
    holder = others()
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 0")
        holder.execute("BEGIN IMMEDIATE")
        release = lambda: holder.execute("ROLLBACK")  # noqa: E731 - one of two
    else:
        holder.begin()
        holder.execute("SELECT id FROM testapp_photo FOR UPDATE")
        release = holder.connection.rollback
    tries: list[int] = []

    @retry_on_contention(retries=2, wait=0, max_wait=0, sleep=lambda seconds: release())
    def touch() -> None:
        tries.append(1)
        with connection.cursor() as cursor:
            if connection.vendor != "sqlite":
                cursor.execute("SELECT id FROM testapp_photo FOR UPDATE NOWAIT")
            cursor.execute("UPDATE testapp_photo SET counter = counter + 1")

    try:
        touch()
    finally:
        if connection.vendor == "sqlite":
            connection.close()
    # SQLite meets the other writer at BEGIN, before the function runs.
    assert len(tries) == (1 if connection.vendor == "sqlite" else 2)


@pytest.mark.parametrize("working", [True, False])
def test_contention_that_was_retried_counts_as_a_failure(
    throttles: Make, settings: Any, session: Callable[[], Session], working: bool
) -> None:
    """Of the model that is worked on; upkeep such as a renewal is nobody's try."""
    settings.TASKCLAIM = {"BREAKER": {"outcomes": 1}}
    process = throttles(Photo, UuidKey)
    if working:
        with process.working_on(Photo):
            contend(session)
    else:
        contend(session)
    assert process.reason_for(Photo) == ("1 of the last 1 tries failed" if working else None)
    assert process.reason_for(UuidKey) is None


def test_contention_that_a_result_meets_counts_for_its_model(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TASKCLAIM = {"BREAKER": {"outcomes": 1}}
    monkeypatch.setattr(Handler, "complete", lambda handler, rows: contention_retried.send(None))
    options, inflight = WorkerOptions(("testapp.Job",), "worker", "default"), InFlight()
    handlers = [Handler(Job, print), Handler(Photo, print)]
    service = Service(options, handlers, inflight)
    service.throttles.listen()
    make(Job)
    units = units_of(handlers[0], Job.objects.claim_batch(1))
    inflight.add(units)
    inflight.settle(units[0], [Result(units[0].tasks[0], DONE, 0.0)])
    Claimer(options, handlers, inflight, service).writer.write()
    service.throttles.close()
    assert service.throttles.reason_for(Job)
    assert service.throttles.reason_for(Photo) is None


def test_a_process_that_closed_hears_no_more(
    throttles: Make, settings: Any, session: Callable[[], Session]
) -> None:
    settings.TASKCLAIM = {"BREAKER": {"outcomes": 1}}
    process = throttles()
    process.close()
    with process.working_on(Photo):
        contend(session)
    assert process.reason_for(Photo) is None


# The rows that people read


def test_a_process_that_signs_off_takes_its_rows_along(throttles: Make, settings: Any) -> None:
    make(UuidKey, 1)
    configure(settings, ROWS)
    one, other = throttles(process="worker@here:1"), throttles(process="worker@here:2")
    one.update()
    other.update()
    one.sign_off()
    assert list(Throttle.objects.values_list("process", flat=True)) == ["worker@here:2"]


def test_a_row_that_somebody_deleted_is_written_again(throttles: Make, settings: Any) -> None:
    make(UuidKey, 1)
    configure(settings, ROWS)
    process = throttles()
    process.update()
    Throttle.objects.all().delete()
    look(process)
    assert Throttle.objects.count() == 1


def throttled(process: str, *, seconds: float, **facts: str) -> None:
    told = {"label": "testapp.photo", "source": "replica lag", "reason": "lags 42 s", **facts}
    Throttle.objects.create(
        process=process,
        since_at=DatabaseNow(),
        until=DatabaseLater(timedelta(seconds=seconds)),
        **told,
    )


def test_only_what_is_in_force_is_shown() -> None:
    throttled("worker@a:1", seconds=60)
    throttled("worker@b:1", seconds=-1)
    throttled("worker@c:1", seconds=60, label="testapp.uuidkey")
    for model in (Photo, PhotoProxy):
        (shown,) = overview(model, "default").throttles
        assert shown.process == "worker@a:1"
    assert overview(Child, "default").throttles == []


def test_rows_of_processes_that_died_are_forgotten(settings: Any) -> None:
    settings.TASKCLAIM = {"WORKER_RETENTION": 3600}
    throttled("worker@a:1", seconds=-3500)
    throttled("worker@b:1", seconds=-3700)
    prune("default")
    assert Throttle.objects.get().process == "worker@a:1"


def test_claimstatus_tells_who_is_throttled_by_what() -> None:
    for number in range(1, 6):
        throttled(f"worker@a:{number}", seconds=60 + number, reason=f"replica r1 lags 4{number} s")
    throttled("worker@a:1", seconds=60, source="circuit breaker", reason="9 of 10 tries failed")
    lines = [line for line in run("claimstatus", "testapp.Photo").splitlines() if "THROT" in line]
    assert len(lines) == 2
    assert lines[0].startswith(
        "  THROTTLED on worker@a:5, worker@a:4, worker@a:3 and 2 more by replica lag since "
    )
    assert ": replica r1 lags 45 s, until " in lines[0]
    assert lines[0].endswith(" UTC")
    assert "THROTTLED on worker@a:1 by circuit breaker since" in lines[1]


def test_claimdoctor_tells_it_as_a_reason_why_nothing_moves() -> None:
    throttled("worker@a:1", seconds=60)
    told = [finding.message for finding in why_nothing_moves(Photo, "default")]
    (line,) = (text for text in told if "throttled" in text)
    assert line.startswith(
        "testapp.Photo is throttled on worker@a:1 by replica lag: lags 42 s, until "
    )


# A database that is away


@needs("busy_sessions")
def test_an_outage_is_the_callers_to_hear_of_and_to_survive(
    throttles: Make, settings: Any, session: Callable[[], Session]
) -> None:
    configure(settings, ROWS)
    make(UuidKey, 1)
    process = throttles()
    process.update()
    end = {"postgresql": "SELECT pg_terminate_backend(%s)", "mysql": "KILL %s"}[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_backend_pid()"
            if connection.vendor == "postgresql"
            else "SELECT CONNECTION_ID()"
        )
        (number,) = cursor.fetchone()
    session().execute(end % number)
    with pytest.raises(Error):
        look(process)
    connection.close()
    look(process)
    assert process.reason_for(Photo) == "rows is 1, more than 0"
    assert Throttle.objects.count() == 1
