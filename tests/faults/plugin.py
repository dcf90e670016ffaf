"""Have pytest run the faulty copy, and of its tests those of one promise where TASKCLAIM_PROMISE names it."""

import os
from pathlib import Path

import pytest

import django_taskclaim


def pytest_configure(config):
    folder = Path(os.environ["TASKCLAIM_FAULTY"])
    if not Path(django_taskclaim.__file__).is_relative_to(folder):
        pytest.exit(f"{django_taskclaim.__file__} is imported, not the copy in {folder}", 4)


def pytest_collection_modifyitems(config, items):
    promise = int(os.environ.get("TASKCLAIM_PROMISE", "0"))
    if promise:
        guards = [
            item
            for item in items
            if any(promise in mark.args for mark in item.iter_markers("promise"))
        ]
        config.hook.pytest_deselected(items=[item for item in items if item not in guards])
        items[:] = guards
