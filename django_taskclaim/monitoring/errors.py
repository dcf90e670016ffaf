"""What tries of rows ended with: error class and text, as far as the rows keep them."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from django.db import models
from django.db.models.functions import Substr

from django_taskclaim.columns import (
    ClaimColumns,
    claim_columns,
    is_companion,
    key_text,
    source_link,
)
from django_taskclaim.error_text import one_line
from django_taskclaim.fields import as_utc
from django_taskclaim.formatting import with_source
from django_taskclaim.monitoring.overview import Overview
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.states import Status

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


def last_errors(seen: Overview, most: int) -> list[str]:
    """Return, a line each, what tries of rows ended with that failed or are to be tried again, the latest last.

    Among very many failed rows, and among open ones, those that the claim index has last stand for the latest. The
    line names the row, and the source of a companion.
    """
    columns = claim_columns(seen.model)
    rows: Any = ClaimQuerySet(seen.model, using=seen.alias)
    behind = backwards(columns)
    when = behind if Status.FAILED in seen.progress.estimated else [f"-{columns.claimed_at.name}"]
    found = [
        *tried_rows(rows.failed().order_by(*when), most),
        *tried_rows(rows.open().order_by(*behind), most),
    ]
    return [
        f"{with_source(str(row.key), row.source)}: {one_line(row.error, row.text)}"
        for row in reversed(found)
        if row.error or row.text
    ]


def backwards(columns: ClaimColumns) -> list[str]:
    """Return the order of the claim index from its end on."""
    return [name[1:] if name[0] == "-" else f"-{name}" for name in columns.order]
