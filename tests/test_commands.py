"""Former place of ``tests.commands``, for tests that still import from here."""

from tests.commands import lapsed, no_savepoint, refused, run, shell, table_away

__all__ = ["lapsed", "no_savepoint", "refused", "run", "shell", "table_away"]
