"""What is tested is what users install."""

import os
import subprocess
import sys
import sysconfig
from importlib import resources
from pathlib import Path

import pytest

import django_taskclaim


@pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="only tox installs the wheel")
def test_tox_tests_the_installed_wheel() -> None:
    site_packages = Path(sysconfig.get_path("purelib"))
    assert Path(django_taskclaim.__file__).is_relative_to(site_packages)


@pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="only tox installs the wheel")
def test_processes_of_the_tests_use_the_installed_wheel_too() -> None:
    code = "import django_taskclaim; print(django_taskclaim.__file__)"
    checkout = Path(__file__).parent.parent
    used = subprocess.check_output([sys.executable, "-c", code], cwd=checkout, text=True)
    assert used.strip() == django_taskclaim.__file__


def test_the_package_says_that_it_is_typed() -> None:
    assert resources.files(django_taskclaim).joinpath("py.typed").is_file()


def test_importing_the_package_imports_no_models() -> None:
    code = (
        "import sys, django_taskclaim\n"
        "assert 'django_taskclaim.models' not in sys.modules\n"
        "assert 'django.db.models' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
