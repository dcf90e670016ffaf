"""The five states of a row and the token that names one claim of it."""

from typing import NamedTuple, Self

from django.db import models
from django.utils.translation import gettext_lazy as _


class Status(models.TextChoices):
    """What a row is doing; the values are stored as written and frozen."""

    OPEN = "open", _("open")
    PROCESSING = "processing", _("processing")
    COMPLETE = "complete", _("complete")
    FAILED = "failed", _("failed")
    PAUSED = "paused", _("paused")


#: Worker ids are ``<worker>@<host>#<random>``; a holder named by the caller has no such mark.
WORKER_MARK = "#"


class Token(NamedTuple):
    """With the row's key it identifies one claim of that row for ever; its ``str()`` travels in a form."""

    holder: str
    iteration: int

    def __str__(self) -> str:
        return f"{self.iteration}:{self.holder}"

    @classmethod
    def parse(cls, value: "str | tuple[str, int]") -> Self:
        """Return the token that *value* spells; ValueError where it spells none, whatever a form sent."""
        holder: object
        iteration: object
        if isinstance(value, str):
            iteration, _colon, holder = value.partition(":")
        elif isinstance(value, (tuple, list)) and len(value) == 2:
            holder, iteration = value
        else:
            holder = iteration = ""
        count = str(iteration)
        # More digits than any database's integer has would be an error of the driver's.
        if (
            not isinstance(holder, str)
            or not _is_holder(holder)
            or not count.isdecimal()
            or len(count) > 10
        ):
            raise ValueError(f"{value!r} is no claim token; expected '<iteration>:<holder>'.")
        return cls(holder, int(count))


def _is_holder(name: str) -> bool:
    return 0 < len(name) <= 200 and "\x00" not in name
