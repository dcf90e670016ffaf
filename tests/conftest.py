"""What every test may count on: a database that answers, and processes that find the same one."""

import os
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.db import connections
from django.test.utils import CaptureQueriesContext, setup_databases, teardown_databases
from pytest_django.plugin import DjangoDbBlocker, blocking_manager_key

from tests import servers

#: What pytest-xdist's workers copy, where a copy is faster than tables made one by one.
_originals: list[Any] = []


def pytest_report_header() -> list[str]:
    import django_taskclaim

    return [f"database: {server_version()}", f"django_taskclaim: {django_taskclaim.__path__[0]}"]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Make the databases that pytest-xdist's workers, which start next, copy."""
    if session.config.getoption("numprocesses", None) and connections["default"].vendor != "mysql":
        if apps.is_installed("tests.testapp"):
            # What only some tests import has tables, too.
            import_module("tests.querysets.models")
            import_module("tests.taking.models")
        with session.config.stash[blocking_manager_key].unblock():
            _originals.extend(setup_databases(verbosity=0, interactive=False))
            connections.close_all()


def pytest_sessionfinish(session: pytest.Session) -> None:
    with session.config.stash[blocking_manager_key].unblock():
        teardown_databases(_originals, verbosity=0)


@pytest.fixture(scope="session")
def django_db_setup(
    request: pytest.FixtureRequest,
    worker_id: str,
    django_test_environment: None,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[None]:
    """Give each worker databases of its own."""
    if worker_id == "master" or connections["default"].vendor == "mysql":
        request.getfixturevalue("django_db_setup")
        yield
        return
    with django_db_blocker.unblock():
        for connection in connections.all():
            connection.settings_dict["NAME"] = connection.creation._get_test_db_name()
            connection.creation.clone_test_db(worker_id, verbosity=0)
            connection.settings_dict |= connection.creation.get_test_db_clone_settings(worker_id)
            if apps.is_installed("tests.testapp"):
                from tests.testapp.management.commands import flush

                flush.remember(connection)
    yield
    with django_db_blocker.unblock():
        for connection in connections.all():
            connection.creation.destroy_test_db(verbosity=0)


#: How many tests that start processes pytest-xdist may run side by side: they wait more than they compute.
LINES = 5


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what runs on SQLite only, and limit how many tests that start processes run side by side."""
    if connections["default"].vendor != "sqlite":
        once = [item for item in items if item.get_closest_marker("once")]
        config.hook.pytest_deselected(items=once)
        items[:] = [item for item in items if item not in set(once)]
    for item in items:
        starts = "process_env" in getattr(item, "fixturenames", ())
        if starts or item.get_closest_marker("processes"):
            item.add_marker(pytest.mark.processes)
            number = zlib.crc32(item.name.encode()) % LINES
            item.add_marker(pytest.mark.xdist_group(f"processes-{number}"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    from django_taskclaim.querysets import claiming, isolating

    # Other people's apps are tested without it.
    if apps.is_installed("tests.testapp"):
        from tests.factories import start_over

        start_over()
    # Keys come again in the next test.
    isolating.remembered.clear()
    claiming.claims_made.clear()


def server_version(alias: str = "default") -> str:
    """Return what the database of *alias* says of itself, over a connection of its own.

    It connects to the server rather than to the database that the URL names: the test database is
    created beside that one, which need not exist.
    """
    wrapper = connections.create_connection(alias)
    query = "SELECT version()"
    if wrapper.vendor == "sqlite":
        query = "SELECT 'SQLite ' || sqlite_version()"
    else:
        wrapper.settings_dict = {**wrapper.settings_dict, "NAME": None}
    connection = wrapper.get_new_connection(wrapper.get_connection_params())
    try:
        cursor = connection.cursor()
        cursor.execute(query)
        version = str(cursor.fetchone()[0])
    finally:
        connection.close()
    if wrapper.vendor == "mysql" and "MariaDB" not in version:
        return f"MySQL {version}"
    return version


@pytest.fixture
def process_env(transactional_db: None) -> dict[str, str]:
    """Environment of a real process that shall work on the test databases.

    ``subprocess.Popen([sys.executable, "-m", "django", "claimworker", …], env=process_env)``
    """
    env = dict(os.environ)
    env["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    env["DATABASE_URL"] = servers.url_of(connections["default"].settings_dict)
    env["OTHER_DATABASE_URL"] = servers.url_of(connections["other"].settings_dict)
    env["PYTHONUNBUFFERED"] = "1"
    env["TASKCLAIM_TEST_PAGES"] = ""
    return env


@pytest.fixture
def reads_go_elsewhere(settings: Any) -> Callable[[], CaptureQueriesContext]:
    """Let a router send all reads to "other", and return what listens to what is asked there."""
    settings.DATABASE_ROUTERS = ["tests.querysets.support.ReadsElsewhere"]
    return lambda: CaptureQueriesContext(connections["other"])
