"""The pages on polling are true: their code runs, block after block, and gives what it says.

Where a page says ``manage.py claimworker app.Model``, the handler is called as a worker does until nothing is left.
"""

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.db import models, transaction
from django.test import override_settings
from django.test.utils import isolate_apps

from django_taskclaim import handlers
from django_taskclaim.columns import has_ranges
from django_taskclaim.querysets.completing import complete
from django_taskclaim.worker.running import call, prepare
from tests import documents
from tests.meanwhile import table_made
from tests.querysets.support import clock, execute, table_of

FOLDER = documents.DOCS / "polling"
PAGES = sorted(FOLDER.glob("[!R]*.md"))

#: Without it Django 6.1 warns of what a later version will ask for.
MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}

#: What happens on a page, in its order: code, or a worker for a model.
STEPS = re.compile(
    r"^```python\n(?P<code>.*?)^```$|`manage\.py claimworker app\.(?P<model>\w+)",
    re.MULTILINE | re.DOTALL,
)


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
            for value in [*names.values()]:
                ours = isinstance(value, type) and issubclass(value, models.Model)
                if ours and value.__module__ == names["__name__"] and value not in seen:
                    seen.append(value)
                    tables.enter_context(table_made(value))
                    tables.callback(handlers.unregister, value)
    assert seen


def work(model: Any) -> None:
    """Claim, call and complete until nothing is left, by the rules of the model's handler."""
    if has_ranges(model):
        model.objects.plan()
        # The time that late commits are waited for has passed.
        execute(f"UPDATE {table_of(model)} SET not_before = {clock('-1 second')}")
    handler = handlers.handler_for(model)
    queryset = model.objects.all() if handler.queryset is None else handler.queryset
    while rows := queryset.all().claim_batch(100):
        prepare(handler, rows)
        for part in [rows] if handler.batch else [[row] for row in rows]:
            with transaction.atomic():
                assert call(handler, part) is None
                complete(model, part, handler.update_fields)
