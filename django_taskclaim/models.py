"""The mixins to inherit from, and the tables of this app.

``ClaimMixin`` is the least; ``TaskMixin`` adds what a worker makes good use of. The ``Prefixed…`` forms are for tables
whose own ``status`` or ``priority`` is taken. ``SourceMixin`` makes a model the companion of a table that may not be
altered.
"""

from django_taskclaim.companions import SourceKey, SourceMixin
from django_taskclaim.mixins import (
    ClaimBase,
    ClaimMixin,
    CompletedAtMixin,
    PrefixedClaimMixin,
    PrefixedTaskMixin,
    PriorityMixin,
    RetryMixin,
    TaskMixin,
)
from django_taskclaim.ranges import RangeMixin
from django_taskclaim.tables import Control, NamedLease, RateLevel, Switch, WorkerProcess

__all__ = [
    "ClaimBase",
    "ClaimMixin",
    "CompletedAtMixin",
    "Control",
    "NamedLease",
    "PrefixedClaimMixin",
    "PrefixedTaskMixin",
    "PriorityMixin",
    "RangeMixin",
    "RateLevel",
    "RetryMixin",
    "SourceKey",
    "SourceMixin",
    "Switch",
    "TaskMixin",
    "WorkerProcess",
]
