"""The README and the pages beside it are true: their code runs, the first steps work, the tables name what there is.

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
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
#: The pages whose code is run like the README's. Other tests run that of the others.
PAGES = {
    name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in (
        "admin",
        "adopting",
        "columns",
        "completion",
        "contention",
        "control",
        "databases",
        "failures",
        "handlers",
        "leases",
        "settings",
        "take",
        "throttling",
        "verbs",
        "workers",
    )
}

#: The smallest PNG that there is, so that the first steps need no network.
DOT = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY"
    "42YAAAAASUVORK5CYII="
)


FILES = {
    name[1]: block.values[0]
    for page in (README, PAGES["admin"])
    for block in documents.blocks(page, "python")
    if (name := re.match(r"# (\S+\.py)\n", str(block.values[0])))
}
SNIPPETS = [
    block
    for name, page in {"README": README, **PAGES}.items()
    for block in documents.blocks(page, "python", f"{name}.md")
    if block.values[0] not in FILES.values()
]


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
        rf"^\| {heading} \| default \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)",
        "".join(PAGES[name] for name in ("handlers", "workers", "settings", "leases", "take")),
        re.MULTILINE,
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
    typed = {
        name
        for page in DOCUMENTS
        for name in re.findall(r"manage\.py (claim\w+)", page.read_text(encoding="utf-8"))
    }
    assert {name for name in ours if re.search(rf"\b{name}\b", README)} == ours
    assert typed <= ours


#: Every page that is ours to keep true.
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


#: The README is shown where the package is listed, too, so it links to the pages of the site.
SITE = "https://django-taskclaim.readthedocs.io/en/latest/"


def links_of(page: Path) -> list[str]:
    """Return what a page links to in this repository, relative to its folder; pages of the site as their sources."""
    found = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    ours = [
        re.sub(r"\.html(?=#|$)", ".md", link).replace(SITE + "_images/", "docs/images/")
        for link in found
        if link.startswith(SITE) or not link.startswith("http")
    ]
    return [link.replace(SITE, "docs/") for link in ours]


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_exists(page: Path) -> None:
    """Files, and the headings in them."""
    missing = []
    for link in links_of(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    assert missing == []


def test_each_promise_names_tests_that_exist() -> None:
    promises = re.findall(r"^\| (?!promise|---)(.+) \| (.+) \|$", GUARANTEES, re.MULTILINE)
    assert len(promises) >= 20
    for promise, tests in promises:
        named = re.findall(r"`(tests/[\w/.]+)`", tests)
        assert named, promise
        assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_page_can_be_reached() -> None:
    """A page that no other page links to is not found by anybody."""
    reached = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in DOCUMENTS
        for link in links_of(page)
    }
    # The contents of the site name the rest.
    contents = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    listed = {ROOT / "docs" / f"{line}.md" for line in contents.splitlines()}
    assert set(DOCUMENTS) - reached - listed <= {ROOT / "README.md", ROOT / "docs" / "index.md"}


def test_the_readme_is_one_page() -> None:
    assert len(README.splitlines()) <= 200
    assert len(re.findall(r"^## ", README.partition("(TaskMixin)")[0], re.MULTILINE)) <= 2


def test_what_ci_greps_for_is_a_line_of_its_own() -> None:
    lines = [line for line in README.splitlines() if re.search(r"\.venv/bin/tox *$", line)]
    assert len(lines) == 1
    assert textwrap.dedent(lines[0]) == lines[0]
