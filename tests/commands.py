"""What tests of the commands share: how to call them, and the situations they find."""

import contextlib
import io
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, ManagementUtility, call_command
from django.db import connections

from django_taskclaim.db import DatabaseLater
from django_taskclaim.models import WorkerProcess
from django_taskclaim.querysets import ClaimQuerySet
from tests.factories import make, make_claimed
from tests.querysets.support import clock, set_raw, wait_for

#: For tests that change tables or lose connections, which no savepoint takes back.
no_savepoint = pytest.mark.django_db(transaction=True, databases="__all__")


def run(command: str, *words: str, **options: Any) -> str:
    """Call a command and return its output."""
    out = io.StringIO()
    call_command(command, *words, stdout=out, **options)
    return out.getvalue()


def outcome(command: str, *words: str, **options: Any) -> tuple[int, str, str]:
    """Call a command; return its exit code, its output, and what it said of errors."""
    out, errors = io.StringIO(), io.StringIO()
    try:
        call_command(command, *words, stdout=out, stderr=errors, **options)
    except CommandError as error:
        return error.returncode, out.getvalue(), str(error)
    return 0, out.getvalue(), errors.getvalue()


def refused(command: str, *words: str, **options: Any) -> tuple[int, str]:
    """Call a command that fails; return its exit code and its sentence."""
    with pytest.raises(CommandError) as caught:
        call_command(command, *words, **options)
    return caught.value.returncode, str(caught.value)


def shell(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``manage.py`` in a process of its own."""
    command = [sys.executable, "-m", "django", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Call ``manage.py`` as a shell does, in this process; return the exit code and both outputs."""
    code: Any = 0
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        ManagementUtility(["manage.py", *words]).execute()
    except SystemExit as stopped:
        code = stopped.code
    finally:
        # The worker holds back signals from its first line on.
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    out, errors = capsys.readouterr()
    return int(code or 0), out, errors


@contextlib.contextmanager
def table_away(model: Any, using: str = "default") -> Iterator[None]:
    """Take a model's table away for a while."""
    table = model._meta.db_table
    with connections[using].schema_editor() as editor:
        editor.alter_db_table(model, table, "testapp_away")
    try:
        yield
    finally:
        with connections[using].schema_editor() as editor:
            editor.alter_db_table(model, "testapp_away", table)


@contextlib.contextmanager
def nobody_answers(*aliases: str) -> Iterator[None]:
    """Send the connections of this process, all or those named, to where no database is."""
    before = {}
    for alias in aliases or connections:
        wrapper = connections[alias]
        wrapper.close()
        before[alias] = dict(wrapper.settings_dict)
        away = {"HOST": "127.0.0.1", "PORT": "9"}
        if wrapper.vendor == "sqlite":
            away = {"NAME": "/nowhere/at/all.sqlite3"}
        wrapper.settings_dict.update(away)
    try:
        yield
    finally:
        for alias, settings in before.items():
            connections[alias].close()
            connections[alias].settings_dict.update(settings)


# Situations


def lapsed(model: Any, rows: int = 1, **options: Any) -> list[Any]:
    """Let claims of fresh rows lapse."""
    make(model, rows)
    claimed = model.objects.claim_batch(rows, lease=0.001, **options)
    wait_for(lambda: ClaimQuerySet(model).expired().count() >= rows)
    return list(claimed)


def failed(model: Any, n: int = 1, error: Any = "no", **values: Any) -> list[Any]:
    """Return rows that ended badly."""
    rows = make_claimed(model, n, **values)
    model.objects.fail(rows, error, retry=False)
    return rows


def completed(model: Any, n: int = 1, ago: str = "31 DAY", **values: Any) -> list[Any]:
    """Return rows that were completed so long ago."""
    rows = make_claimed(model, n, **values)
    model.objects.complete(rows)
    for row in rows:
        set_raw(row, "completed_at", clock(f"-{ago}"))
    return rows


def in_each_state(model: Any) -> dict[str, Any]:
    """Return one row in each of the five states; the one that is processing carries its claim."""
    rows = make(model, 4)
    complete, failed, processing = model.objects.claim_batch(3)
    complete.claim.complete()
    failed.claim.fail("no use", retry=False)
    (paused,) = {row.pk: row for row in rows}.keys() - {complete.pk, failed.pk, processing.pk}
    model.objects.filter(pk=paused).pause_rows()
    rows = {"processing": processing, "complete": complete, "failed": failed}
    (waiting,) = make(model)
    return {"open": waiting, "paused": model.objects.get(pk=paused), **rows}


def live_worker(*labels: str, seen: int = 1, **facts: Any) -> WorkerProcess:
    """List a worker process that reported so many seconds ago."""
    number = WorkerProcess.objects.count()
    ago = DatabaseLater(timedelta(seconds=-seen))
    return WorkerProcess.objects.create(
        name=f"worker@host:{number}", labels=list(labels), started_at=ago, seen_at=ago, **facts
    )
