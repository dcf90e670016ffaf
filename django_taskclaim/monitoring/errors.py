"""What tries of rows ended with: error class and text, as far as the rows keep them."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from django.db import models
from django.db.models.functions import Substr

from django_taskclaim.columns import claim_columns, is_companion, key_text, source_link
from django_taskclaim.fields import as_utc

#: Of each text so much is read; what is cut ends with "…".
LENGTH = 300


class TriedRow(NamedTuple):
    """One row, with what its last try ended with."""

    key: Any
    error: str
    text: str
    #: When that try began; None where nobody has noted it.
    tried_at: datetime | None
    #: The key of a companion's source, as people read it.
    source: str


def tried_rows(rows: Any, most: int) -> Iterator[TriedRow]:
    """Yield the first *most* of these rows."""
    columns, none = claim_columns(rows.model), models.Value("")
    error: Any = none if columns.error_class is None else columns.error_class.name
    text = none if columns.last_error is None else Substr(columns.last_error.name, 1, LENGTH + 1)
    link = source_link(rows.model).own if is_companion(rows.model) else ()
    source = [field.attname for field in link]
    found = rows.values_list("pk", error, text, columns.claimed_at.name, *source)
    for key, name, said, at, *of in found[:most]:
        shown = said if len(said or "") <= LENGTH else f"{said[:LENGTH]}…"
        yield TriedRow(key, name or "", shown or "", at and as_utc(at), key_text(of))


def latest_failures(rows: Any, most: int) -> list[TriedRow]:
    """Return the failed ones among *rows* at the end of the claim index.

    No index knows when rows failed. At the end of the claim index are the rows that waited last and, of rows that
    never waited, the last keys.
    """
    from_the_end = rows.failed().order_by(*claim_columns(rows.model).order).reverse()
    return list(tried_rows(from_the_end, most))
