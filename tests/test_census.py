"""A large table is told of without reading it, and a question that takes too long is cut off."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_taskclaim import census as module
from django_taskclaim import overview as overviews
from django_taskclaim.admin.control_room.crew import lines
from django_taskclaim.census import census
from django_taskclaim.dialects import dialect_for
from django_taskclaim.doctor.movement import reasons
from django_taskclaim.overview import Worker, overview
from django_taskclaim.querysets.scope import Desk
from tests.behaviour.support import clock, set_raw
from tests.factories import make
from tests.testapp.models import Child, CompositeKey, Job, TextKey

#: Counts to a number that takes seconds everywhere.
ENDLESS = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900000000)"
    " SELECT COUNT(*) FROM n"
)


@pytest.fixture
def analysed(transactional_db: None) -> Any:
    """Return what refreshes the statistics of the table of jobs."""
    desk = Desk.of(Job, "default")

    def analyse() -> None:
        with connection.cursor() as cursor:
            cursor.execute(desk.dialect.refresh_statistics(desk.table))
            if connection.vendor == "mysql":
                cursor.fetchall()

    return analyse


def jobs(open_: int, complete: int, failed: int) -> None:
    Job.objects.bulk_create(
        Job(status=status)
        for status, n in (("open", open_), ("complete", complete), ("failed", failed))
        for _ in range(n)
    )


def test_a_small_table_is_counted(analysed: Any) -> None:
    jobs(30, 20, 10)
    analysed()
    seen = census(Job, "default")
    assert (seen.progress.open, seen.progress.complete, seen.progress.failed) == (30, 20, 10)
    assert not seen.estimated


def test_of_a_large_table_what_is_little_is_counted_and_the_rest_estimated(
    analysed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SMALL", 100)
    monkeypatch.setattr(module, "MOST", 50)
    jobs(3000, 1000, 7)
    analysed()
    seen = census(Job, "default")
    assert seen.progress.failed == 7
    assert "failed" not in seen.estimated
    assert seen.estimated == {"open", "complete"}
    assert seen.progress.total == pytest.approx(4007, rel=0.05)
    assert seen.progress.open == pytest.approx(3000, rel=0.05)
    assert seen.progress.complete == pytest.approx(1000, rel=0.1)


def test_progress_is_seen_before_statistics_are_made_anew(
    analysed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SMALL", 100)
    monkeypatch.setattr(module, "MOST", 50)
    jobs(4000, 0, 0)
    analysed()
    for _ in range(2):
        Job.objects.complete(Job.objects.claim_batch(1000))
    assert census(Job, "default").progress.complete == pytest.approx(2000, rel=0.1)


@pytest.mark.parametrize("model", [TextKey, CompositeKey], ids=lambda model: model.__name__)
def test_keys_that_are_no_whole_numbers_are_left_to_the_statistics(
    analysed: Any, monkeypatch: pytest.MonkeyPatch, model: Any
) -> None:
    monkeypatch.setattr(module, "SMALL", 5)
    monkeypatch.setattr(module, "MOST", 5)
    make(model, 60)
    desk = Desk.of(model, "default")
    with connection.cursor() as cursor:
        cursor.execute(desk.dialect.refresh_statistics(desk.table))
        cursor.fetchall() if connection.vendor == "mysql" else None
    assert census(model, "default").progress.open == pytest.approx(60, abs=20)


def test_an_estimate_is_told_as_one(analysed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL", 100)
    monkeypatch.setattr(module, "MOST", 50)
    jobs(3000, 1000, 0)
    analysed()
    seen = overview(Job, "default", exact=False)
    text = " ".join(finding.message for finding in reasons(seen))
    assert seen.due == pytest.approx(3000, rel=0.25)
    assert "About " in text


def test_of_many_running_rows_no_more_are_read_than_the_first(
    analysed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SMALL", 100)
    for reader in (module, overviews):
        monkeypatch.setattr(reader, "MOST", 50)
    jobs(400, 2600, 0)
    rows = Job.objects.claim_batch(400, claimed_by="a@web-1:1")
    for row in rows[:2]:
        set_raw(row, "expires_at", clock("-1 HOUR"))
    analysed()
    name = connection.ops.quote_name("testapp_job") + "." + connection.ops.quote_name("expires_at")
    with CaptureQueriesContext(connection) as sent:
        seen = overview(Job, "default", exact=False)
    leases = [one["sql"] for one in sent if name in one["sql"]]
    assert leases
    assert all("LIMIT 50" in one for one in leases)
    assert seen.expired == 2
    assert seen.expired_since is not None
    assert [(holder.name, holder.rows) for holder in seen.holders] == [("a@web-1:1", 50)]
    text = " ".join(finding.message for finding in reasons(seen))
    assert "The leases of at least 2 rows have ended, the first 1 h ago" in text
    assert "a@web-1:1 (50+)" in text


def test_each_process_holds_what_it_has_reported_where_not_all_running_rows_were_read(
    db: None,
) -> None:
    make(Job, 3)
    (row, *_others) = Job.objects.claim_batch(3, durable=False)
    name = row.claim.token.holder.partition("#")[0]
    seen = overview(Job, "default")
    facts: dict[str, Any] = {"labels": ("testapp.Job",), "state": "running", "held": 7_000}
    facts |= {"started_at": seen.now, "seen_at": seen.now, "done": 0, "failed": 0, "last_error": ""}
    process = Worker(name=name, alive=True, **facts)

    def held(estimated: frozenset[str], *labels: str) -> str:
        one = replace(process, labels=("testapp.Job", *labels))
        told = replace(seen, estimated=estimated)
        (line,) = lines(Job, [one], told, {}, None, now=seen.now, sees_all=True)
        return line.held

    assert held(frozenset()) == "3"
    assert held(frozenset({"processing"})) in {"7000", "7,000"}
    # What it reported is of all its models.
    assert held(frozenset({"processing"}), "testapp.Photo") == "3"


def test_rows_that_inherit_their_claim_columns_are_counted(
    analysed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SMALL", 1)
    make(Child, 3)
    assert census(Child, "default").progress.open == 3


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a caller's transaction"])
def test_a_question_that_takes_too_long_is_cut_off(transactional_db: None, inside: bool) -> None:
    dialect = dialect_for(connection)
    make(Job, 1)

    def ask() -> None:
        with dialect.time_limit(timedelta(milliseconds=200)), connection.cursor() as cursor:
            if connection.vendor == "mysql":
                # MariaDB and MySQL bound such recursions themselves.
                cursor.execute(
                    "SELECT SUM(a.ordinal_position * b.ordinal_position * c.ordinal_position)"
                    " FROM information_schema.columns a, information_schema.columns b,"
                    " information_schema.columns c"
                )
            else:
                cursor.execute(ENDLESS)

    if inside:
        with transaction.atomic(), pytest.raises(OperationalError):
            ask()
    else:
        with pytest.raises(OperationalError):
            ask()
    assert Job.objects.count() == 1


def test_statements_that_are_each_quick_share_the_limit(transactional_db: None) -> None:
    """A hundred of them, each three quarters as long as all may take, end with the second."""
    answered: list[int] = []
    with pytest.raises(OperationalError):
        take_moments(100, answered, limit=timedelta(milliseconds=400))
    # Not by the clock, which a busy machine stops where it likes: a server that sleeps says how long that was.
    # MySQL answers also one that it cuts short.
    assert len(answered) <= 2 or connection.vendor == "sqlite"
    assert Job.objects.count() == 0


def take_moments(times: int, answered: list[int], *, limit: timedelta) -> None:
    """Ask as often something that takes three tenths of a second, on SQLite about that, and note what was answered."""
    sleep = {"postgresql": "SELECT pg_sleep(0.3)", "mysql": "SELECT SLEEP(0.3)"}
    statement = sleep.get(connection.vendor, ENDLESS.replace("900000000", "900000"))
    with dialect_for(connection).time_limit(limit), connection.cursor() as cursor:
        for number in range(times):
            cursor.execute(statement)
            cursor.fetchall()
            answered.append(number)


def test_the_limit_is_gone_afterwards(transactional_db: None) -> None:
    dialect = dialect_for(connection)
    with transaction.atomic():
        before = limit()
        # Long enough for the question about it.
        with dialect.time_limit(timedelta(minutes=10)):
            during = limit()
        assert limit() == before
    assert limit() == before
    assert (during != before) == (connection.vendor != "sqlite")


def limit() -> Any:
    """Return what the server says of the session's limit."""
    if connection.vendor == "sqlite":
        return None
    name = {"postgresql": "SHOW statement_timeout"}.get(connection.vendor)
    if name is None:
        maria = getattr(connection, "mysql_is_mariadb", False)
        name = f"SELECT @@SESSION.{'max_statement_time' if maria else 'max_execution_time'}"
    with connection.cursor() as cursor:
        cursor.execute(name)
        return cursor.fetchone()[0]
