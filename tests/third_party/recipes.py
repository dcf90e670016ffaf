"""The code of ``docs/third-party.md``, for the app of these tests and for a test of its own."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests import documents

PAGE = Path(__file__).resolve().parents[2] / "docs" / "third-party.md"


def blocks(file: str) -> list[Any]:
    """Return the Python blocks of the page that begin with ``# <file>``."""
    found = documents.blocks(PAGE.read_text(encoding="utf-8"), "python", PAGE.name)
    return [block for block in found if str(block.values[0]).startswith(f"# {file}\n")]


def run(sources: Iterable[Any], module: str) -> dict[str, Any]:
    """Run the blocks as parts of *module*, each with names of its own, and return all names."""
    names: dict[str, Any] = {}
    for block in sources:
        own: dict[str, Any] = {"__name__": module, "__package__": module.rpartition(".")[0]}
        documents.run(block.values[0], own, block.id)
        names |= own
    return names


def models_of(sources: Iterable[Any], module: str) -> dict[str, Any]:
    """Run the blocks as parts of *module* and return the classes that they define."""
    return {
        name: value
        for name, value in run(sources, module).items()
        if isinstance(value, type) and value.__module__ == module
    }
