"""The README is true: its code runs, its first steps work from nothing, its tables name what there is.

Every Python block is run, each by itself, with ``Photo`` and ``Outbox``, of 20 rows each, at hand. A line that ends in
``# → value`` is compared with that value. A block whose first line is ``# some/file.py`` is a file of the first steps
instead.
"""

import argparse
import ast
import contextlib
import inspect
import os
import re
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management import load_command_class
from django.core.management.base import BaseCommand
from django.db import connection, models
from django.db.utils import ConnectionHandler
from django.test import override_settings
from django.test.utils import isolate_apps

import django_taskclaim
from django_taskclaim import conf, handlers
from django_taskclaim.checks.completion import problems_of as problems_of_completion
from django_taskclaim.checks.handlers import problems_of as problems_of_handler
from django_taskclaim.checks.models import problems_of as problems_of_model
from django_taskclaim.columns import claim_columns, has_claim_columns
from django_taskclaim.completion import as_completion
from django_taskclaim.dialects import dialect_for
from django_taskclaim.links import is_companion
from tests import documents
from tests.factories import make
from tests.taking.models import Letter
from tests.testapp.models import Photo

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: Its code is run like the README's.
COMPLETION = (ROOT / "docs" / "completion.md").read_text(encoding="utf-8")
ADOPTING = (ROOT / "docs" / "adopting.md").read_text(encoding="utf-8")

#: The smallest PNG that there is, so that the first steps need no network.
DOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY"
    "42YAAAAASUVORK5CYII="
)


FILES = {
    name[1]: block.values[0]
    for block in documents.blocks(README, "python")
    if (name := re.match(r"# (\S+\.py)\n", str(block.values[0])))
}
SNIPPETS = [
    block for block in documents.blocks(README, "python") if block.values[0] not in FILES.values()
]
SNIPPETS += documents.blocks(COMPLETION, "python", "completion.md")
SNIPPETS += documents.blocks(ADOPTING, "python", "adopting.md")


def run(source: str) -> dict[str, Any]:
    """Run a block as a module of the test app and return its names."""
    names: dict[str, Any] = {"__name__": "tests.testapp.readme", "Photo": Photo, "Outbox": Letter}
    documents.run(source, names, "README.md")
    return names


@pytest.fixture
def no_handler() -> Iterator[None]:
    yield
    handlers.unregister(Photo)


def test_the_readme_has_code_to_run() -> None:
    assert len(SNIPPETS) >= 10
    assert set(FILES) == {"photos/models.py", "photos/claims.py", "photos/admin.py"}


@pytest.mark.parametrize("source", SNIPPETS)
@pytest.mark.django_db(transaction=True, databases="__all__")
@pytest.mark.usefixtures("no_handler")
def test_a_block_runs_and_gives_what_it_says(source: str) -> None:
    make(Photo, 20)
    make(Letter, 20)
    with isolate_apps("tests.testapp"):
        names = run(source)
        ours = [
            value
            for value in names.values()
            if inspect.isclass(value) and value.__module__ == names["__name__"]
        ]
        for model in ours:
            if issubclass(model, models.Model) and has_claim_columns(model):
                assert_claimable(model)
    registered = handlers._handlers.get(Photo)
    if registered is not None:
        assert list(problems_of_handler(registered)) == []
        assert list(problems_of_completion(registered)) == []
    assert_settings(names)


def assert_claimable(model: Any) -> None:
    """Create the table that a block describes, and claim a row of it."""
    assert list(problems_of_model(model)) == []
    with connection.schema_editor() as editor:
        editor.create_model(model)
    try:
        if is_companion(model):
            model.objects.populate(Photo.objects.all())
        else:
            model.objects.create()
        (row,) = model.objects.claim_batch(1)
        row.claim.complete()
        assert model.objects.progress().complete == 1
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(model)
    assert claim_columns(model).owner is model


def assert_settings(names: dict[str, Any]) -> None:
    """Let the checks look at the settings that a block shows."""
    if "TASKCLAIM" in names:
        with override_settings(TASKCLAIM=names["TASKCLAIM"]):
            assert list(conf.problems()) == []
    if "DATABASES" in names:
        shown = ConnectionHandler(names["DATABASES"])
        for alias in shown:
            assert list(dialect_for(shown[alias]).configured_faults()) == []
            shown[alias].get_connection_params()


# The first steps


@pytest.mark.timeout(600)
def test_the_first_steps_work_from_nothing(tmp_path: Path) -> None:
    """A new project, the README's files, apps and commands: every row is done, and the columns are filled."""
    manage(tmp_path, sys.executable, "-m", "django", "startproject", "mysite", ".")
    manage(tmp_path, sys.executable, "manage.py", "startapp", "photos")
    for name, source in FILES.items():
        (tmp_path / name).write_text(source, encoding="utf-8")
    settings = tmp_path / "mysite" / "settings.py"
    more = (
        'INSTALLED_APPS = ["admin_actions", *INSTALLED_APPS]\n'
        'INSTALLED_APPS += ["django_taskclaim", "django_taskclaim.control", "photos"]\n'
    )
    settings.write_text(settings.read_text(encoding="utf-8") + more, encoding="utf-8")
    steps = [line.split() for line in next(commands()).splitlines()]
    worker = next(place for place, words in enumerate(steps) if "claimworker" in words)
    for words in steps[:worker]:
        manage(tmp_path, sys.executable, *words[1:])
    with contextlib.closing(sqlite3.connect(tmp_path / "db.sqlite3")) as database:
        # A row that exists is the work to do, whoever made it.
        database.executemany("INSERT INTO photos_photo (url) VALUES (?)", [(DOT,)] * 3)
        database.commit()
        outputs = [manage(tmp_path, sys.executable, *words[1:]) for words in steps[worker:]]
        measured = database.execute("SELECT width, height, status FROM photos_photo").fetchall()
    assert measured == [(1, 1, "complete")] * 3
    assert re.search(r"photos\.Photo +0 +0 +3 ", outputs[-1])


def commands() -> Iterator[str]:
    """Yield the shell blocks that are about manage.py."""
    return (
        text
        for block in documents.blocks(README, "sh")
        if "manage.py migrate" in (text := str(block.values[0]))
    )


def manage(folder: Path, *words: str) -> str:
    """Run a command in the new project, which knows nothing of these tests."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DJANGO_", "PYTHONSAFEPATH"))
    }
    env["PYTHONPATH"] = str(Path(django_taskclaim.__path__[0]).parent)
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# The tables


def table(heading: str) -> dict[str, str]:
    """Return the first two columns of the table whose first heading is given and whose second is "default"."""
    found = re.findall(
        rf"^\| {heading} \| default \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", README, re.MULTILINE
    )
    rows = [row.split("|") for text in found for row in text.splitlines()]
    return {row[1].strip().strip("`"): row[2].strip() for row in rows}


def shown(cell: str) -> Any:
    """Return the value that a cell of the column "default" spells."""
    return ast.literal_eval(cell.strip("`"))


def test_the_settings_are_all_there_with_their_defaults() -> None:
    assert {key: shown(cell) for key, cell in table("key").items()} == dict(conf.DEFAULTS)


def test_the_options_of_handlers_are_all_there_with_their_defaults() -> None:
    parameters = list(inspect.signature(handlers.handler).parameters)[1:]
    options = {name: cell for name, cell in table("option").items() if not name.startswith("-")}
    assert list(options) == parameters
    plain = handlers.Handler(Photo, len)
    in_force = {
        "batch_size": plain.given_batch_size,
        "lease": plain.policy.lease,
        "timeout": plain.timeout,
        "max_attempts": plain.policy.max_attempts,
        "backoff": plain.policy.own_backoff,
        "errors": plain.policy.own_errors or None,
        "completion": plain.policy.completion,
        "update_fields": plain.update_fields,
        "batch": plain.batch,
        "atomic": plain.atomic,
        "concurrency": plain.concurrency,
        "health_checks": plain.health_checks,
        "queryset": plain.queryset,
        "order_by": plain.policy.own_order,
        "limit_per": plain.policy.own_limit_per or None,
        "rate": plain.policy.own_rate,
        "max_running": plain.policy.own_max_running,
        "hours": plain.policy.own_hours,
        "serial_by": plain.policy.own_serial_by,
        "failed_blocks": plain.policy.own_failed_blocks,
        "missing_source": plain.missing_source,
        "wake_up": plain.wake_up,
    }
    told = {name: shown(cell) for name, cell in options.items()}
    told |= {name: timedelta(seconds=told[name]) for name in ("lease", "timeout")}
    told["completion"] = as_completion(told["completion"])
    assert told == in_force


def test_the_options_of_claimworker_are_all_there_with_their_defaults() -> None:
    options = {name: cell for name, cell in table("option").items() if name.startswith("-")}
    actions = {action.option_strings[-1]: action for action in options_of("claimworker")}
    assert list(options) == list(actions)
    for name, cell in options.items():
        assert told_default(cell) == actions[name].default, name


def options_of(command: str) -> list[argparse.Action]:
    """Return what a command understands beyond what every command of Django's does."""
    usual = {action.dest for action in BaseCommand().create_parser("manage.py", "usual")._actions}
    parser = load_command_class("django_taskclaim", command).create_parser("manage.py", command)
    return [
        action for action in parser._actions if action.option_strings and action.dest not in usual
    ]


def told_default(cell: str) -> Any:
    """Return the default that a cell tells: None where it names what else decides."""
    if cell == "off":
        return False
    if not cell.startswith("`") or cell.strip("`") in conf.DEFAULTS:
        return None
    with contextlib.suppress(ValueError):
        return shown(cell)
    return cell.strip("`")


def test_commands_named_in_the_readme_exist() -> None:
    folder = Path(apps.get_app_config("taskclaim").path) / "management" / "commands"
    ours = {path.stem for path in folder.glob("[!_]*.py")}
    named = {name for name in ours if re.search(rf"\b{name}\b", README)}
    typed = set(re.findall(r"manage\.py (claim\w+)", README))
    assert named == ours
    assert typed <= ours


def test_files_that_the_readme_links_to_exist() -> None:
    links = re.findall(r"\]\((?!#|https?:)([^)]+)\)", README)
    assert len(links) >= 8
    assert [link for link in links if not (ROOT / link.partition("#")[0]).exists()] == []


def test_headings_that_the_readme_links_to_exist() -> None:
    headings = re.findall(r"^#+ (.*)$", README, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", README)) <= anchors


def test_what_ci_greps_for_is_a_line_of_its_own() -> None:
    lines = [line for line in README.splitlines() if re.search(r"\.venv/bin/tox *$", line)]
    assert len(lines) == 1
    assert textwrap.dedent(lines[0]) == lines[0]
