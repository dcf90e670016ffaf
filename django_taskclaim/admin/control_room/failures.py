"""Failed rows in groups: the same error class, and the same message but for what differs from row to row."""

import csv
import hashlib
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connections
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from django_taskclaim import conf
from django_taskclaim.columns import claim_columns
from django_taskclaim.control.models import OperatorAct
from django_taskclaim.monitoring.errors import LENGTH, TriedRow, latest_failures, tried_rows
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.templatetags.taskclaim import number, short_name

Rows = ClaimQuerySet[Any]

#: So many failed rows are looked at for the page.
MOST = 2_000

#: So many are exported, and to be read these, or each part of all failed rows, may take so long.
EXPORTED, READING_LIMIT = 50_000, timedelta(seconds=20)

#: So many are read at once to find those of a group, for SQLite sorts all failed rows to return the first ones.
READ_AT_ONCE = 10_000

#: A number, in a group of its own where it names a kind of error: "HTTP 404", "[Errno 111]", "(1213, 'Deadlock …')".
_NUMBER = re.compile(
    r"(^[1-5]\d\d(?![.,:]?\d)|^\(\d{1,5}(?=, ?['\"])"
    r"|\b(?:https?(?:/[\d.]+)?|status|code|errno|error|exit|exited|response|returned|signal|sqlstate)"
    r"(?:\s+(?:code|error|status|with|is|was))*[\s:=#(\[-]*\d{1,5}(?![.,:]?\d))"
    r"|\d+(?:[.,:]\d+)*",
    re.I,
)
#: What differs between errors of one kind, the longest first. Each becomes one sign.
_VARIABLE = (
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.I), "…"),
    (re.compile(r"\bhttps?://[^\s'\"<>)]+"), "URL"),
    (re.compile(r"(['\"]).{1,200}?\1"), "'…'"),
    (re.compile(r"\b0x[0-9a-f]+\b|\b(?=[0-9a-f]*\d)[0-9a-f]{12,}\b", re.I), "…"),
    (_NUMBER, lambda number: number[1] or "#"),
)

#: Stands for the time of a try that nobody has noted.
_LONG_AGO = datetime.min.replace(tzinfo=UTC)

#: What may stand in the place of these, and so ends what a message has in common with its group.
_SIGNS = re.compile(r"[…#'\"]|URL")


def normalised(text: str) -> str:
    """Return the first line of an error with what differs from row to row taken out; status codes stay."""
    line = text.strip().partition("\n")[0][:LENGTH]
    for pattern, sign in _VARIABLE:
        line = pattern.sub(sign, line)
    return line


def group_id(error: str, message: str) -> str:
    """Return the name of a group in a URL: the same for every row that failed alike."""
    return hashlib.sha256(f"{error}\n{message}".encode("utf-8", "replace")).hexdigest()[:16]


def group_of(row: TriedRow) -> str:
    """Return the ``group_id`` of a row."""
    return group_id(row.error, normalised(row.text))


@dataclass(slots=True)
class Group:
    """Failed rows that failed alike."""

    error: str
    message: str
    #: How many began their last try in each of the last 24 hours, the present one last.
    hours: list[int] = field(default_factory=lambda: [0] * 24)
    #: The rows that were found, the latest first.
    failures: list[TriedRow] = field(default_factory=list)
    #: Why it is known, and who said so.
    known: OperatorAct | None = None
    #: Whether there are more failed rows than were looked at.
    capped: bool = False

    @property
    def id(self) -> str:
        """Names the group in a URL."""
        return group_id(self.error, self.message)

    @property
    def kind(self) -> str:
        """What people call the group: the class of the error, or how its message begins."""
        return short_name(self.error) or Truncator(self.message).chars(60)

    @property
    def about(self) -> str:
        """How many rows were found, and what they have in common."""
        error = ": ".join(filter(None, [self.error, self.message]))
        return f"{number(len(self.failures))}{'+' if self.capped else ''} × {error}"

    @property
    def day(self) -> int:
        return sum(self.hours)

    @property
    def top(self) -> int:
        return max(self.hours)


@dataclass(frozen=True, slots=True)
class Sample:
    """The groups that were found among the rows looked at, the largest first."""

    groups: list[Group]
    looked_at: int
    #: Whether there are more failed rows than were looked at.
    capped: bool


def sample(rows: Rows, now: datetime) -> Sample:
    """Group the latest failed rows, MOST at most, the latest last try first."""
    found = latest_failures(rows, MOST + 1)
    groups: dict[tuple[str, str], Group] = {}
    for failure in sorted(found[:MOST], key=lambda one: one.tried_at or _LONG_AGO, reverse=True):
        kind = failure.error, normalised(failure.text)
        group = groups.setdefault(kind, Group(*kind, capped=len(found) > MOST))
        group.failures.append(failure)
        ago = (now - (failure.tried_at or _LONG_AGO)) // timedelta(hours=1)
        if ago < len(group.hours):
            group.hours[-1 - max(0, ago)] += 1
    largest = sorted(groups.values(), key=lambda group: -len(group.failures))
    return Sample(largest, min(len(found), MOST), capped=len(found) > MOST)


def keys_like(rows: Rows, group: Group) -> Iterator[list[Any]]:
    """Yield the keys of all rows of the group, in their order, a chunk at a time."""
    columns = claim_columns(rows.model)
    # The database leaves out most of the others; which are alike only ``normalised`` knows.
    if columns.error_class is not None and group.error:
        rows = rows.filter(**{columns.error_class.name: group.error})
    if columns.last_error is not None and (begins := _SIGNS.split(group.message)[0]):
        rows = rows.filter(**{f"{columns.last_error.name}__contains": begins})
    left, size = rows.failed().order_by("pk"), int(conf.setting("CHUNK_SIZE"))
    while True:
        with server_for(connections[rows.db]).bounded(READING_LIMIT):
            part = list(tried_rows(left, READ_AT_ONCE))
        if not part:
            return
        keys = [failure.key for failure in part if group_of(failure) == group.id]
        # An empty chunk, too: its reader looks at the clock.
        for start in range(0, max(1, len(keys)), size):
            yield keys[start : start + size]
        left = left.filter(pk__gt=part[-1].key)


# A file for a spreadsheet


def as_csv(failures: Iterable[TriedRow], *, note: str = "") -> str:
    """Return a line of CSV for each row, below their heads and above the *note*."""
    text = io.StringIO()
    # Spreadsheets take a file without this mark for one in the system's own encoding.
    text.write("\ufeff")
    writer = csv.writer(text)
    writer.writerow([_("key"), _("source"), _("error"), _("message"), _("last tried at (UTC)")])
    for row in failures:
        tried = row.tried_at.isoformat(" ", "seconds") if row.tried_at is not None else ""
        cells = map(_harmless, [str(row.key), row.source, row.error, row.text])
        writer.writerow([*cells, tried])
    if note:
        writer.writerow([note])
    return text.getvalue()


#: Where a cell may begin for a spreadsheet with any separator, and what makes a formula there.
_FORMULA = re.compile(r"(^|[;\t\r\n])(?=[=+\-@＝＋－＠])|^(?=[\t\r\n])")


def _harmless(text: str) -> str:
    """Keep a spreadsheet from taking a text, or a part of it, for a formula."""
    return _FORMULA.sub(r"\1'", text)
