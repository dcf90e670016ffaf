"""Every command has a help that reads well, and says in one sentence what is wrong."""

import re
from typing import Any

import pytest
from django.core.management import get_commands
from django.db import connections

from django_taskclaim.models import Switch
from tests.commands import no_savepoint, nobody_answers, table_away, typed
from tests.companions.app.models import PageTask
from tests.testapp.models import IntRange, IntSource, Photo

pytestmark = [pytest.mark.once, no_savepoint]

#: Every command, with words that make sense to it.
SENSIBLE: dict[str, tuple[str, ...]] = {
    "claimplan": ("testapp.IntRange",),
    "claimpopulate": (PageTask._meta.label,),
    "claimprune": ("testapp.Photo", "--older-than", "30d"),
    "claimworker": ("testapp.QuickJob", "--in-process", "--max-time", "500ms"),
}
OTHERS = ["claimadopt", "claimdoctor", "claimlimit", "claimpause", "claimreset", "claimresume"]
SENSIBLE |= dict.fromkeys([*OTHERS, "claimstatus", "release_expired"], ("testapp.Photo",))

Captured = pytest.CaptureFixture[str]


def test_every_command_is_listed_here() -> None:
    ours = {name for name, app in get_commands().items() if app.startswith("django_taskclaim")}
    assert ours == set(SENSIBLE)


@pytest.mark.parametrize("command", SENSIBLE)
def test_help_shows_examples(
    command: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    code, out, errors = typed(capsys, command, "--help")
    assert (code, errors) == (0, "")
    assert f"Examples:\n  manage.py {command}" in out
    assert max(map(len, out.splitlines())) <= 120


@pytest.mark.parametrize("command", SENSIBLE)
def test_bad_input_is_one_sentence_and_exit_code_2(command: str, capsys: Captured) -> None:
    """An unknown model, a model without claim columns, an unknown option and an unknown database."""
    wrong = ["testapp.Foto"], ["testapp.Ledger"], ["--nonsense"], ["--database", "nope"]
    for words in wrong:
        before = SENSIBLE[command] if words[0].startswith("--") else ()
        code, out, errors = typed(capsys, command, *before, *words)
        assert (code, out) == (2, "")
        assert words[-1].strip("-").rpartition(".")[2] in errors.splitlines()[-1]


#: Wrong words of single commands, and what their sentence names.
WRONG: list[tuple[str, str]] = [
    ("claimstatus photo", "testapp.Photo"),
    ("claimstatus testapp.Photo --fail-if faild>0", "failed"),
    ("claimstatus testapp.Photo --fail-if failed>1.5", "1.5"),
    ("claimstatus testapp.Photo --fail-if oldest_due>soon", "soon"),
    ("claimstatus testapp.Photo --watch", "terminal"),
    ("release_expired --limit 10000000000000000001", "--limit"),
    ("claimstatus testapp.Photo --fail-if failed=>0", "=>"),
    ("claimlimit testapp.Photo --rate fast", "rate"),
    ("claimlimit testapp.Photo --hours 22-6", "hours"),
    ("release_expired --limit 0", "--limit"),
    ("claimreset", "app.Model"),
    ("claimprune testapp.Photo", "--older-than"),
    ("claimworker testapp.Job --processes 0", "--processes"),
    ("claimlimit testapp.Photo --max-running 9999999999", "2147483647"),
    ("claimpause", "--all"),
    ("claimpause testapp.Photo --reason \udcff", "--reason: '\\udcff' is not UTF-8"),
    ("claimpause testapp.Photo --until soon", "'soon' is not a time in seconds, or such as"),
    ("claimreset testapp.Photo --paused --complete", "--paused"),
    ("claimreset testapp.Photo --filter note=\udcff", "--filter: 'note=\\udcff' is not UTF-8"),
    ("claimreset shop.Photo", "'shop.Photo' (is 'shop' in INSTALLED_APPS?); the installed"),
    ("claimreset testapp.Photo --filter __in=3", "Cannot resolve keyword ''"),
    ("claimreset testapp.ClaimOnly --filter error_class=ValueError", "error_class"),
    ("claimprune testapp.ClaimOnly --older-than 30d", "completed_at"),
    ("claimworker testapp.Job --filter nope=1", "nope"),
    ("claimworker testapp.Job --name \udcff", "--name"),
    ("claimworker testapp.Job --health-file /nowhere/x", "'/nowhere/x' is no file"),
    ("claimworker testapp.Job --health-file=", "'' is no file"),
    ("claimworker testapp.Job --threads 3000", "'3000' is not a whole number from 1 to 1000"),
    ("claimworker testapp.Job --in-process --processes 2", "--processes"),
    ("claimworker testapp.UuidKey --filter id=12", "handler"),
    ("claimworker sources.Page", "no claim columns"),
    ("claimpopulate testapp.Photo", "testapp.Photo has no source"),
    ("claimpopulate sources.PageTask --filter vists=1", "visits"),
]


@pytest.mark.promise(11, 14)
def test_a_wrong_word_is_named(capsys: Captured) -> None:
    for line, named in WRONG:
        code, out, errors = typed(capsys, *line.split())
        assert (code, out) == (2, ""), line
        told = rf"(CommandError|manage.py \w+: error): .*{re.escape(named)}"
        assert re.match(told, errors.splitlines()[-1]), line


def test_a_wrong_setting_is_a_sentence(capsys: Captured, settings: Any) -> None:
    settings.TASKCLAIM = {"CHUNK_SIZE": "many"}
    code, out, errors = typed(capsys, "release_expired")
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert "TASKCLAIM['CHUNK_SIZE'] must be a whole number" in errors


@pytest.mark.promise(2, 14)
@pytest.mark.parametrize("command", SENSIBLE)
def test_a_connection_that_commits_nothing_is_refused(
    command: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "AUTOCOMMIT", False)
    code, out, errors = typed(capsys, command, *SENSIBLE[command])
    assert (code, out, errors.count("\n")) == (2, "", 1)
    assert "The database 'default' has AUTOCOMMIT False" in errors


@pytest.mark.parametrize("command", sorted(SENSIBLE.keys() - {"claimworker", "claimadopt"}))
def test_a_database_that_does_not_answer_is_a_sentence(command: str, capsys: Captured) -> None:
    with nobody_answers():
        code, out, errors = typed(capsys, command, *SENSIBLE[command])
    assert code == 1
    assert "Traceback" not in out + errors
    assert 1 <= len(errors.splitlines()) <= 3


@pytest.mark.parametrize(
    ("command", "model", "table"),
    [
        ("claimplan", IntRange, IntSource),
        ("claimstatus", IntRange, IntRange),
        *((name, Photo, Photo) for name in ("claimreset", "release_expired")),
        *((name, Photo, Switch) for name in ("claimpause", "claimresume", "claimlimit")),
    ],
)
def test_a_missing_table_is_named(command: str, model: Any, table: Any, capsys: Captured) -> None:
    with table_away(table):
        code, _out, errors = typed(capsys, command, model._meta.label)
    assert code == 2
    assert table._meta.db_table in errors
    assert "Traceback" not in errors
