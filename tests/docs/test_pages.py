"""The README and the pages are true: their code runs, their tables name what exists, their links lead somewhere.

Every Python block is run, each by itself, with ``Photo`` and ``Outbox``, of 20 rows each, at hand. A block whose first
line is ``# some/file.py`` belongs to the first steps, see ``test_first_steps``.
"""

import argparse
import ast
import contextlib
import inspect
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand
from django.db import models
from django.db.utils import ConnectionHandler
from django.test import override_settings
from django.test.utils import isolate_apps

from django_taskclaim import conf, handlers
from django_taskclaim.checks import problems_of
from django_taskclaim.columns import has_claim_columns, is_companion
from django_taskclaim.management.commands import claimstatus
from django_taskclaim.monitoring.server import server_for
from tests import documents
from tests.factories import make
from tests.meanwhile import table_made
from tests.taking.models import Letter
from tests.testapp.models import Photo

pytestmark = pytest.mark.once

ROOT = documents.DOCS.parent
README = ROOT / "README.md"
DOCUMENTS = sorted([README, *documents.DOCS.rglob("*.md")])
TEXTS = {page: page.read_text(encoding="utf-8") for page in DOCUMENTS}
#: The pages whose code is run here.
RUN = "admin adopting columns completion contention control databases failures handlers leases"
RUN += " settings take throttling verbs workers"
SNIPPETS = [
    block
    for page in [README, *(documents.DOCS / f"{name}.md" for name in RUN.split())]
    for block in documents.blocks(TEXTS[page], "python", page.name)
    if not re.match(r"# (\S+\.py)\n", str(block.values[0]))
]


@pytest.mark.parametrize("source", SNIPPETS)
@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_block_runs_and_gives_what_it_says(source: str) -> None:
    """The checks accept its models, handlers and settings, and its models can be claimed."""
    make(Photo, 20)
    make(Letter, 20)
    names = {"__name__": "tests.testapp.readme", "Photo": Photo, "Outbox": Letter}
    try:
        with isolate_apps("tests.testapp"):
            documents.run(source, names, "README.md")
            for value in names.values():
                if inspect.isclass(value) and value.__module__ == names["__name__"]:
                    assert_claimable(value)
        if handlers.handler_for(Photo):
            # An archive in the pages is one of the README's Photo, which has fewer columns.
            assert {one.id for one in problems_of(Photo)} <= {"taskclaim.W051"}
    finally:
        handlers.unregister(Photo)
    if "TASKCLAIM" in names:
        with override_settings(TASKCLAIM=names["TASKCLAIM"]):
            assert list(conf.problems()) == []
    if "DATABASES" in names:
        shown = ConnectionHandler(names["DATABASES"])
        for alias in shown:
            assert list(server_for(shown[alias]).configured_faults()) == []
            shown[alias].get_connection_params()


def assert_claimable(model: Any) -> None:
    """Create the table that a block describes, and claim a row of it."""
    if not issubclass(model, models.Model) or not has_claim_columns(model):
        return
    assert list(problems_of(model)) == []
    with table_made(model):
        if is_companion(model):
            model.objects.populate(Photo.objects.all())
        else:
            model.objects.create()
        (row,) = model.objects.claim_batch(1)
        row.claim.complete()
        assert model.objects.progress().complete == 1


@pytest.mark.django_db
def test_the_page_on_testing_is_true() -> None:
    """Its test passes with the handler that it shows."""
    text = TEXTS[documents.DOCS / "testing.md"]
    shown, measuring = (block.values[0] for block in documents.blocks(text, "python"))
    names: dict[str, Any] = {"__name__": "tests.testapp.testing", "Photo": Photo}
    documents.run(measuring, names, "testing.md")
    try:
        documents.run(shown, names, "testing.md")
        names["MeasuringTest"]("test_a_photo_is_measured").test_a_photo_is_measured()
    finally:
        handlers.unregister(Photo)


def test_the_code_on_people_runs() -> None:
    for block in documents.blocks(TEXTS[documents.DOCS / "people.md"], "python"):
        with isolate_apps("articles"):
            documents.run(block.values[0], {"__name__": "articles.docs"}, "people.md")


# The tables


def test_the_settings_are_all_there_with_their_defaults() -> None:
    told = {key: ast.literal_eval(cell.strip("`")) for key, cell in documents.table("key").items()}
    assert told == dict(conf.DEFAULTS)


def test_the_options_of_handlers_are_all_there_with_their_defaults() -> None:
    cells = documents.table("option").items()
    told = {name: ast.literal_eval(cell.strip("`")) for name, cell in cells if name[0] != "-"}
    plain = handlers.Handler(Photo, len)
    follow = {
        "lease": plain.lease / timedelta(seconds=1),
        "timeout": plain.timeout and plain.timeout / timedelta(seconds=1),
        "max_attempts": plain.max_attempts,
        "concurrency": plain.concurrency,
        "batch_size": None,
        "backoff": None,
        "completion": "mark",
    }
    for name in handlers.HandlerOptions.__annotations__.keys() - follow.keys():
        follow[name] = getattr(plain, name, None)
    assert {name: value or None for name, value in told.items()} == {
        name: value or None for name, value in follow.items()
    }


def test_the_options_of_claimworker_are_all_there_with_their_defaults() -> None:
    told = {name: cell for name, cell in documents.table("option").items() if name[0] == "-"}
    options = options_of("claimworker")
    actions = {
        one.option_strings[-1]: None if one.default == [] else one.default for one in options
    }
    assert {name: default_in(cell) for name, cell in told.items()} == actions


def options_of(command: str) -> list[argparse.Action]:
    """Return the options of a command that not every command of Django has."""
    usual = {action.dest for action in BaseCommand().create_parser("manage.py", "usual")._actions}
    parser = load_command_class("django_taskclaim", command).create_parser("manage.py", command)
    return [one for one in parser._actions if one.option_strings and one.dest not in usual]


def default_in(cell: str) -> Any:
    """Return the default that a cell names; None if something else decides."""
    if cell == "off":
        return False
    if not cell.startswith("`") or cell.strip("`") in conf.DEFAULTS:
        return None
    with contextlib.suppress(ValueError):
        return ast.literal_eval(cell.strip("`"))
    return cell.strip("`")


def test_commands_that_are_named_exist_and_the_readme_names_all() -> None:
    ours = {name for name, app in get_commands().items() if app.startswith("django_taskclaim")}
    typed = {name for text in TEXTS.values() for name in re.findall(r"manage\.py (claim\w+)", text)}
    assert typed <= ours
    assert {name for name in ours if not re.search(rf"\b{name}\b", TEXTS[README])} == set()


def test_the_page_on_operating_names_every_figure_and_every_table() -> None:
    text = TEXTS[documents.DOCS / "operating.md"]
    table = text.partition("| figure | what it is |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    told = {name.strip("`") for cell in cells for name in cell.split(", ")}
    assert told == set(claimstatus.FIGURES)
    assert ", ".join(claimstatus.FIGURES) in " ".join(str(claimstatus.__doc__).split())


# The links

#: The README is also shown where the package is listed, so it links to the pages of the site.
SITE = "https://django-taskclaim.readthedocs.io/en/latest/"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", TEXTS[page], re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links_of(page: Path) -> list[tuple[str, Path, str]]:
    """Return what a page links to in this repository: the link, the file and the heading."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", TEXTS[page]):
        if link.startswith(SITE) or not link.startswith("http"):
            source = re.sub(r"\.html(?=#|$)", ".md", link).replace(
                SITE + "_images/", SITE + "images/"
            )
            path, _, anchor = source.replace(SITE, "docs/").partition("#")
            found.append((link, (page.parent / path).resolve() if path else page, anchor))
    return found


def test_what_a_page_links_to_exists() -> None:
    missing = [
        f"{page.name}: {link}"
        for page in DOCUMENTS
        for link, target, anchor in links_of(page)
        if not target.exists() or (anchor and anchor not in anchors(target))
    ]
    assert missing == []


def test_each_guarantee_names_tests_that_exist() -> None:
    text = TEXTS[documents.DOCS / "guarantees.md"]
    promises = re.findall(r"^\| (?!promise|---)(.+) \| (.+) \|$", text, re.MULTILINE)
    assert len(promises) >= 14
    for promise, tests in promises:
        named = re.findall(r"`(tests/[\w/.]+)`", tests)
        assert named, promise
        assert [name for name in named if not (ROOT / name).exists()] == []
