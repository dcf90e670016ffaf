"""The file that a liveness probe looks at."""

from pathlib import Path

from django_taskclaim.worker.records import Limited

_limited = Limited()


def touch(path: str | None) -> None:
    """Touch the file, if there is one; a failure is logged, and the file grows old."""
    if path is None:
        return
    try:
        Path(path).touch()
    except OSError as error:
        _limited.log("touching the health file", error)
