"""``release_expired``, ``claimpause`` and ``claimresume``: what they change, report and record."""

import signal
import subprocess
import sys
from datetime import timedelta
from io import TextIOWrapper
from typing import Any, cast

import pytest

from django_taskclaim.management.base import acting
from django_taskclaim.switch import pause, paused_by
from tests.commands import lapsed, no_savepoint, nobody_answers, run, table_away, typed
from tests.factories import make
from tests.querysets.support import clock, set_raw
from tests.testapp.models import Child, Parent, Photo, UuidKey

pytestmark = pytest.mark.django_db(databases="__all__")


# release_expired


@pytest.mark.once
def test_expired_rows_are_put_back() -> None:
    """Of the models that are named or of all, with a limit for each model, on the database that is named."""
    lapsed(Photo, 3)
    lapsed(Child, 1)
    Photo.objects.claim_batch(1, lease=60)
    words = ("release_expired", "testapp.Photo", "--limit", "2")
    assert run(*words) == "testapp.Photo: put back 2 expired rows.\n"
    assert run(*words) == "testapp.Photo: put back 1 expired row.\n"
    assert run("release_expired") == "testapp.Child: put back 1 expired row.\n"
    # A child's own policy decides, not its parent's.
    assert Parent.objects.get().attempts == 1
    Photo.objects.using("other").create()
    (row,) = Photo.objects.using("other").claim_batch(1)
    set_raw(row, "expires_at", clock("-1 HOUR", "other"))
    assert run("release_expired") == ""
    assert "put back 1 expired row" in run("release_expired", "--database", "other")


def test_a_loop_goes_on_until_a_signal_ends_it(process_env: dict[str, str]) -> None:
    """It reports a table that is missing, and frees the rows once the table is back."""
    lapsed(UuidKey, 1)
    words = ["release_expired", "testapp.UuidKey", "--loop"]
    with table_away(UuidKey):
        loop = subprocess.Popen(
            [sys.executable, "-m", "django", *words],
            env=process_env
            | {"TASKCLAIM_TEST_LEASE": "1", "TASKCLAIM_TEST_REAPER_INTERVAL": "0.05"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert loop.stdout is not None
        assert loop.stderr is not None
        assert loop.stderr.readline().startswith("testapp.UuidKey on 'default': ")
    assert loop.stdout.readline() == "testapp.UuidKey: put back 1 expired row.\n"
    loop.send_signal(signal.SIGTERM)
    _, errors = loop.communicate(timeout=120)
    assert loop.returncode == 0
    assert "Traceback" not in errors


# The switch


@no_savepoint
@pytest.mark.once
@pytest.mark.promise(9)
def test_a_pause_stops_claims_on_every_database_until_it_is_resumed(
    capsys: pytest.CaptureFixture[str], settings: Any
) -> None:
    make(Photo, 1)
    why = ("--reason", "the server is down ☃", "--by", "ann", "--until", "30m")
    # Possible while a check fails.
    settings.TASKCLAIM = {"LEASE": -1}
    assert typed(capsys, "claimpause", "testapp.Photo", *why)[0] == 0
    settings.TASKCLAIM = {}
    for alias in ("default", "other"):
        switch = paused_by(Photo, using=alias)
        assert switch is not None
        assert (switch.reason, switch.by) == ("the server is down ☃", acting("ann"))
        assert switch.until is not None
        assert switch.paused_at is not None
        assert switch.until - switch.paused_at == timedelta(minutes=30)
    assert Photo.objects.claim_batch(1) == []
    cast("TextIOWrapper", sys.stdout).reconfigure(encoding="ascii")
    assert "down \\u2603" in typed(capsys, "claimstatus", "testapp.Photo")[1]
    assert run("claimresume", "testapp.Photo") == "Resumed testapp.Photo.\n"
    assert len(Photo.objects.claim_batch(1)) == 1
    settings.DATABASE_ROUTERS = [_OnlyPhotosElsewhere()]
    both = ("testapp.UuidKey", "testapp.Photo")
    with nobody_answers("other"):
        code, out, errors = typed(capsys, "claimpause", *both)
    assert (code, out) == (1, "Paused testapp.UuidKey. Running rows finish.\n")
    assert errors.startswith("CommandError: The switch was not set on other")


class _OnlyPhotosElsewhere:
    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return (db == "other") == (hints.get("model_name") == "photo")

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "other" if model is Photo else "default"


@pytest.mark.once
def test_a_database_that_is_named_means_the_models_that_it_holds(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [_OnlyPhotosElsewhere()]
    said = run("claimstatus", "--database", "other")
    assert "testapp.Photo (other)" in said
    assert "testapp.UuidKey" not in said


@pytest.mark.once
def test_a_resume_names_what_stays_paused() -> None:
    run("claimpause", "--all")
    switch = paused_by(UuidKey)
    assert switch is not None
    # Signed by the user who runs it.
    assert "@" in switch.by
    pause(Photo, by="bob")
    pause(Parent)
    assert "manage.py claimresume --all" in run("claimresume", "testapp.UuidKey")
    said = run("claimresume", "--all")
    assert "testapp.Photo is paused by bob" in said
    assert "testapp.Child stays paused: testapp.Parent is paused" in said
    assert "testapp.UuidKey" not in said
