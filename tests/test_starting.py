"""What a project loads as it starts: only what its own code names, and the rest with the first use."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

START = """
import sys
import django
from django.conf import settings

database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
settings.configure(INSTALLED_APPS=["django_taskclaim", *sys.argv[1:]], DATABASES={"default": database})
django.setup()
"""

#: What nobody needs to know how to declare a model.
UNUSED_MODULES = {
    "django_taskclaim.admin",
    "django_taskclaim.checks.databases",
    "django_taskclaim.contention",
    "django_taskclaim.dialects",
    "django_taskclaim.doctor",
    "django_taskclaim.leases",
    "django_taskclaim.limits",
    "django_taskclaim.management",
    "django_taskclaim.people",
    "django_taskclaim.querysets.claiming",
    "django_taskclaim.querysets.fencing",
    "django_taskclaim.querysets.operating",
    "django_taskclaim.querysets.ranges",
    "django_taskclaim.switch",
    "django_taskclaim.throttling",
    "django_taskclaim.worker",
    "tenacity",
}

MODELS = """
from django.db import models
from django_taskclaim.models import TaskMixin

class Photo(TaskMixin):
    width = models.IntegerField(null=True)
"""

CLAIMS = """
from django_taskclaim import handler
from photos.models import Photo

@handler(Photo)
def measure(photo):
    pass
"""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A directory with the app ``photos``, which has a model and a handler."""
    (tmp_path / "photos").mkdir()
    for name, text in {"__init__.py": "", "models.py": MODELS, "claims.py": CLAIMS}.items():
        (tmp_path / "photos" / name).write_text(text)
    return tmp_path


def loaded(then: str = "", *apps: str, where: Path | None = None) -> set[str]:
    """Return the modules of a new process once it has started with these apps and done *then*."""
    code = f"{START}{dedent(then)}\nprint(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    told = subprocess.check_output(
        [sys.executable, "-c", code, *apps], cwd=where, env=environment, text=True
    )
    return set(told.split())


def test_an_installed_app_loads_its_tables_and_no_mixin() -> None:
    modules = loaded()
    assert "django_taskclaim.models.tables" in modules
    mixins = {"django_taskclaim.models.mixins", "django_taskclaim.handlers"}
    # Django loads it to learn how long the name of a table may be, for a model that names none.
    backend = {"django.db.backends.sqlite3.base"}
    assert modules.isdisjoint(UNUSED_MODULES | mixins | backend)


def test_a_model_and_its_handler_load_neither_statements_nor_workers(photos: Path) -> None:
    modules = loaded("", "photos", where=photos)
    assert {"photos.claims", "django_taskclaim.handlers"} <= modules
    assert modules.isdisjoint(UNUSED_MODULES)


@pytest.mark.parametrize(
    ("use", "modules"),
    [
        ("Photo.objects.claim_batch(1)", {"tenacity", "django_taskclaim.querysets.claiming"}),
        ("Photo.objects.complete([])", {"django_taskclaim.querysets.fencing"}),
        ("Photo.objects.release_expired()", {"django_taskclaim.querysets.operating"}),
        ("Photo(width=1).save()", {"django_taskclaim.querysets.waking"}),
        ("call_command('check')", {"django_taskclaim.checks.databases"}),
        (
            "from django_taskclaim.testing import run_due; run_due(Photo)",
            {"django_taskclaim.worker"},
        ),
    ],
)
def test_what_is_used_is_loaded(photos: Path, use: str, modules: set[str]) -> None:
    prepared = f"""
        from django.core.management import call_command
        from photos.models import Photo
        call_command("migrate", run_syncdb=True, verbosity=0, skip_checks=True)
        early = {modules}.intersection(sys.modules)
        assert not early, early
        {use}
    """
    assert modules <= loaded(prepared, "photos", where=photos)


def test_a_worker_loads_its_verbs_before_its_first_row() -> None:
    verbs = {f"django_taskclaim.querysets.{name}" for name in ("claiming", "completing", "failing")}
    assert verbs <= loaded("import django_taskclaim.worker.executors")


@pytest.mark.parametrize(
    "name",
    ["ClaimMixin", "TaskMixin", "PrefixedTaskMixin", "RangeMixin", "SourceMixin", "SourceKey"],
)
def test_every_mixin_prepares_models_whichever_is_loaded_first(name: str) -> None:
    modules = loaded(f"from django_taskclaim.models import {name}")
    assert "django_taskclaim.models.preparing" in modules


def test_a_name_that_is_none_is_told_apart_from_one_that_is_late() -> None:
    import django_taskclaim.models
    import django_taskclaim.querysets

    for package in (django_taskclaim.models, django_taskclaim.querysets):
        assert all(hasattr(package, name) for name in package.__all__)
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            _ = package.nothing
