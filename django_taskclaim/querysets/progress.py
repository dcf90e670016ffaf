"""How far a table has got."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """How many rows are in each state, counted in one statement."""

    open: int = 0
    processing: int = 0
    complete: int = 0
    failed: int = 0
    paused: int = 0

    @property
    def total(self) -> int:
        return self.open + self.processing + self.complete + self.failed + self.paused

    @property
    def finished(self) -> int:
        """Rows that no worker will touch again unless an operator resets them."""
        return self.complete + self.failed

    @property
    def fraction(self) -> float:
        """The finished part of all rows, from 0.0 to 1.0; 1.0 for an empty table."""
        return self.finished / self.total if self.total else 1.0
