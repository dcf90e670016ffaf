"""How long the machine stood still: time that it took from the workers, and that they are not to be blamed for."""

import threading
import time
from typing import Self

TICK = 0.05
#: A sleep that lasts longer than it was meant to by less than this is none of the machine's.
USUAL = 0.25


class Stalls:
    """Counts, for the length of a block, by how much a thread that only sleeps has overslept."""

    def __init__(self) -> None:
        #: In seconds.
        self.total = 0.0
        self._told = 0.0
        self._over = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()

    def since_last_asked(self) -> float:
        before, self._told = self._told, self.total
        return self._told - before

    def _watch(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            time.sleep(TICK)
            overslept = time.monotonic() - began - TICK
            if overslept > USUAL:
                self.total += overslept
