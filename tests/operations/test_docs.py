"""``docs/when-it-is-done.md`` is true: its migrations load, and it tells every argument."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from django.db.migrations import Migration

from django_taskclaim.operations import RequireComplete
from tests import documents

TEXT = (Path(__file__).parents[2] / "docs" / "when-it-is-done.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("source", documents.blocks(TEXT, "python"))
def test_a_block_is_a_migration_with_a_guard_first(source: str) -> None:
    names: dict[str, Any] = {"__name__": "photos.migrations.0008_drop"}
    documents.run(source, names, "when-it-is-done.md")
    migration: Migration = names["Migration"]("0008_drop", "photos")
    assert isinstance(migration.operations[0], RequireComplete)


def test_every_argument_is_told() -> None:
    arguments = list(inspect.signature(RequireComplete).parameters)
    assert arguments[0] == "model"
    for name in arguments[1:]:
        assert f"| `{name}" in TEXT
