"""Have pytest run the faulty copy, and of its tests those of one promise where TASKCLAIM_PROMISE names it."""

import os
from pathlib import Path

import pytest

import django_taskclaim

PROMISE = int(os.environ.get("TASKCLAIM_PROMISE", "0"))


def pytest_configure(config):
    folder = Path(os.environ["TASKCLAIM_FAULTY"])
    if not Path(django_taskclaim.__file__).is_relative_to(folder):
        pytest.exit(f"{django_taskclaim.__file__} is imported, not the copy in {folder}", 4)


def pytest_ignore_collect(collection_path):
    """Do not even import files without a promise's test: that takes longer than most tests."""
    if PROMISE and collection_path.match("test_*.py"):
        return True if "promise(" not in collection_path.read_text() else None
    return None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Keep the tests of the promise, those that start processes last: the others find most faults."""
    if PROMISE:
        guards = [
            item
            for item in items
            if any(PROMISE in mark.args for mark in item.iter_markers("promise"))
        ]
        config.hook.pytest_deselected(items=[item for item in items if item not in guards])
        items[:] = sorted(guards, key=lambda item: bool(item.get_closest_marker("processes")))
