"""The mixins to inherit from, and the tables of this app.

``ClaimMixin`` is the least; ``TaskMixin`` adds what a worker makes good use of. The ``Prefixed…`` forms are for tables
whose own ``status`` or ``priority`` is taken. ``SourceMixin`` makes a model the companion of a table that may not be
altered.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

if apps.apps_ready and not apps.is_installed("django_taskclaim"):
    raise ImproperlyConfigured(
        "Add 'django_taskclaim' to INSTALLED_APPS, then run manage.py migrate."
    )

from django_taskclaim.models.tables import (
    Control,
    FleetLimit,
    NamedLease,
    Switch,
    Throttle,
    WorkerProcess,
)

if TYPE_CHECKING:
    from django_taskclaim.models.mixins import (
        ClaimMixin,
        CompletedAtMixin,
        PrefixedClaimMixin,
        PrefixedTaskMixin,
        PriorityMixin,
        RetryMixin,
        TaskMixin,
    )
    from django_taskclaim.models.ranges import RangeMixin
    from django_taskclaim.models.sources import SourceKey, SourceMixin
else:
    #: Where the mixins are found: loaded by the models that inherit from them.
    _MODULES = {
        "ClaimMixin": "mixins",
        "CompletedAtMixin": "mixins",
        "PrefixedClaimMixin": "mixins",
        "PrefixedTaskMixin": "mixins",
        "PriorityMixin": "mixins",
        "RangeMixin": "ranges",
        "RetryMixin": "mixins",
        "SourceKey": "sources",
        "SourceMixin": "sources",
        "TaskMixin": "mixins",
    }

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ClaimMixin",
    "CompletedAtMixin",
    "Control",
    "FleetLimit",
    "NamedLease",
    "PrefixedClaimMixin",
    "PrefixedTaskMixin",
    "PriorityMixin",
    "RangeMixin",
    "RetryMixin",
    "SourceKey",
    "SourceMixin",
    "Switch",
    "TaskMixin",
    "Throttle",
    "WorkerProcess",
]
