"""Workers that throttle themselves."""

from tests.worker.conftest import start_worker, work

__all__ = ["start_worker", "work"]
