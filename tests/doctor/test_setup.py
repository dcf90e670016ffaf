"""Tables, columns and servers that the claims need."""

from typing import Any

import pytest

from django_taskclaim.doctor import Kind, examine
from django_taskclaim.models import Switch
from tests.commands import nobody_answers, table_away
from tests.doctor.support import changes_tables, doctor, handling, send
from tests.testapp.models import ClaimOnly, Photo

pytestmark = changes_tables


@pytest.mark.parametrize(
    ("missing", "command"),
    [
        (Switch, "manage.py migrate taskclaim --database default"),
        (ClaimOnly, "manage.py migrate testapp --database default"),
    ],
)
def test_a_missing_table_is_named_with_the_command_that_makes_it(
    missing: Any, command: str
) -> None:
    with table_away(missing):
        (finding,) = examine(ClaimOnly, "default")
    assert finding.kind is Kind.PROBLEM
    assert missing._meta.db_table in finding.message
    assert finding.advice.endswith(command)


def test_a_missing_column_is_named_with_the_command_that_adds_it() -> None:
    table = ClaimOnly._meta.db_table
    send(f"ALTER TABLE {table} RENAME COLUMN claimed_at TO taken_at")
    try:
        (finding,) = examine(ClaimOnly, "default")
    finally:
        send(f"ALTER TABLE {table} RENAME COLUMN taken_at TO claimed_at")
    assert "lacks the column claimed_at" in finding.message
    assert "manage.py claimadopt" in finding.advice


@pytest.mark.promise(14)
def test_a_database_that_does_not_answer_is_a_finding() -> None:
    with nobody_answers("other"):
        (finding,) = examine(Photo, "other")
    assert finding.kind is Kind.PROBLEM
    assert "'other' refused" in finding.message


@pytest.mark.once
def test_the_command_reports_what_the_checks_find() -> None:
    with handling(ClaimOnly, lease=1):
        assert "claimed for 1 s: one slow renewal" in doctor("testapp.ClaimOnly")[1]
