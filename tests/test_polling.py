"""The pages on polling are true: their code runs, block after block, and gives what it says.

Where a page says ``manage.py claimworker app.Model``, the handler is called as a worker does until nothing is left.
The worker itself, which ends its process and whose models live longer than a page, is tested elsewhere.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, models, transaction
from django.test import override_settings
from django.test.utils import isolate_apps

from django_taskclaim import handlers
from django_taskclaim.checks.handlers import problems_of as problems_of_handler
from django_taskclaim.checks.models import problems_of as problems_of_model
from django_taskclaim.columns import has_ranges
from tests import documents
from tests.behaviour.support import clock, execute, table_of

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "polling"
INDEX = FOLDER / "README.md"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path != INDEX)

#: Without it Django 6.1 warns of what a later version will ask for; older ones know nothing of it.
MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}

#: What happens on a page, in its order: code, or a worker for a model.
STEPS = re.compile(
    r"^```python\n(?P<code>.*?)^```$|`manage\.py claimworker app\.(?P<model>\w+)",
    re.MULTILINE | re.DOTALL,
)


@contextmanager
def table_for(model: Any) -> Iterator[None]:
    """Keep the table that a page describes."""
    with connection.schema_editor() as editor:
        editor.create_model(model)
    try:
        yield
    finally:
        handlers.unregister(model)
        with connection.schema_editor() as editor:
            editor.delete_model(model)


def models_among(names: dict[str, Any]) -> list[Any]:
    """Return the models that a page has made so far."""
    return [
        value
        for value in names.values()
        if isinstance(value, type)
        and issubclass(value, models.Model)
        and value.__module__ == names["__name__"]
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.django_db(transaction=True, databases="__all__")
@isolate_apps("tests.testapp")
@override_settings(MAILERS=MAILERS)
def test_a_page_runs_and_gives_what_it_says(page: Path) -> None:
    names: dict[str, Any] = {"__name__": "tests.testapp.polling"}
    seen: list[Any] = []
    with ExitStack() as tables:
        for step in STEPS.finditer(page.read_text(encoding="utf-8")):
            if step["model"]:
                work(names[step["model"]])
                continue
            documents.run(step["code"], names, page.name)
            for model in models_among(names):
                if model not in seen:
                    seen.append(model)
                    tables.enter_context(table_for(model))
    assert seen


def work(model: Any) -> None:
    """Claim, call and complete until nothing is left, by the rules of the model's handler."""
    handler = handlers._handlers[model]
    assert list(problems_of_model(model)) == []
    assert list(problems_of_handler(handler)) == []
    if has_ranges(model):
        model.objects.plan()
        # The time that late commits are waited for has passed.
        execute(f"UPDATE {table_of(model)} SET not_before = {clock('-1 second')}")
    queryset = model.objects.all() if handler.queryset is None else handler.queryset
    while rows := queryset.all().claim_batch(100):
        handler.prepare(rows)
        for part in [rows] if handler.batch else [[row] for row in rows]:
            with transaction.atomic():
                assert handler.call(part) is None
                handler.complete(part)


def test_each_kind_has_its_page_and_each_page_tells_the_same() -> None:
    linked = re.findall(r"\]\(([\w-]+\.md)\)", INDEX.read_text(encoding="utf-8"))
    assert sorted(linked) == [page.name for page in PAGES]
    assert len(PAGES) == 7
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert "**What it costs.**" in text, page
        assert "**When a worker dies**" in text, page


def test_what_the_pages_link_to_exists() -> None:
    for page in [INDEX, *PAGES]:
        links = re.findall(r"\]\((?!#|https?:)([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (FOLDER / link).exists()] == []
