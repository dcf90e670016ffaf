"""The five states of a row and the token that names one claim of it."""

import re
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


#: How rows of any other status are counted.
UNKNOWN = "unknown"

#: Worker ids are ``<worker>@<host>#<random>``; a holder named by the caller has no such mark.
WORKER_MARK = "#"


#: More digits than any database's integer has would be an error of the driver's.
_TOKEN = re.compile("(?P<iteration>[0-9]{1,10}):(?P<holder>[^\x00]{1,200})")


class Token(NamedTuple):
    """With the row's key it identifies one claim of that row for ever; its ``str()`` travels in a form."""

    holder: str
    iteration: int

    def __str__(self) -> str:
        return f"{self.iteration}:{self.holder}"

    @classmethod
    def parse(cls, value: "str | tuple[str, int]") -> Self:
        """Return the token that *value* spells; ValueError where it spells none, for any text of a form."""
        text: object = value
        if isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], str):
            text = f"{value[1]}:{value[0]}"
        found = _TOKEN.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ValueError(f"{value!r} is no claim token; expected '<iteration>:<holder>'.")
        return cls(found["holder"], int(found["iteration"]))
