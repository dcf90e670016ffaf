"""Which sources of these companions are on another database."""

from typing import Any


class FarAway:
    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "other" if model.__name__ == "FarPage" else None

    db_for_read = db_for_write
