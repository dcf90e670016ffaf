"""The operator's commands, called as the shell and as other code calls them."""

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connections

from django_taskclaim.control.reading import acts
from django_taskclaim.dialects import DatabaseNow
from django_taskclaim.models import Switch, WorkerProcess
from django_taskclaim.querysets import ClaimQuerySet, operating
from django_taskclaim.switch import pause, pause_all, paused_by
from tests.factories import make
from tests.testapp.models import Child, Parent, Photo, UuidKey

pytestmark = pytest.mark.django_db(databases="__all__")

#: For tests that change tables or lose connections, which no savepoint takes back.
no_savepoint = pytest.mark.django_db(transaction=True, databases="__all__")

COMMANDS = (
    *("release_expired", "claimstatus", "claimpause", "claimresume", "claimdoctor"),
    "claimlimit",
)


def run(command: str, *words: str, **options: Any) -> str:
    out = io.StringIO()
    call_command(command, *words, stdout=out, **options)
    return out.getvalue()


def refused(command: str, *words: str) -> tuple[int, str]:
    with pytest.raises(CommandError) as caught:
        call_command(command, *words)
    return caught.value.returncode, str(caught.value)


def shell(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "django", *words], env=env, capture_output=True, text=True
    )


def lapsed(model: Any, rows: int = 1, **options: Any) -> list[Any]:
    """Let claims of fresh rows lapse."""
    make(model, rows)
    claimed = model.objects.claim_batch(rows, lease=0.001, **options)
    deadline = time.monotonic() + 60
    while ClaimQuerySet(model).expired().count() < rows:
        assert time.monotonic() < deadline
    return list(claimed)


# Wrong words


WRONG = [
    (
        ("claimstatus", "testapp.Foto"),
        "There is no model 'testapp.Foto'; did you mean testapp.Photo?",
    ),
    (("claimstatus", "photo"), "There is no model 'photo'; did you mean testapp.Photo?"),
    (
        ("claimstatus", "nothing.Like.it"),
        "There is no model 'nothing.Like.it'; write app_label.Model.",
    ),
    (
        ("claimdoctor", "testapp.Ledger"),
        "The model testapp.Ledger cannot be claimed: Ledger has no claim columns; add",
    ),
    (
        ("claimdoctor", "--database", "nope"),
        "--database: there is no database 'nope'; DATABASES has default, other.",
    ),
    (("release_expired", "--limit", "0"), "--limit: '0' is no whole number from 1."),
    (("release_expired", "--limit", "many"), "--limit: 'many' is no whole number from 1."),
    (
        ("release_expired", "--loop", "--interval", "-1"),
        "--interval: '-1' is no time longer than zero; write seconds,",
    ),
    (
        ("release_expired", "--loop", "--reason", "because"),
        "A --loop is nobody's act: leave out --by and --reason.",
    ),
    (
        ("claimpause", "testapp.Photo", "--until", "soon"),
        "--until: 'soon' is no time longer than zero; write seconds,",
    ),
    (
        ("claimpause", "testapp.Photo", "--until", "9e9"),
        "--until: '9e9' is no time longer than zero; write seconds,",
    ),
    (("claimpause",), "Name the models, or say --all (not both)."),
    (("claimpause", "--all", "testapp.Photo"), "Name the models, or say --all (not both)."),
    (("claimresume",), "Name the models, or say --all (not both)."),
    (("claimstatus", "--limit=5"), "Unrecognized arguments: --limit=5."),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_a_wrong_word_is_one_sentence(words: tuple[str, ...], sentence: str) -> None:
    code, said = refused(*words)
    assert code == 2
    assert said.startswith(sentence)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("words", "sentence"), [WRONG[0], WRONG[3], WRONG[4], WRONG[5], WRONG[7], WRONG[10]]
)
def test_a_process_says_it_too(
    words: tuple[str, ...], sentence: str, process_env: dict[str, str]
) -> None:
    """Exit code 2, the sentence alone on standard error, no traceback and no usage."""
    done = shell(process_env, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.removeprefix("CommandError: ").startswith(sentence)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_help_tells_examples_and_exit_codes(command: str, process_env: dict[str, str]) -> None:
    done = shell({**process_env, "COLUMNS": "120"}, command, "--help")
    assert done.returncode == 0
    assert "exit codes:\n  0  " in done.stdout
    assert f"examples:\n  manage.py {command}" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


# release_expired


def test_expired_rows_are_put_back() -> None:
    lapsed(Photo, 3)
    lapsed(UuidKey, 1)
    Photo.objects.claim_batch(1, lease=60)
    assert run("release_expired", "testapp.Photo") == "testapp.Photo: put back 3 expired rows.\n"
    assert run("release_expired") == "testapp.UuidKey: put back 1 expired row.\n"
    assert run("release_expired") == "No claim has expired.\n"
    assert run("release_expired", verbosity=0) == ""


def test_a_limit_bounds_one_look() -> None:
    """``--limit`` puts back no more than that many rows of a model; the next call goes on."""
    lapsed(Photo, 3)
    words = ("release_expired", "testapp.Photo", "--limit", "2")
    assert run(*words) == "testapp.Photo: put back 2 expired rows.\n"
    assert run(*words) == "testapp.Photo: put back 1 expired row.\n"


def test_the_other_database() -> None:
    Photo.objects.using("other").create()
    Photo.objects.using("other").claim_batch(1, lease=0.001)
    time.sleep(0.01)
    assert run("release_expired") == "No claim has expired.\n"
    assert "put back 1 expired row" in run("release_expired", "--database", "other")


def test_children_come_before_their_parents() -> None:
    """A child's rows are judged by the child's own policy, once."""
    lapsed(Child, 1)
    assert run("release_expired") == "testapp.Child: put back 1 expired row.\n"
    assert Parent.objects.get().attempts == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_loop_frees_rows_until_it_is_stopped(
    number: signal.Signals, process_env: dict[str, str]
) -> None:
    """It puts back rows that expire while it runs, and a signal ends it with 0."""
    lapsed(Photo, 1)
    loop = subprocess.Popen(
        [sys.executable, "-m", "django", "release_expired", "--loop", "--interval", "50ms"],
        env=process_env | {"TASKCLAIM_TEST_LEASE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert loop.stdout is not None
    assert "put back 1 expired row" in loop.stdout.readline()
    make(UuidKey, 2)
    UuidKey.objects.claim_batch(2, lease=0.001)
    assert "testapp.UuidKey: put back" in loop.stdout.readline()
    loop.send_signal(number)
    _, errors = loop.communicate(timeout=120)
    assert loop.returncode == 0
    assert "Traceback" not in errors


@contextlib.contextmanager
def table_away(model: Any) -> Iterator[None]:
    """Take a model's table away for a while."""
    table = model._meta.db_table
    with connections["default"].schema_editor() as editor:
        editor.alter_db_table(model, table, "testapp_away")
    try:
        yield
    finally:
        with connections["default"].schema_editor() as editor:
            editor.alter_db_table(model, "testapp_away", table)


@no_savepoint
def test_a_model_that_cannot_be_reached_stops_no_other() -> None:
    lapsed(Photo, 1)
    lapsed(UuidKey, 1)
    out = io.StringIO()
    with table_away(UuidKey), pytest.raises(CommandError) as caught:
        call_command("release_expired", "testapp.UuidKey", "testapp.Photo", stdout=out)
    assert caught.value.returncode == 1
    assert str(caught.value).startswith("testapp.UuidKey on 'default': ")
    assert out.getvalue() == "testapp.Photo: put back 1 expired row.\n"


def test_what_was_put_back_before_the_database_refused_is_told_and_recorded(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.TASKCLAIM = {"CHUNK_SIZE": 2}
    lapsed(Photo, 4)
    usual, chunks = operating._write_expired, []

    def write(desk: Any, locked: list[list[Any]]) -> int:
        chunks.append(1)
        if len(chunks) == 2:
            raise OperationalError("the disk is full")
        return usual(desk, locked)

    monkeypatch.setattr(operating, "_write_expired", write)
    out = io.StringIO()
    with pytest.raises(CommandError, match="'default': the disk is full"):
        call_command("release_expired", "testapp.Photo", by="ada", stdout=out)
    assert out.getvalue() == "testapp.Photo: put back 2 expired rows.\n"
    assert [(act.act, act.rows) for act in acts(Photo, using="default")] == [("release expired", 2)]


def test_a_loop_outlives_what_refuses(process_env: dict[str, str]) -> None:
    """It says what is wrong, goes on, and frees the rows once it can."""
    lapsed(UuidKey, 1)
    with table_away(UuidKey):
        loop = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "django",
                "release_expired",
                "testapp.UuidKey",
                "--loop",
                "--interval",
                "200ms",
            ],
            env=process_env | {"TASKCLAIM_TEST_LEASE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert loop.stdout is not None
        assert loop.stderr is not None
        assert loop.stderr.readline().startswith("testapp.UuidKey on 'default': ")
    assert loop.stdout.readline() == "testapp.UuidKey: put back 1 expired row.\n"
    loop.send_signal(signal.SIGTERM)
    loop.communicate(timeout=120)
    assert loop.returncode == 0


# The switch


def test_pause_and_resume() -> None:
    make(Photo, 1)
    said = run(
        "claimpause",
        "testapp.Photo",
        "--reason",
        "the server is down",
        "--by",
        "ann",
        "--until",
        "30m",
    )
    assert said == "Paused testapp.Photo for 30 min. Running rows finish.\n"
    for alias in ("default", "other"):
        switch = paused_by(Photo, using=alias)
        assert switch is not None
        assert (switch.reason, switch.by) == ("the server is down", "ann")
        assert switch.until is not None
        assert switch.paused_at is not None
        assert switch.until - switch.paused_at == timedelta(minutes=30)
    assert Photo.objects.claim_batch(1) == []
    assert run("claimresume", "testapp.Photo") == "Resumed testapp.Photo.\n"
    assert len(Photo.objects.claim_batch(1)) == 1


def test_a_pause_is_signed_by_who_runs_it() -> None:
    run("claimpause", "testapp.Photo", "testapp.UuidKey")
    for model in (Photo, UuidKey):
        switch = paused_by(model)
        assert switch is not None
        assert re.fullmatch(r"\S+@\S+", switch.by)
        assert switch.until is None


def test_a_pause_on_one_database_only() -> None:
    run("claimpause", "testapp.Photo", "--database", "other")
    assert paused_by(Photo, using="default") is None
    assert paused_by(Photo, using="other") is not None


def test_everything_is_paused_and_resumed() -> None:
    assert run("claimpause", "--all").startswith("Paused all models.")
    assert paused_by(UuidKey) is not None
    assert run("claimresume", "--all").startswith("Resumed all models.\n")
    assert not Switch.objects.exists()


def test_resuming_says_where_nobody_works() -> None:
    sentence = "No worker for testapp.Job is alive; manage.py claimworker testapp.Job\n"
    assert run("claimresume", "testapp.Job", "testapp.Photo").endswith(sentence)
    assert re.search(r"No worker for .* and \d+ more is alive", run("claimresume", "--all"))
    WorkerProcess.objects.create(
        name="worker@host:1",
        labels="testapp.Job",
        host="host",
        pid=1,
        version="1",
        started_at=DatabaseNow(),
        seen_at=DatabaseNow(),
    )
    assert run("claimresume", "testapp.Job") == "Resumed testapp.Job.\n"


def test_what_stays_paused_is_told() -> None:
    pause_all(by="ann")
    pause(Photo, by="bob")
    said = run("claimresume", "testapp.Photo")
    assert (
        "testapp.Photo stays paused: everything is paused by ann; manage.py claimresume --all"
        in said
    )
    pause(Photo, by="bob")
    pause(Parent)
    said = run("claimresume", "--all")
    assert (
        "testapp.Photo stays paused: testapp.Photo is paused by bob; manage.py claimresume testapp.Photo"
        in said
    )
    assert (
        "testapp.Child stays paused: testapp.Parent is paused; manage.py claimresume testapp.Parent"
        in said
    )
    assert "testapp.UuidKey" not in said


@no_savepoint
def test_a_database_that_cannot_be_reached_is_named() -> None:
    settings = connections["other"].settings_dict
    name = settings["NAME"]
    connections["other"].close()
    settings["NAME"] = (
        "/nowhere/at/all.sqlite3" if connections["other"].vendor == "sqlite" else "no_such_database"
    )
    try:
        code, said = refused("claimpause", "testapp.Photo")
    finally:
        connections["other"].close()
        settings["NAME"] = name
    assert code == 1
    assert said.startswith("The switch was turned on default, but not on other: ")
    assert paused_by(Photo, using="default") is not None


# On a terminal, and off it


@pytest.mark.parametrize("command", ["claimstatus", "claimdoctor"])
def test_no_colour_codes_off_a_terminal(command: str, process_env: dict[str, str]) -> None:
    pause(Photo)
    WorkerProcess.objects.create(
        name="w", host="h", pid=1, version="1", started_at=DatabaseNow(), seen_at=DatabaseNow()
    )
    done = shell(process_env, command)
    assert "\x1b" not in done.stdout + done.stderr
    coloured = shell(process_env, command, "--force-color")
    assert "\x1b" in coloured.stdout
    assert (
        re.sub(r"\x1b\[[\d;]*m", "", coloured.stdout.splitlines()[0]) == done.stdout.splitlines()[0]
    )


def test_commands_work_while_a_check_fails(process_env: dict[str, str]) -> None:
    """An operator must be able to pause also while something else of the project is wrong."""
    program = (
        "import os, sys, django\n"
        "from django.conf import settings\n"
        "django.setup()\n"
        "settings.TASKCLAIM = {'LEASE': -1}\n"
        "from django.core.management import execute_from_command_line\n"
        "execute_from_command_line(['manage.py', 'claimpause', 'testapp.Photo'])\n"
    )
    env = {**process_env, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert paused_by(Photo) is not None
