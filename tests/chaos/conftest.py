"""The oracle's triggers and ledger around a test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import history


@pytest.fixture
def watched(
    transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Every change of work is copied into the history, for the length of a test."""
    monkeypatch.setenv("TASKCLAIM_CHAOS_LEDGER", str(tmp_path / "ledger"))
    history.watch()
    yield
    history.uninstall()
