"""Behind a transaction pooler a worker's sessions are also other clients': it leaves no setting in them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections
from django.db.backends.signals import connection_created

from tests.factories import make
from tests.meanwhile import connected
from tests.testapp.apps import statements_to
from tests.testapp.models import Photo


@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs a server with such poolers")
@pytest.mark.parametrize("atomic", [False, True])
def test_every_setting_ends_with_its_transaction(
    work: Callable[..., int], atomic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client's transactions would be ended for being idle, or would not wait for a lock."""
    settings: Any = connections.settings["default"]
    monkeypatch.setitem(settings, "DISABLE_SERVER_SIDE_CURSORS", True)
    make(Photo, 30)
    log = tmp_path / "statements"
    with connected(connection_created, statements_to(str(log))):
        assert work(Photo, lambda photo: None, atomic=atomic, lease=4) == 0
    settings_made = [line for line in log.read_text().splitlines() if ": SET " in line]
    assert any("SET LOCAL lock_timeout" in line for line in settings_made)
    ending = ("SET LOCAL", "SET TRANSACTION")
    assert [line for line in settings_made if not any(how in line for how in ending)] == []
