"""What holds for every command of ours: help that reads well, one sentence for what is wrong, no traceback.

Each is called as a shell calls it (``manage.py …``), in this process.
"""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import ManagementUtility, get_commands
from django.db import connections

from tests.sources.app.models import PageTask
from tests.test_commands import shell as in_a_process
from tests.test_commands import table_away
from tests.testapp.models import IntRange, IntSource

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

#: Every command, with words that make sense to it: a new one has to be added.
SENSIBLE: dict[str, tuple[str, ...]] = {
    "claimadopt": ("testapp.Photo", "--dry-run"),
    "claimdoctor": ("testapp.Photo",),
    "claimlimit": ("testapp.Photo",),
    "claimpause": ("testapp.Photo",),
    "claimplan": ("testapp.IntRange",),
    "claimpopulate": ("source_app.PageTask",),
    "claimprune": ("testapp.Photo", "--complete", "--older-than", "30d"),
    "claimreset": ("testapp.Photo",),
    "claimresume": ("testapp.Photo",),
    "claimstatus": ("testapp.Photo",),
    "claimworker": ("testapp.QuickJob", "--in-process", "--max-time", "500ms"),
    "release_expired": ("testapp.Photo",),
}
SENSIBLE["claimpopulate"] = (PageTask._meta.label,)


def ours() -> list[str]:
    """Return the commands of this package, wherever in it they are."""
    return sorted(
        name for name, app in get_commands().items() if app.startswith("django_taskclaim")
    )


def shell(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Type ``manage.py …`` and return the exit code, and what was said on both outputs."""
    code: Any = 0
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        ManagementUtility(["manage.py", *words]).execute()
    except SystemExit as stopped:
        code = stopped.code
    finally:
        # The worker holds signals from its first line, and this process is not its own.
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    out, errors = capsys.readouterr()
    return int(code or 0), out, errors


@contextlib.contextmanager
def nobody_answers() -> Iterator[None]:
    """Send every connection of this process to where no database is."""
    before = {}
    for alias in connections:
        wrapper = connections[alias]
        wrapper.close()
        before[alias] = dict(wrapper.settings_dict)
        away = {"NAME": "/nowhere/at/all.sqlite3"}
        if wrapper.vendor != "sqlite":
            # A port that nobody listens on.
            away = {"HOST": "127.0.0.1", "PORT": "9"}
        wrapper.settings_dict.update(away)
    try:
        yield
    finally:
        for alias, settings in before.items():
            connections[alias].close()
            connections[alias].settings_dict.update(settings)


def test_every_command_is_known_here() -> None:
    assert ours() == sorted(SENSIBLE)


@pytest.mark.parametrize("command", SENSIBLE)
def test_help_tells_examples_and_exit_codes_within_a_line(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    code, out, errors = shell(capsys, command, "--help")
    assert (code, errors) == (0, "")
    assert f"examples:\n  manage.py {command}" in out
    assert "exit codes:\n  0  " in out
    assert "\n  2  " in out
    assert max(map(len, out.splitlines())) <= 120


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("testapp.Foto",), "There is no model 'testapp.Foto'; "),
        (("testapp.Ledger",), "The model testapp.Ledger cannot be claimed: "),
        (("--nonsense",), ""),
        (("--database", "nope"), ""),
    ],
)
@pytest.mark.parametrize("command", SENSIBLE)
def test_a_wrong_word_is_one_sentence_and_exit_code_2(
    command: str, words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = words if not words[0].startswith("--") else (*SENSIBLE[command], *words)
    code, out, errors = shell(capsys, command, *given)
    assert (code, out) == (2, "")
    assert errors.removeprefix("CommandError: ").startswith(sentence)
    assert errors.count("\n") == 1
    assert errors.rstrip().endswith((".", "?"))


#: They look, or write a file.
READS = {"claimadopt", "claimdoctor", "claimstatus"}


@pytest.mark.parametrize("command", [name for name in SENSIBLE if name not in READS])
def test_where_nothing_is_committed_nothing_is_written(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "AUTOCOMMIT", False)
    code, out, errors = shell(capsys, command, *SENSIBLE[command])
    assert (code, out) == (2, "")
    assert errors.startswith("CommandError: The database 'default' has AUTOCOMMIT False: ")
    assert errors.count("\n") == 1


def test_claimdoctor_names_a_database_that_commits_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "AUTOCOMMIT", False)
    _, out, _ = shell(capsys, "claimdoctor", "testapp.Photo")
    assert "The database 'default' has AUTOCOMMIT False" in out


#: A worker waits for its database, and what has its columns already needs none to be told so.
WITHOUT = {"claimworker", "claimadopt"}


@pytest.mark.parametrize("command", [name for name in SENSIBLE if name not in WITHOUT])
def test_without_a_database_there_is_a_sentence_and_no_traceback(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with nobody_answers():
        code, out, errors = shell(capsys, command, *SENSIBLE[command])
    assert code == 1
    assert "Traceback" not in out + errors
    if command == "claimdoctor":
        assert "  !!  The database 'default' refused a question: " in out
    assert 1 <= len(errors.splitlines()) <= 3


def test_a_worker_waits_for_its_database_and_says_so(process_env: dict[str, str]) -> None:
    vendor = connections["default"].vendor
    away = {
        "sqlite": "sqlite:////nowhere/at/all.sqlite3",
        "postgresql": "postgres://nobody@127.0.0.1:9/nothing",
        "mysql": "mysql://nobody@127.0.0.1:9/nothing",
    }[vendor]
    env = {**process_env, "DATABASE_URL": away, "OTHER_DATABASE_URL": away}
    done = in_a_process(env, "claimworker", *SENSIBLE["claimworker"])
    assert done.returncode == 0
    assert "Traceback" not in done.stdout + done.stderr
    assert "worker: " in done.stdout + done.stderr


def test_a_source_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with table_away(PageTask._meta.get_field("source").related_model):
        code, out, errors = shell(capsys, "claimpopulate", PageTask._meta.label)
    assert (code, out) == (2, "")
    assert "has no table legacy_page for " in errors
    assert errors.count("\n") == 1


def test_a_source_of_ranges_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with table_away(IntSource):
        code, _out, errors = shell(capsys, "claimplan", IntRange._meta.label)
        _code, found, _errors = shell(capsys, "claimdoctor", IntRange._meta.label)
    assert code == 2
    told = "has no table testapp_intsource for testapp.IntSource, the source of testapp.IntRange."
    assert told in errors
    assert told in found
