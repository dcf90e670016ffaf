"""The health checks on real servers: they see what is really going on, and stay within their time."""

import re
import threading
import time
from collections.abc import Callable

import pytest
from django.db import OperationalError, connection

from django_taskclaim.dialects.pulse import pulse_of
from django_taskclaim.throttling import (
    Answer,
    AutovacuumOnTable,
    LongTransactions,
    ReplicaLag,
    Sql,
    Surroundings,
    ThreadsRunning,
    ok,
    stop,
)
from django_taskclaim.throttling.configured import refused
from django_taskclaim.throttling.health import PATIENCE
from tests.factories import make
from tests.sessions import end_sessions
from tests.testapp.models import Photo, UuidKey
from tests.throttling.conftest import HERE, Session, needs, wait_until

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

Open = Callable[[], Session]

POSTGRESQL = pytest.mark.skipif(connection.vendor != "postgresql", reason="needs VACUUM and roles")
MYSQL = pytest.mark.skipif(connection.vendor != "mysql", reason="needs privileges of its own kind")


def told(answer: Answer) -> float:
    """Return the first number of a stop's reason."""
    assert answer.reason is not None
    return float(re.findall(r"\d+(?:\.\d+)?", answer.reason)[0])


# Long transactions


@needs("oldest_transaction")
def test_a_long_transaction_is_seen_with_its_age(session: Open) -> None:
    began = time.monotonic()
    other = session()
    other.begin()
    make(Photo, 1)
    other.execute("SELECT COUNT(*) FROM testapp_photo")
    check = LongTransactions(at_most=1)
    # Rarely: InnoDB goes on telling what it has told before as long as it is asked more often than each 0.1 s.
    answer = wait_until(lambda: said if (said := check(HERE)) != ok() else None, every=0.5)
    age = told(answer)
    assert age >= 1
    assert "a transaction has been open for" in str(answer.reason)
    # On MySQL and MariaDB others of the server are seen, too; a wrong zone would be out by half an hour at least.
    assert age <= (time.monotonic() - began + 1 if connection.vendor == "postgresql" else 1500)
    assert LongTransactions(at_most=3600)(HERE) == ok()


@POSTGRESQL
def test_no_other_transaction_is_well(session: Open) -> None:
    other = session()
    other.begin()
    other.execute("SELECT 1")
    other.connection.rollback()
    time.sleep(0.3)
    assert LongTransactions(at_most=0.2)(HERE) == ok()


@MYSQL
def test_the_zone_of_the_session_alters_no_age(session: Open) -> None:
    other = session()
    other.begin()
    make(Photo, 1)
    other.execute("SELECT COUNT(*) FROM testapp_photo")
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION time_zone = '+05:00'")
    try:
        assert pulse_of(connection).oldest_transaction().total_seconds() < 1500
    finally:
        connection.close()


# Threads running


@needs("busy_sessions")
def test_sessions_that_run_are_counted(session: Open) -> None:
    sleep = {"postgresql": "SELECT pg_sleep(60)", "mysql": "SELECT SLEEP(60)"}[connection.vendor]
    others = [session() for _ in range(3)]
    for other in others:
        other.execute_meanwhile(sleep)

    def all_have_ended() -> bool:
        # One may begin only now: on MySQL and MariaDB somebody else's session may have been the third that ran.
        end_sessions()
        return not any(other.is_busy for other in others)

    try:
        answer = wait_until(
            lambda: said if (said := ThreadsRunning(at_most=2)(HERE)) != ok() else None
        )
        assert told(answer) >= 3
    finally:
        wait_until(all_have_ended)
    assert ThreadsRunning(at_most=10_000)(HERE) == ok()


# Any SQL


def test_a_number_of_ones_own_is_compared() -> None:
    make(Photo, 3)
    count = "SELECT COUNT(*) FROM testapp_photo WHERE url NOT LIKE '100%'"
    assert Sql(count, at_most=3)(HERE) == ok()
    assert Sql(count, at_most=2)(HERE) == stop(f"{count} is 3, more than 2")
    assert Sql(count, at_most=1, name="photos")(HERE) == stop("photos is 3, more than 1")
    assert Sql("SELECT MAX(width) FROM testapp_photo", at_most=0)(HERE) == ok()


def test_what_is_no_number_is_no_answer() -> None:
    with pytest.raises(ValueError, match="0 rows; a check needs one row with one number"):
        Sql("SELECT 1 FROM testapp_photo", at_most=0)(HERE)


def test_nothing_a_check_writes_is_kept() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("needs a SELECT that writes")
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION writes() RETURNS int LANGUAGE sql AS"
            " 'UPDATE testapp_photo SET counter = 7 RETURNING 1'"
        )
    try:
        make(Photo, 1)
        assert Sql("SELECT writes()", at_most=1)(HERE) == ok()
        assert Photo.objects.get().counter == 0
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION writes()")


ENDLESS = {
    "sqlite": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT COUNT(*) FROM n",
    "postgresql": "SELECT COUNT(pg_sleep(0.1)) FROM generate_series(1, 100000)",
    "mysql": "SELECT COUNT(*) FROM information_schema.COLUMNS a, information_schema.COLUMNS b,"
    " information_schema.COLUMNS c",
}


def test_a_statement_that_hangs_is_ended() -> None:
    """Also what comes after it on the connection goes by the usual limits again."""
    began = time.monotonic()
    with pytest.raises(OperationalError):
        Sql(ENDLESS[connection.vendor], at_most=1)(HERE)
    assert PATIENCE * 0.9 <= time.monotonic() - began < PATIENCE + 40
    slow = {
        "sqlite": "SELECT 1",
        "postgresql": f"SELECT 1 FROM pg_sleep({PATIENCE + 0.5})",
        "mysql": f"SELECT SLEEP({PATIENCE + 0.5})",
    }
    with connection.cursor() as cursor:
        cursor.execute(slow[connection.vendor])
        assert cursor.fetchone() == (0 if connection.vendor == "mysql" else 1,)


# Vacuum


@POSTGRESQL
def test_a_vacuum_of_the_table_is_seen_and_no_other(session: Open) -> None:
    make(Photo, 3000)
    vacuum, look = session(), AutovacuumOnTable()
    vacuum.execute("SET vacuum_cost_delay = 100", "SET vacuum_cost_limit = 1")
    number = vacuum.number()
    vacuum.execute_meanwhile("VACUUM testapp_photo")
    try:
        answer = wait_until(lambda: said if (said := look(HERE)) != ok() else None)
        assert re.fullmatch(
            r"testapp_photo is being vacuumed: [a-z ]+, \d+ of \d+ pages", str(answer.reason)
        )
        assert look(Surroundings(UuidKey, "default")) == ok()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_cancel_backend(%s)", [number])
    wait_until(lambda: look(HERE) == ok())


@pytest.mark.skipif(connection.vendor == "postgresql", reason="needs a database without VACUUM")
def test_elsewhere_nothing_is_vacuumed() -> None:
    assert AutovacuumOnTable()(HERE) == ok()
    assert refused(Photo, "default", [AutovacuumOnTable()]) == []


# What a database cannot answer


@pytest.mark.skipif(connection.vendor != "sqlite", reason="needs a database that is no server")
@pytest.mark.parametrize("check", [ReplicaLag(), LongTransactions(), ThreadsRunning()], ids=str)
def test_a_check_that_cannot_be_answered_is_refused(check: object) -> None:
    (sentence,) = refused(Photo, "default", [check])
    assert sentence.startswith("SQLite (database 'default') cannot answer ")
    assert sentence.endswith(" is for PostgreSQL, MySQL and MariaDB.")


@pytest.mark.skipif(connection.vendor == "sqlite", reason="needs a server")
def test_a_check_that_can_be_answered_is_not() -> None:
    checks = [LongTransactions(), ThreadsRunning(), AutovacuumOnTable(), Sql("SELECT 1", at_most=1)]
    assert refused(Photo, "default", checks) == []


@pytest.mark.skipif(connection.vendor == "sqlite", reason="needs a server")
def test_a_database_that_is_no_replica_is_refused() -> None:
    (sentence,) = refused(Photo, "default", [ReplicaLag(using="other")])
    assert sentence.startswith("The database 'other' is no replica")


@MYSQL
def test_a_primary_that_knows_of_no_lag_is_refused() -> None:
    (sentence,) = refused(Photo, "default", [ReplicaLag()])
    assert 'ReplicaLag(using="replica")' in sentence


@POSTGRESQL
def test_a_user_who_may_not_look_is_told_so(session: Open) -> None:
    """Without the role every check would find everything well."""
    with connection.cursor() as cursor:
        cursor.execute("DROP ROLE IF EXISTS taskclaim_blind")
        cursor.execute("CREATE ROLE taskclaim_blind")
        cursor.execute("SET ROLE taskclaim_blind")
    try:
        sentences = refused(Photo, "default", [LongTransactions(), Sql("SELECT 1", at_most=1)])
        assert len(sentences) == 1
        assert (
            "the user taskclaim_blind may not see what sessions of other users do" in sentences[0]
        )
        assert 'GRANT pg_read_all_stats TO "taskclaim_blind";' in sentences[0]
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET ROLE")
            cursor.execute("DROP ROLE taskclaim_blind")


@MYSQL
def test_a_login_that_may_not_look_is_told_so() -> None:
    name = connection.settings_dict["NAME"]
    with connection.cursor() as cursor:
        cursor.execute("DROP USER IF EXISTS 'taskclaim_blind'@'%%'", [])
        cursor.execute("CREATE USER 'taskclaim_blind'@'%%' IDENTIFIED BY 'blind'", [])
        cursor.execute(f"GRANT ALL ON `{name}`.* TO 'taskclaim_blind'@'%%'", [])
    usual = dict(connection.settings_dict)
    connection.close()
    connection.settings_dict.update(USER="taskclaim_blind", PASSWORD="blind")
    try:
        (sentence,) = refused(Photo, "default", [LongTransactions()])
        assert "does not answer oldest_transaction(): Access denied" in sentence
        assert "GRANT PROCESS ON *.* TO 'taskclaim_blind'@'%';" in sentence
    finally:
        connection.close()
        connection.settings_dict.update(usual)
        with connection.cursor() as cursor:
            cursor.execute("DROP USER 'taskclaim_blind'@'%%'", [])


# Of whatever thread


def test_a_check_may_be_asked_in_any_thread() -> None:
    said: list[Answer] = []

    def ask() -> None:
        said.append(Sql("SELECT 1", at_most=0, name="one")(HERE))
        HERE.connection.close()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(30)
    assert said == [stop("one is 1, more than 0")]
