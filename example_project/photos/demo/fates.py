"""What happens to whoever asks for a URL: most get a picture, a stated share get trouble."""

import random
from dataclasses import dataclass
from enum import Enum


class Fate(Enum):
    """What the server does with one URL, with the share of the URLs that meet it."""

    GONE = ("404 for ever", 0.02)
    CLOSED = ("503 with Retry-After until some seconds after the first request", 0.02)
    FLAKY = ("503 to the first one or two requests", 0.02)
    SLOW = ("the picture, slowly", 0.02)
    FINE = ("the picture", 0.92)

    def __init__(self, meaning: str, share: float) -> None:
        self.meaning = meaning
        self.share = share


@dataclass(frozen=True, slots=True)
class Fates:
    """The fate of every URL number, settled by the seed."""

    seed: int

    def of(self, number: int) -> Fate:
        """What becomes of requests for picture `number`."""
        draw = self._chance(number).random()
        for fate in Fate:
            draw -= fate.share
            if draw < 0:
                return fate
        return Fate.FINE

    def delay(self, number: int) -> float:
        """Seconds until the answer: 0.01 to 0.07, as if from another continent; slow ones 0.5 to 2."""
        bounds = (0.5, 2.0) if self.of(number) is Fate.SLOW else (0.01, 0.07)
        return self._chance(number, "delay").uniform(*bounds)

    def closing(self, number: int) -> float:
        """Seconds that a closed URL stays closed after the first request: 2 to 6."""
        return self._chance(number, "closing").uniform(2.0, 6.0)

    def refusals(self, number: int) -> int:
        """How many requests a flaky URL turns away: one or two."""
        return self._chance(number, "refusals").randint(1, 2)

    def _chance(self, number: int, what: str = "fate") -> random.Random:
        return random.Random(f"{self.seed}/{number}/{what}")
