"""A run proves which database it ran on, and that its processes work on the same one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import dj_database_url
import pytest
from django.db import connections

from tests import servers
from tests.conftest import server_version
from tests.testapp.models import Ledger

SCHEMES = {
    "sqlite": "sqlite",
    "postgres": "postgres",
    "postgresql": "postgres",
    "mysql": "mysql or mariadb",
}


def answering_database() -> str:
    """Ask the server itself, not the settings."""
    version = server_version().lower()
    return next(name for name in ("sqlite", "postgres", "mariadb", "mysql") if name in version)


def test_the_server_is_of_the_kind_that_the_url_names() -> None:
    scheme = os.environ["DATABASE_URL"].partition(":")[0]
    assert answering_database() in SCHEMES[scheme]


@pytest.mark.skipif(
    "TASKCLAIM_TEST_EXPECT" not in os.environ, reason="nobody said which database to expect"
)
def test_the_server_is_the_one_that_was_asked_for() -> None:
    assert answering_database() == os.environ["TASKCLAIM_TEST_EXPECT"]


@pytest.mark.django_db(databases=["default", "other"])
@pytest.mark.parametrize("alias", ["default", "other"])
def test_rows_go_to_a_test_database_of_their_own(alias: str) -> None:
    names = {str(connections[name].settings_dict["NAME"]) for name in ("default", "other")}
    assert len(names) == 2
    assert Path(str(connections[alias].settings_dict["NAME"])).name.startswith("test_")
    Ledger.objects.using(alias).create(model="a", key=alias)
    assert [entry.key for entry in Ledger.objects.using(alias).all()] == [alias]


CHILD = """
import django
django.setup()
from tests.testapp.models import Ledger
print(Ledger.objects.get().note)
Ledger.objects.create(model="b", key="2", note="from the child")
"""


def test_a_process_works_on_the_test_database(process_env: dict[str, str]) -> None:
    Ledger.objects.create(model="a", key="1", note="from the parent")
    output = subprocess.check_output([sys.executable, "-c", CHILD], env=process_env, text=True)
    assert output == "from the parent\n"
    assert Ledger.objects.filter(note="from the child").exists()


def test_a_url_survives_being_spelled_again() -> None:
    parts = {
        "ENGINE": "django.db.backends.mysql",
        "NAME": "test_my db",
        "USER": "us/er@x",
        "PASSWORD": "p:w%",
        "HOST": "db.example",
        "PORT": 3307,
    }
    again = dj_database_url.parse(servers.url_of(parts))
    assert {name: again[name] for name in parts} == parts


def test_an_unreachable_server_fails_the_run_with_a_sentence() -> None:
    with socket.socket() as held:
        # It is not listened on, and nobody else can begin to.
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__],
            cwd=Path(__file__).parent.parent,
            env={**os.environ, "DATABASE_URL": f"postgres://me:secret@127.0.0.1:{port}/nowhere"},
            capture_output=True,
            text=True,
        )
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"DATABASE_URL names postgres://me:…@127.0.0.1:{port}/nowhere" in run.stderr
    assert "no database answers there" in run.stderr
    assert "secret" not in run.stderr
