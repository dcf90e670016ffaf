"""What a throttle is inside a process: a reason and a moment at which it ends by itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hold:
    """Why claims of one model wait, and until when by ``tokens.clock()``; asked again, it may end before."""

    reason: str
    until: float
    #: Whether rows that were claimed but not started had better go back.
    gives_back: bool = False
