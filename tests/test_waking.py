"""Whoever adds rows calls idle workers: once a transaction, after its commit, and only where somebody asked for it."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.db.migrations.state import ProjectState
from django.test.utils import CaptureQueriesContext

from django_taskclaim.dialects.waking import CHANNEL, Listener, why_deaf
from django_taskclaim.operations import CallOnInsert
from django_taskclaim.querysets import waking
from django_taskclaim.querysets.called import called_for
from tests.test_doctor_surroundings import Pooler
from tests.testapp.models import Job, Ledger, Photo, QuickJob, TextKey

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

only_where_sessions_call = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="needs LISTEN and NOTIFY"
)


@pytest.fixture(autouse=True)
def wanted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Workers of these tables want to be called, others' do not, and no call is followed by silence."""
    models = {Job, TextKey}
    called_for.update(models)
    silent_for(monkeypatch, 0.0)
    yield
    called_for.difference_update(models)


def silent_for(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let this process, which has called nobody so far, be silent for so long after each call."""
    monkeypatch.setattr(waking, "_callers", {})
    monkeypatch.setattr(waking, "QUIET", seconds)
    monkeypatch.setattr(waking, "SHARE", float("inf"))


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """What another session has heard so far, for ``hear`` to look at."""
    other = connections.create_connection("default")
    calls: list[str] = []
    other.ensure_connection()
    calls_of[id(calls)] = (other, Listener.on(other, lambda table, silence: calls.append(table)))
    yield calls
    del calls_of[id(calls)]
    other.close()


calls_of: dict[int, tuple[Any, Listener]] = {}


def hear(calls: list[str]) -> list[str]:
    """Return the calls since the last time; what was committed before has arrived with the answer to a statement."""
    other, listener = calls_of[id(calls)]
    with other.cursor() as cursor:
        cursor.execute("SELECT 1")
    listener.take()
    found = [*calls]
    calls.clear()
    return found


JOBS, OTHERS = Job._meta.db_table, TextKey._meta.db_table


@only_where_sessions_call
def test_every_way_to_add_rows_calls(heard: list[str]) -> None:
    Job.objects.create()
    assert hear(heard) == [JOBS]
    Job.objects.bulk_create([Job(), Job()])
    assert hear(heard) == [JOBS]
    # A proxy's rows are in the same table.
    QuickJob.objects.create()
    assert hear(heard) == [JOBS]
    # Nobody asked for these.
    Ledger.objects.create(model="Photo", key="1")
    Photo.objects.create()
    assert hear(heard) == []


@only_where_sessions_call
def test_rows_that_an_operator_opens_again_call_too(heard: list[str]) -> None:
    Job.objects.create()
    Job.objects.pause_rows()
    hear(heard)
    Job.objects.resume_rows()
    assert hear(heard) == [JOBS]
    (row,) = Job.objects.claim_batch(1)
    row.claim.complete()
    assert hear(heard) == []
    Job.objects.reset(complete=True)
    assert hear(heard) == [JOBS]


@only_where_sessions_call
def test_a_transaction_calls_once_and_only_when_it_has_committed(heard: list[str]) -> None:
    with transaction.atomic():
        for _ in range(3):
            Job.objects.create()
        TextKey.objects.create(pk="a")
        assert hear(heard) == []
    assert sorted(hear(heard)) == sorted([JOBS, OTHERS])
    with transaction.atomic():
        Job.objects.create()
        transaction.set_rollback(True)
    assert hear(heard) == []


@only_where_sessions_call
def test_a_call_outlives_the_savepoint_of_an_equal_one(heard: list[str]) -> None:
    """The hook of a savepoint goes with it, so another one is needed for the row outside."""
    with transaction.atomic():
        with transaction.atomic():
            Job.objects.create()
            transaction.set_rollback(True)
        Job.objects.create()
    assert hear(heard) == [JOBS]
    with transaction.atomic():
        with transaction.atomic():
            Job.objects.create()
        Job.objects.create()
    assert hear(heard)


@only_where_sessions_call
def test_without_autocommit_nobody_is_called(heard: list[str]) -> None:
    """Django hears of no commit then, and in the transaction itself a call would have others wait."""
    transaction.set_autocommit(False)
    try:
        Job.objects.create()
        transaction.commit()
        assert hear(heard) == []
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@only_where_sessions_call
def test_a_process_that_goes_on_inserting_calls_once_in_a_while(
    heard: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    silent_for(monkeypatch, 3600.0)
    for _ in range(3):
        Job.objects.create()
        with transaction.atomic():
            Job.objects.create()
    TextKey.objects.create(pk="a")
    assert hear(heard) == [JOBS, OTHERS]


@only_where_sessions_call
def test_calls_take_a_small_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a call takes long, because many processes insert, the silence is longer, and the calls say how long."""
    other = connections.create_connection("default")
    other.ensure_connection()
    silences: list[float] = []
    listener = Listener.on(other, lambda table, silence: silences.append(silence))
    # Any call takes more than a nanosecond.
    monkeypatch.setattr(waking, "SHARE", 1e-9)
    try:
        for _ in range(2):
            Job.objects.create()
        with other.cursor() as cursor:
            cursor.execute("SELECT 1")
        listener.take()
    finally:
        other.close()
    assert silences == [0.0, waking.LONGEST]


@only_where_sessions_call
def test_a_call_that_fails_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The session ends between the commit and the call."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        ((session,),) = cursor.fetchall()

    def end_it() -> None:
        other = connections.create_connection("default")
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [session])
        other.close()

    with transaction.atomic():
        transaction.on_commit(end_it)
        Job.objects.create()
    assert "terminating connection" in caplog.text
    # As at the end of each request.
    connection.close_if_unusable_or_obsolete()
    assert Job.objects.count() == 1


@pytest.mark.parametrize("asked", [False, True])
def test_no_query_is_counted_for_a_call(asked: bool) -> None:
    """Users count the queries of their code in tests, and a call comes or does not come."""
    if not asked:
        called_for.clear()
    with CaptureQueriesContext(connection) as queries:
        Job.objects.create()
    assert len(queries) == 1


def test_a_migration_has_raw_sql_call_as_well(request: pytest.FixtureRequest) -> None:
    operation = CallOnInsert("Job")
    assert operation.migration_name_fragment == "call_on_insert_job"
    assert operation.deconstruct() == ("CallOnInsert", ("Job",), {})
    state = ProjectState.from_apps(Job._meta.apps)
    with connection.schema_editor() as editor:
        operation.database_forwards("testapp", editor, state, state)
    try:
        if connection.vendor == "postgresql":
            calls = request.getfixturevalue("heard")
            Job.objects.create()
            hear(calls)
            insert_by_hand()
            assert hear(calls) == [JOBS]
            Job.objects.update(counter=1)
            assert hear(calls) == []
    finally:
        with connection.schema_editor() as editor:
            operation.database_backwards("testapp", editor, state, state)
    if connection.vendor == "postgresql":
        insert_by_hand()
        assert hear(calls) == []


def insert_by_hand() -> None:
    names = ", ".join(
        connection.ops.quote_name(field.column)
        for field in Job._meta.concrete_fields
        if not field.primary_key
    )
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {JOBS} ({names}) SELECT {names} FROM {JOBS} LIMIT 1")


@only_where_sessions_call
def test_who_is_said_to_have_a_pooler_does_not_listen() -> None:
    assert why_deaf(connection) == ""
    other = connections.create_connection("default")
    try:
        other.settings_dict = {**connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS": True}
        assert why_deaf(other) == "a connection pooler stands before the database"
    finally:
        other.close()


@only_where_sessions_call
def test_nobody_listens_behind_a_pooler() -> None:
    """The session belongs to another client by the time the call comes."""
    pooler = Pooler()
    pooler.start()
    other = connections.create_connection("default")
    plain = {"sslmode": "disable", "gssencmode": "disable"}
    other.settings_dict = connection.settings_dict | {
        "HOST": "127.0.0.1",
        "PORT": pooler.port,
        "OPTIONS": connection.settings_dict["OPTIONS"] | plain,
    }
    try:
        assert why_deaf(other) == "a connection pooler stands before the database"
    finally:
        other.close()


@only_where_sessions_call
def test_the_end_of_a_session_is_seen_while_it_listens() -> None:
    other = connections.create_connection("default")
    other.ensure_connection()
    listener = Listener.on(other, lambda table, silence: None)
    assert listener.still_on(other)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = %s",
            [f"LISTEN {CHANNEL}"],
        )
    with pytest.raises(OperationalError):
        take_until_the_end(listener)
    other.close()
    assert not listener.still_on(other)


def take_until_the_end(listener: Listener) -> None:
    while True:
        listener.take()
