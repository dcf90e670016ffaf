"""The health checks that come with us, and what names them."""

from typing import Any

import pytest
from django.db import OperationalError, connection

from django_taskclaim import conf
from django_taskclaim.handlers import handler
from django_taskclaim.throttling import ReplicaLag, Sql
from tests.factories import make
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

HERE = "default"


# Any SQL


def test_a_number_is_compared() -> None:
    """NULL is no reason to stop."""
    make(Photo, 3)
    count = "SELECT COUNT(*) FROM testapp_photo WHERE url NOT LIKE '100%'"
    assert Sql(count, at_most=3)(HERE) is None
    assert Sql(count, at_most=2)(HERE) == f"{count} is 3, more than 2"
    assert Sql(count, at_most=1, name="photos")(HERE) == "photos is 3, more than 1"
    assert Sql("SELECT MAX(width) FROM testapp_photo", at_most=0)(HERE) is None
    for wrong in ("SELECT 1 FROM testapp_photo WHERE 1 = 0", "SELECT CURRENT_TIMESTAMP"):
        with pytest.raises(ValueError, match="one row with one number"):
            Sql(wrong, at_most=0)(HERE)
    text: Any = "3"
    with pytest.raises(ValueError, match="at_most must be a number"):
        Sql("SELECT 1", at_most=text)


@pytest.mark.skipif(connection.vendor == "sqlite", reason="needs a server that may be a replica")
def test_a_replica_that_has_become_a_primary_stops_claims() -> None:
    assert ReplicaLag(using=HERE)(HERE) == "replica default follows no primary"


ENDLESS = {
    "sqlite": "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT COUNT(*) FROM n",
    "postgresql": "SELECT COUNT(pg_sleep(0.1)) FROM generate_series(1, 100000)",
    "mysql": "SELECT COUNT(*) FROM information_schema.COLUMNS a, information_schema.COLUMNS b,"
    " information_schema.COLUMNS c",
}


def test_a_statement_that_hangs_is_ended() -> None:
    with pytest.raises(OperationalError):
        Sql(ENDLESS[connection.vendor], at_most=1)(HERE)


@pytest.mark.once
@pytest.mark.promise(14)
def test_what_is_wrong_is_found(settings: Any) -> None:
    wrong: Any
    for wrong in ("nowhere.at_all", ["nowhere.at_all"]):
        with pytest.raises(ValueError, match="health_checks must be a list of functions"):
            handler(Photo, health_checks=wrong)(len)
    settings.TASKCLAIM = {"BREAKER": 1.5}
    assert [text for text, _ in conf.problems()] == [
        "TASKCLAIM['BREAKER'] must be a share above 0, up to 1, or None, not 1.5."
    ]
