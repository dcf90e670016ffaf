"""Large tables are counted in part and estimated for the rest, and no question runs for long."""

from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_taskclaim.monitoring import counts, overview
from django_taskclaim.monitoring.server import server_for
from tests.factories import make
from tests.querysets.support import execute, table_of, value_of
from tests.testapp.models import Child, CompositeKey, Job, TextKey

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def large_means_100_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "SMALL", 100)
    for module in (counts, overview):
        monkeypatch.setattr(module, "MOST", 50)


def analyse(model: Any) -> None:
    """Refresh the statistics of a table."""
    word = "ANALYZE TABLE" if connection.vendor == "mysql" else "ANALYZE"
    execute(f"{word} {table_of(model)}")


def jobs(**numbers: int) -> None:
    states = [state.rstrip("_") for state, n in numbers.items() for _ in range(n)]
    Job.objects.bulk_create(Job(status=state) for state in states)
    analyse(Job)


def test_of_a_large_table_rare_states_are_counted_and_the_others_estimated() -> None:
    """What is completed shows although the statistics are older."""
    jobs(failed=7)
    seen = counts.count_rows(Job, "default")
    assert (seen.failed, seen.estimated) == (7, set())
    jobs(open_=3000, complete=1000)
    seen = counts.count_rows(Job, "default")
    assert seen.estimated == {"open", "complete"}
    assert seen.failed == 7
    assert seen.open == pytest.approx(3000, rel=0.05)
    assert seen.complete == pytest.approx(1000, rel=0.1)
    for _ in range(2):
        Job.objects.complete(Job.objects.claim_batch(500))
    assert counts.count_rows(Job, "default").complete == pytest.approx(2000, rel=0.1)
    execute(f"UPDATE {table_of(Job)} SET status = 'done' WHERE status = 'complete'")
    assert counts.count_rows(Job, "default").unknown == pytest.approx(2000, rel=0.1)


@pytest.mark.parametrize("model", [TextKey, CompositeKey, Child], ids=lambda model: model.__name__)
def test_keys_of_every_kind_are_estimated(model: Any) -> None:
    make(model, 120)
    analyse(model)
    assert counts.count_rows(model, "default").open == pytest.approx(120, abs=40)


#: Takes minutes, and touches no table of the app. MariaDB and MySQL bound recursions by themselves.
ENDLESS = (
    "SELECT SUM(a.ordinal_position * b.ordinal_position * c.ordinal_position)"
    " FROM information_schema.columns a, information_schema.columns b, information_schema.columns c"
    if connection.vendor == "mysql"
    else "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900000000)"
    " SELECT COUNT(*) FROM n"
)


def test_a_question_that_takes_too_long_is_cut_off() -> None:
    """Also in the caller's transaction; the session works on, and its next question has no limit."""
    make(Job, 1)
    before = session_limit()
    for scope in (nullcontext(), transaction.atomic()):
        with scope:
            limit = server_for(connection).bounded(timedelta(milliseconds=200))
            with pytest.raises(OperationalError), limit, connection.cursor() as cursor:
                cursor.execute(ENDLESS)
        assert Job.objects.count() == 1
        assert session_limit() == before


def session_limit() -> Any:
    """Return how long the server lets a statement of this session take."""
    if connection.vendor == "sqlite":
        return None
    question = "SHOW statement_timeout"
    if connection.vendor == "mysql":
        maria = getattr(connection, "mysql_is_mariadb", False)
        question = f"SELECT @@SESSION.{'max_statement_time' if maria else 'max_execution_time'}"
    return value_of(question)
