"""Log records as JSON, one a line, with what they carry in `extra`."""

import json
import logging


class JsonFormatter(logging.Formatter):
    """Writes all that a record knows; what JSON does not know as its `str()`."""

    def format(self, record: logging.LogRecord) -> str:
        super().format(record)  # sets the message, and the traceback as text
        return json.dumps(vars(record), default=str)
