"""The checks of databases: routers, OPTIONS and servers that break a promise are reported, with what mends it."""

from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import NotSupportedError, connection

from django_taskclaim import checks
from django_taskclaim.monitoring.server import server_for
from tests.checks.support import configured, ids
from tests.querysets.support import execute
from tests.testapp.models import ClaimOnly

pytestmark = pytest.mark.promise(14)

#: Servers are asked outside a test's transaction: other connections answer for the default one.
asks_servers = pytest.mark.django_db(transaction=True, databases="__all__")


def only_on(vendor: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        connection.vendor != vendor, reason=f"about a setting that only {vendor} has"
    )


def project() -> list[str]:
    """Return what ``manage.py check`` finds; no database is asked."""
    return ids(run_checks(tags=[checks.TAG]))


def servers() -> list[str]:
    """Return what ``manage.py check --database default`` finds beside that."""
    return ids(checks.check_servers(["default"]))


@asks_servers
def test_a_right_project_is_quiet() -> None:
    assert ids(run_checks(databases=["default", "other"])) == []


def test_no_server_is_asked_unless_a_database_is_named() -> None:
    """This test has no access to the database, so asking would fail it."""
    assert project() == []
    assert checks.check_servers(None) == []


# Settings


class Keeps:
    """A router that keeps our tables, and not the models, away from one database."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if db == "other" and app_label.startswith("taskclaim") else None


class KeepsAllAway:
    """A router under which one database has nothing to do with claims."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if db == "other" else None


@pytest.mark.once
def test_a_router_that_keeps_our_tables_away(settings: Any) -> None:
    for router, kept in ((Keeps, ["taskclaim", "taskclaim_control"]), (KeepsAllAway, [])):
        settings.DATABASE_ROUTERS = [router()]
        found = [one for one in run_checks(tags=[checks.TAG]) if one.id == "taskclaim.E006"]
        assert len(found) == len(kept)
        for label, one in zip(kept, found, strict=True):
            assert f"allow_migrate('other', '{label}')" in str(one.hint)


def test_switched_off_autocommit() -> None:
    with configured(AUTOCOMMIT=False):
        assert project() == ["E012"]


#: Options that break a promise, and the same options as they should be.
OPTIONS = [
    pytest.param(
        *("W001", {"transaction_mode": "DEFERRED"}, {"transaction_mode": "exclusive"}),
        marks=only_on("sqlite"),
    ),
    pytest.param("E007", {"client_flag": 0}, {"client_flag": 2 | 65536}, marks=only_on("mysql")),
]


@pytest.mark.parametrize(("expected", "wrong", "right"), OPTIONS)
def test_options_that_break_a_promise(
    expected: str, wrong: dict[str, Any], right: dict[str, Any]
) -> None:
    with configured(OPTIONS=wrong):
        assert project() == [expected]
    with configured(OPTIONS=right):
        assert project() == []


# Servers


@only_on("mysql")
@asks_servers
def test_a_database_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection.features, "has_select_for_update_skip_locked", False)
    assert servers() == ["E101"]


@only_on("mysql")
@asks_servers
def test_a_cluster_that_breaks_claims() -> None:
    """The server answers for one of another configuration."""

    def answer(execute: Any, sql: str, *rest: Any) -> Any:
        return execute("SELECT 'wsrep_on', 'ON'" if "wsrep_on" in sql else sql, *rest)

    with connection.execute_wrapper(answer):
        assert servers() == ["W102"]


@only_on("mysql")
@asks_servers
@pytest.mark.parametrize(
    ("expected", "damage"),
    [
        ("E102", "ENGINE = MyISAM"),
        ("E103", "MODIFY claimed_by varchar(200) COLLATE utf8mb4_general_ci NULL"),
    ],
)
def test_a_wrong_table_is_mended_by_the_hint(expected: str, damage: str) -> None:
    execute(f"ALTER TABLE {ClaimOnly._meta.db_table} {damage}")
    (fault,) = checks.check_servers(["default"])
    execute(str(fault.hint))
    assert ids([fault]) == [expected]
    assert servers() == []


@only_on("postgresql")
@asks_servers
def test_a_default_of_a_server_that_breaks_a_promise() -> None:
    with configured(OPTIONS={"options": "-c default_transaction_isolation=serializable"}):
        assert servers() == ["E104"]


@pytest.mark.django_db
def test_a_database_of_another_kind_is_refused() -> None:
    # A connection of its own, for one that has claimed knows its database already.
    with configured() as other:
        other.vendor = "oracle"
        assert "E016" in project()
        with pytest.raises(NotSupportedError, match="not on"):
            server_for(other)
