"""A run proves which package and which database it tested, and that its processes used the same ones."""

import os
import sysconfig
from importlib import resources
from pathlib import Path

import pytest
from django.db import connections

import django_taskclaim
from tests.conftest import server_version
from tests.processes import output_of
from tests.testapp.models import Ledger

ROOT = Path(__file__).parent.parent


@pytest.mark.skipif("TASKCLAIM_TEST_EXPECT" not in os.environ, reason="no database is expected")
def test_the_server_is_the_one_that_was_asked_for() -> None:
    version = server_version().lower()
    found = next(name for name in ("sqlite", "postgres", "mariadb", "mysql") if name in version)
    assert found == os.environ["TASKCLAIM_TEST_EXPECT"]


CHILD = """
import django, django_taskclaim
django.setup()
from tests.testapp.models import Ledger
print(Ledger.objects.get().note, django_taskclaim.__file__)
Ledger.objects.using("other").create(model="b", key="2", note="from the child")
"""


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_process_uses_the_same_databases_and_package(process_env: dict[str, str]) -> None:
    """They are two databases of their own."""
    names = {str(connections[alias].settings_dict["NAME"]) for alias in ("default", "other")}
    assert len(names) == 2
    assert all(Path(name).name.startswith("test_") for name in names)
    Ledger.objects.create(model="a", key="1", note="parent")
    output = output_of("-c", CHILD, env=process_env, cwd=ROOT)
    assert output.split() == ["parent", str(django_taskclaim.__file__)]
    assert Ledger.objects.using("other").get().note == "from the child"


@pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="only tox installs the wheel")
def test_tox_tests_the_installed_wheel() -> None:
    site_packages = Path(sysconfig.get_path("purelib"))
    assert Path(django_taskclaim.__file__).is_relative_to(site_packages)


@pytest.mark.once
def test_the_package_is_typed_and_imports_no_models() -> None:
    assert resources.files(django_taskclaim).joinpath("py.typed").is_file()
    code = "import sys, django_taskclaim; assert 'django.db.models' not in sys.modules"
    output_of("-c", code, env=os.environ)
