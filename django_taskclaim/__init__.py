"""Turn the rows of any Django model into a crash-safe work queue.

Importing this package imports no models, so it is safe in ``settings.py`` and before the apps are ready.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_taskclaim.handlers import handler as handler
    from django_taskclaim.leases import named_lease as named_lease
    from django_taskclaim.taking import take as take

__version__ = "0.1.0"
__all__ = ["__version__", "handler", "named_lease", "take"]

#: Where each public name is found.
_MODULES = {"handler": "handlers", "named_lease": "leases", "take": "taking"}


def __getattr__(name: str) -> object:
    """Load a public name on first use, because its module needs Django to be configured."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
