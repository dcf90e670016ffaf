"""Waiting for what other threads, processes and sessions do."""

import time
from collections.abc import Callable
from typing import Any

import pytest


def looked_for(condition: Callable[[], Any], seconds: float, every: float = 0.05) -> Any:
    """Return what *condition* gives once it is true, or what it gave when *seconds* were over."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(every)
    return found


def wait_until(
    condition: Callable[[], Any], seconds: float = 120.0, what: str = "", every: float = 0.05
) -> Any:
    """Return what *condition* gives once it is true; fail after *seconds*."""
    if found := looked_for(condition, seconds, every):
        return found
    pytest.fail(f"not within {seconds} s: {what or condition}")
