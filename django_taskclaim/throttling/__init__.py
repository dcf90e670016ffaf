"""Automatic stops, with a reason, that end by themselves: health checks and the circuit breaker.

A throttle is no pause: a person's pause is stored and holds until a person ends it, a throttle lasts as long as its
cause. It stops new claims of one process. What that process has claimed already is worked on. Only the circuit breaker
has rows given back that would fail.
"""

from django_taskclaim.throttling.health import ReplicaLag, Sql

__all__ = ["ReplicaLag", "Sql"]
