"""A database of its own for each run of a benchmark, beside the one that ``DATABASE_URL`` names."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HOME = Path(__file__).parent.parent


@contextlib.contextmanager
def own_database() -> Iterator[str]:
    """Set Django up on a new database, yield its URL for other processes, and drop it at the end.

    ``DATABASE_URL`` chooses the server as it does for the tests; unset it is a SQLite file.
    """
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    from django.db import connection, connections

    from tests import servers

    name = connection.settings_dict["TEST"]["NAME"]
    for alias in connections:
        own = name.replace("test_", f"benchmark_{os.getpid()}_{alias}_", 1)
        connections[alias].settings_dict["TEST"]["NAME"] = own
    usual = connection.settings_dict["NAME"]
    connection.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
    try:
        yield servers.url_of(connection.settings_dict)
    finally:
        connections.close_all()
        connection.creation.destroy_test_db(usual, verbosity=0)


@contextlib.contextmanager
def worker(url: str, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run ``claimworker`` with these words on the database *url* while the block runs, then stop it by a signal."""
    command = [sys.executable, "-m", "django", "claimworker", *words]
    environment: dict[str, Any] = os.environ | {"DATABASE_URL": url, "PYTHONPATH": str(HOME)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)
