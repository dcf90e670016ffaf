"""SQL for PostgreSQL that the documentation gives its readers."""

import re
from contextlib import closing

import pytest
from django.db import connection

from django_taskclaim.db.notify import calls_within, listen
from django_taskclaim.throttling import Sql
from tests.documents import DOCS
from tests.querysets.support import Rival, execute
from tests.testapp.models import Job

pytestmark = [
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="needs NOTIFY and its own views"),
]


def test_the_trigger_wakes_workers_for_rows_inserted_by_sql() -> None:
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    (trigger,) = re.findall(r"```postgresql\n(\s*CREATE FUNCTION .*?)```", text, re.DOTALL)
    table = Job._meta.db_table
    with closing(Rival()) as other:
        listen(other.connection)
        execute(trigger.replace("post_mail", table))
        try:
            # A trigger for each statement fires without a row, too.
            execute(f"INSERT INTO {table} SELECT * FROM {table}")
            other.execute("SELECT 1")
            assert list(calls_within(0.0, other.connection)) == [table]
        finally:
            execute("DROP FUNCTION wake_up CASCADE")


def test_a_health_check_sees_the_oldest_transaction() -> None:
    text = (DOCS / "throttling.md").read_text(encoding="utf-8")
    (statement,) = re.findall(r'`Sql\("(SELECT EXTRACT.*?)", at_most=300\)`', text)
    with closing(Rival()) as other:
        other.begin()
        other.execute("SELECT 1")
        assert Sql(statement, at_most=300)("default") is None
        assert Sql(statement, at_most=-1)("default")
