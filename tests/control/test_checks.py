"""What is misconfigured is said before workers find out, with a hint."""

import subprocess
import sys
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.checks import run_checks
from django.db import connection

from django_taskclaim.checks import check_project
from django_taskclaim.checks.history import check_history
from django_taskclaim.control.checks import check_routers
from django_taskclaim.control.reading import acts, history, live_settings, marks, throughput
from django_taskclaim.doctor.surroundings import missing_tables
from tests.checks.support import heard, ids
from tests.testapp.models import Photo


def test_a_model_that_is_none(settings: Any) -> None:
    settings.TASKCLAIM = {"HISTORY": ["testapp.Foto", "testapp.Ledger", "testapp.photo"]}
    messages = check_history()
    assert ids(messages) == ["E041", "E041"]
    assert "'testapp.Foto'" in messages[0].msg
    assert messages[0].hint == 'TASKCLAIM = {"HISTORY": ["testapp.Photo"]}'


@pytest.mark.parametrize("wrong", ["testapp.Photo", [Photo], ["Photo"], None])
def test_a_setting_that_is_no_list_of_labels(wrong: Any, settings: Any) -> None:
    settings.TASKCLAIM = {"HISTORY": wrong}
    assert ids(heard(check_project())) == ["E001"]


def test_histories_that_nobody_writes(settings: Any) -> None:
    settings.INSTALLED_APPS = [
        app for app in settings.INSTALLED_APPS if app != "django_taskclaim.control"
    ]
    settings.TASKCLAIM = {"HISTORY": ["testapp.Photo"]}
    (message,) = check_history()
    assert ids([message]) == ["E042"]
    assert message.hint == 'INSTALLED_APPS += ["django_taskclaim.control"]'


class KeepAway:
    """A router that lets only the tables of the main app go everywhere."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if app_label == "taskclaim_control" and db == "other" else None


def test_a_router_that_keeps_the_tables_away(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [f"{__name__}.KeepAway"]
    (message,) = check_routers()
    assert ids([message]) == ["E043"]
    assert "'other'" in message.msg
    # Nothing is asked there, so nothing can fail.
    assert throughput(Photo, using="other", span=None) == []  # type: ignore[arg-type]
    assert marks(Photo, using="other", span=None) == []  # type: ignore[arg-type]
    assert acts(Photo, using="other") == []
    assert history(Photo, 1, using="other") == []
    assert live_settings(Photo, using="other") is None


@pytest.mark.django_db(databases="__all__")
def test_a_right_project_is_quiet(settings: Any) -> None:
    settings.TASKCLAIM = {"HISTORY": ["testapp.Photo", "testapp.uuidkey"]}
    found = [str(message.id) for message in heard(run_checks())]
    assert [number for number in found if number.startswith("taskclaim")] == []


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_missing_tables_keep_a_worker_from_starting(process_env: dict[str, str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE taskclaim_workerorder RENAME TO elsewhere")
    try:
        (found,) = missing_tables(Photo, "default")
        words = [sys.executable, "-m", "django", "claimworker", "testapp.Job", "--drain"]
        done = subprocess.run(words, env=process_env, capture_output=True, text=True)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO taskclaim_workerorder")
    assert found.advice == "manage.py migrate taskclaim_control --database default"
    assert done.returncode == 2
    assert "lacks taskclaim_workerorder" in done.stderr


@pytest.mark.django_db(databases="__all__")
def test_the_app_brings_three_permissions_and_no_usual_ones() -> None:
    found = Permission.objects.filter(content_type__app_label="taskclaim_control")
    assert set(found.values_list("content_type__model", "codename")) == {
        ("livesettings", "view_control"),
        ("livesettings", "operate"),
        ("livesettings", "configure"),
        ("operatoract", "view_operatoract"),
    }
