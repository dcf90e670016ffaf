"""Log records of real processes as lines of JSON in one file, so that a test can ask what was logged."""

import json
import logging
import os
from typing import Any

#: What every record has of its own; the rest came in ``extra``.
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Handler):
    """Appends one line a record; whole lines, also when many processes write."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, Any] = {k: v for k, v in vars(record).items() if k not in _USUAL}
        facts |= {
            "level": record.levelname,
            "text": record.getMessage(),
            "at": record.created,
            "pid": record.process,
        }
        if record.exc_info:
            facts["exception"] = repr(record.exc_info[1])
        os.write(self._file, (json.dumps(facts, default=str) + "\n").encode())


def read(path: str) -> list[dict[str, Any]]:
    """Return the records written so far."""
    try:
        with open(path) as lines:
            # A line that is being written may be seen in part: the kernel copies it page by page.
            return [json.loads(line) for line in lines if line.endswith("\n")]
    except FileNotFoundError:
        return []
