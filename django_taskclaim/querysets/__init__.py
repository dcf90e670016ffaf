"""The verbs: what users call on a manager or queryset. How each is carried out stands in the modules beside.

``claiming`` takes rows, ``writes`` ends claims, ``renewing`` extends them, ``operating`` acts on many rows at once; the
SQL is in ``django_taskclaim.db``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from django_taskclaim.querysets.manager import ClaimManager, ClaimQuerySet

if TYPE_CHECKING:
    from django_taskclaim.querysets import cancelled as cancelled
    from django_taskclaim.querysets import claiming as claiming
    from django_taskclaim.querysets import completing as completing
    from django_taskclaim.querysets import failing as failing
    from django_taskclaim.querysets import holding as holding
    from django_taskclaim.querysets import limits as limits
    from django_taskclaim.querysets import losses as losses
    from django_taskclaim.querysets import operating as operating
    from django_taskclaim.querysets import passing as passing
    from django_taskclaim.querysets import pruning as pruning
    from django_taskclaim.querysets import removing as removing
    from django_taskclaim.querysets import renewing as renewing
    from django_taskclaim.querysets import results as results
    from django_taskclaim.querysets import scope as scope
    from django_taskclaim.querysets import unreadable as unreadable
    from django_taskclaim.querysets import waking as waking
    from django_taskclaim.querysets import why_empty as why_empty
    from django_taskclaim.querysets import writes as writes
    from django_taskclaim.querysets.progress import Progress
else:
    #: What only those load who call a verb. They say ``querysets.writes.lock_claim(…)``, so that a verb that is called
    #: again and again finds its module as an attribute here.
    _LATE = frozenset(
        {
            "cancelled",
            "claiming",
            "completing",
            "failing",
            "holding",
            "limits",
            "losses",
            "operating",
            "passing",
            "pruning",
            "removing",
            "renewing",
            "results",
            "scope",
            "unreadable",
            "waking",
            "why_empty",
            "writes",
        }
    )
    #: Where each public name is found that not every project needs.
    _MODULES = {
        "Progress": "progress",
    }

    def __getattr__(name: str) -> Any:
        if name in _LATE:
            return import_module(f"{__name__}.{name}")
        if name in _MODULES:
            return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["ClaimManager", "ClaimQuerySet", "Progress"]
