"""Put first on PYTHONPATH, this makes Python's clocks wrong by ``TASKCLAIM_CHAOS_SHIFT`` seconds.

Wall clocks only, as an administrator or a broken battery would: those that nobody can set (monotonic, boot time) go on.
"""

import datetime
import os
import time

SHIFT = float(os.environ.get("TASKCLAIM_CHAOS_SHIFT", "0"))

_time, _time_ns, _clock_gettime = time.time, time.time_ns, time.clock_gettime
_real = datetime.datetime


class _AnyDatetime(type):
    """Lets moments that C code has made pass for ours."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _real)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _real)


class _Shifted(_real, metaclass=_AnyDatetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return _real.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> datetime.datetime:
        return cls.now(datetime.UTC).replace(tzinfo=None)


if SHIFT:
    real_time = time.CLOCK_REALTIME
    time.time = lambda: _time() + SHIFT
    time.time_ns = lambda: _time_ns() + int(SHIFT * 1e9)
    time.clock_gettime = lambda n: _clock_gettime(n) + (SHIFT if n == real_time else 0.0)
    _Shifted.__name__ = _Shifted.__qualname__ = "datetime"
    datetime.datetime = _Shifted  # type: ignore[misc]
