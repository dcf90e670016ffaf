"""Log records as JSON, one a line, with what they carry in `extra`."""

import json
import logging
import os
from pathlib import Path

ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Handler):
    """Appends each record to a file that several processes may share.

    A line is one `write` to a file opened for appending, so lines of different processes do not
    mix, and a killed process leaves no half line.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record; what JSON does not know is written as its `str()`."""
        try:
            line = json.dumps(self.facts(record), default=str)
            os.write(self._file, line.encode() + b"\n")
        except Exception:
            self.handleError(record)

    def facts(self, record: logging.LogRecord) -> dict[str, object]:
        """The record as a dictionary, its `extra` included."""
        facts: dict[str, object] = {
            name: value for name, value in vars(record).items() if name not in ORDINARY
        }
        facts |= {
            "at": record.created,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            "thread": record.threadName,
        }
        if record.exc_info and record.exc_info[1]:
            facts["exception"] = repr(record.exc_info[1])
        return facts
