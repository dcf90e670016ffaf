"""The oracle's triggers and ledger around a test."""

from collections.abc import Iterator

import pytest

from tests.chaos import ledger, sql


@pytest.fixture
def watched(transactional_db: None) -> Iterator[None]:
    """Every change of work is copied into the history, for the length of a test."""
    sql.install()
    ledger.prepare()
    yield
    sql.uninstall()
    ledger.forget_second_connection()
    ledger.drop()
