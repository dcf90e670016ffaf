"""What is stored for a model while its workers run, in place of the handler's and the command line's.

Set by the service thread, read by the claimer.
"""

from datetime import timedelta
from typing import Any, NamedTuple


class Override(NamedTuple):
    """What one model's claims follow; None leaves it to the handler and the command line."""

    batch_size: int | None = None
    #: How long a claim lasts unless it is renewed.
    lease: timedelta | None = None


class Overrides:
    """The overrides of all models of one process."""

    def __init__(self) -> None:
        #: False until somebody has read the first ones: until then nothing is claimed.
        self.known = True
        self._by_model: dict[Any, Override] = {}

    def set(self, model: Any, override: Override) -> None:
        """Let the next claims of *model* follow *override*."""
        self._by_model[model] = override

    def of(self, model: Any) -> Override:
        """Return what the next claim of *model* follows."""
        return self._by_model.get(model, Override())
