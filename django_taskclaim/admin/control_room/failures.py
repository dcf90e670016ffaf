"""Failed rows in groups: the same error class, and the same message but for what differs from row to row."""

import csv
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import Error, connections, models
from django.db.models.functions import Substr
from django.utils.translation import gettext as _

from django_taskclaim import conf
from django_taskclaim.columns import claim_columns, is_companion, key_text, source_link
from django_taskclaim.fields import as_utc
from django_taskclaim.monitoring.overview import backwards
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.states import Status

Rows = models.QuerySet[Any]

#: So many failed rows are looked at for the page.
MOST = 2_000

#: To be read, each part of all failed rows may take so long.
READING_LIMIT = timedelta(seconds=20)

#: Of each message so much is read; what is cut ends with "…".
LENGTH = 300

#: Groups shown, and samples linked of each.
GROUPS, SAMPLES = 12, 3

#: What differs between errors of one kind, the longest first. Each becomes one sign.
_VARIABLE = (
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.I), "…"),
    (re.compile(r"\bhttps?://[^\s'\"<>)]+"), "URL"),
    (re.compile(r"(['\"]).{1,200}?\1"), "'…'"),
    (re.compile(r"\b0x[0-9a-f]+\b|\b(?=[0-9a-f]*\d)[0-9a-f]{12,}\b", re.I), "…"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), lambda number: number[0] if _is_code(number) else "#"),
)

#: Stands for the time of a try that nobody has noted.
_LONG_AGO = datetime.min.replace(tzinfo=UTC)

#: What may stand in the place of these, and so ends what a message has in common with its group.
_SIGNS = re.compile(r"[…#'\"]|URL")

#: What stands before a number that names a kind of error, such as "HTTP", "status code: " or "[Errno ".
_BEFORE_A_CODE = re.compile(
    r"\b(?:https?(?:/[\d.]+)?|status|code|errno|error|exit|exited|response|returned|signal|sqlstate)"
    r"(?:\s+(?:code|error|status|with|is|was))*[\s:=#(\[-]*$",
    re.I,
)
#: What an error may begin with: "404 for https://…", "(1213, 'Deadlock found')".
_FIRST_OF_ALL = re.compile(r"[1-5]\d\d(?!\d)|\(\d+, ?['\"]")


def _is_code(number: re.Match[str]) -> bool:
    """Say whether a number tells errors apart (404 from 503) rather than rows of one error."""
    text = number.string
    before = text[: number.start()]
    if not number[0].isdigit() or len(number[0]) > 5:
        return False
    if before in {"", "("}:
        return bool(_FIRST_OF_ALL.match(text))
    return bool(_BEFORE_A_CODE.search(before[-40:]))


def normalised(text: str) -> str:
    """Return the first line of an error with what differs from row to row taken out; status codes stay."""
    line = text.strip().partition("\n")[0][:LENGTH]
    for pattern, sign in _VARIABLE:
        line = pattern.sub(sign, line)
    return line


def group_id(error: str, message: str) -> str:
    """Return the name of a group in a URL: the same for every row that failed alike."""
    return hashlib.sha256(f"{error}\n{message}".encode("utf-8", "replace")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed row, as much of it as grouping needs."""

    key: Any
    error: str
    text: str
    tried_at: datetime | None
    #: The key of a companion's source, as people read it.
    source: str = ""

    @property
    def name(self) -> str:
        """The key, and that of a companion's source, which is what people look for."""
        if not self.source or self.source == str(self.key):
            return str(self.key)
        return _("%(key)s (source %(source)s)") % {"key": self.key, "source": self.source}

    @property
    def group(self) -> str:
        return group_id(self.error, normalised(self.text))


@dataclass(slots=True)
class Group:
    """Failed rows that failed alike."""

    error: str
    message: str
    hour: int = 0
    day: int = 0
    #: The rows that were found, the latest first.
    failures: list[Failure] = field(default_factory=list)

    @property
    def id(self) -> str:
        """Names the group in a URL."""
        return group_id(self.error, self.message)

    @property
    def kind(self) -> str:
        """The class and the message, as far as there are any: ``ValueError: # is too much``."""
        return ": ".join(filter(None, [self.error, self.message]))

    @property
    def short_error(self) -> str:
        """The class without its module."""
        return self.error.rpartition(".")[2]

    @property
    def all(self) -> int:
        return len(self.failures)

    @property
    def samples(self) -> list[Failure]:
        return self.failures[:SAMPLES]


@dataclass(frozen=True, slots=True)
class Sample:
    """The groups that were found among the rows looked at, the largest first."""

    groups: list[Group]
    looked_at: int
    #: Whether there are more failed rows than were looked at.
    capped: bool


def sample(rows: Rows, now: datetime) -> Sample:
    """Group the failed rows at the end of the claim index, MOST at most, the latest last try first.

    No index knows when rows failed. At the end of the claim index are the rows that waited last and, of rows that
    never waited, the last keys.
    """
    found = list(_failed(rows).order_by(*backwards(claim_columns(rows.model)))[: MOST + 1])
    failures = map(_failure, found[:MOST])
    groups: dict[tuple[str, str], Group] = {}
    for failure in sorted(failures, key=lambda one: one.tried_at or _LONG_AGO, reverse=True):
        kind = failure.error, normalised(failure.text)
        group = groups.setdefault(kind, Group(*kind))
        group.failures.append(failure)
        age = now - (failure.tried_at or _LONG_AGO)
        group.day += age <= timedelta(days=1)
        group.hour += age <= timedelta(hours=1)
    largest = sorted(groups.values(), key=lambda group: -group.all)
    return Sample(largest, min(len(found), MOST), capped=len(found) > MOST)


def failed_rows(rows: Rows, size: int) -> Iterator[list[Failure]]:
    """Yield the failed ones of *rows* in the order of their keys, *size* at a time."""
    left = _failed(rows).order_by("pk")
    while True:
        with server_for(connections[rows.db]).time_limit(READING_LIMIT):
            part = [_failure(row) for row in left[:size]]
        if not part:
            return
        yield part
        left = left.filter(pk__gt=part[-1].key)


def keys_like(rows: Rows, group: Group, size: int) -> Iterator[list[Any]]:
    """Yield the keys of all rows of the group, in their order, in parts of *size* at most."""
    columns = claim_columns(rows.model)
    # The database leaves out most of the others; which are alike only ``normalised`` knows.
    if columns.error_class is not None and group.error:
        rows = rows.filter(**{columns.error_class.name: group.error})
    if columns.last_error is not None and (begins := _SIGNS.split(group.message)[0]):
        rows = rows.filter(**{f"{columns.last_error.name}__contains": begins})
    for part in failed_rows(rows, size):
        yield [failure.key for failure in part if failure.group == group.id]


def _failed(rows: Rows) -> Any:
    columns = claim_columns(rows.model)
    failed = rows.filter(**{columns.status.name: Status.FAILED})
    none = models.Value("")
    error: Any = none if columns.error_class is None else columns.error_class.name
    text = none if columns.last_error is None else Substr(columns.last_error.name, 1, LENGTH + 1)
    link = source_link(rows.model).own if is_companion(rows.model) else ()
    source = [field.attname for field in link]
    return failed.order_by().values_list("pk", columns.claimed_at.name, error, text, *source)


def _failure(row: tuple[Any, ...]) -> Failure:
    key, at, error, text, *source = row
    tried_at = None if at is None else as_utc(at)
    text = text or ""
    shown = text if len(text) <= LENGTH else f"{text[:LENGTH]}…"
    return Failure(key, error or "", shown, tried_at, key_text(source))


# A file for a spreadsheet, sent while it is read


class _Echo:
    """What ``csv.writer`` writes to comes back as the value of the call."""

    def write(self, line: str) -> str:
        return line


def exported(rows: Rows, group: str = "") -> Iterator[str]:
    """Return the failed ones of *rows* as lines of CSV, those of one group or all of them."""
    # Said now: a server may send the lines once the language of the request is no longer that of its thread.
    source = [_("source")] if is_companion(rows.model) else []
    head = [_("key"), *source, _("error"), _("message"), _("last tried at (UTC)")]
    return _csv_lines(rows, group, head, [_("Not complete: the database did not answer in time.")])


def _csv_lines(rows: Rows, group: str, head: list[str], broken_off: list[str]) -> Iterator[str]:
    writer: Any = csv.writer(_Echo())
    # Spreadsheets take a file without this mark for one in the system's own encoding.
    yield "\ufeff" + writer.writerow(head)
    try:
        for part in failed_rows(rows, int(conf.setting("CHUNK_SIZE"))):
            wanted = [failure for failure in part if not group or failure.group == group]
            cells = (_cells(failure, with_source=is_companion(rows.model)) for failure in wanted)
            yield "".join(map(writer.writerow, cells))
    except Error:
        yield writer.writerow(broken_off)


def _cells(failure: Failure, *, with_source: bool) -> list[str]:
    source = [failure.source] if with_source else []
    tried = failure.tried_at.isoformat(" ", "seconds") if failure.tried_at is not None else ""
    texts = (failure.key, *source, failure.error, failure.text)
    return [*(_harmless(str(text)) for text in texts), tried]


#: Where a cell may begin for a spreadsheet with any separator, and what makes a formula there.
_FORMULA = re.compile(r"(^|[;\t\r\n])(?=[=+\-@＝＋－＠])|^(?=[\t\r\n])")


def _harmless(text: str) -> str:
    """Keep a spreadsheet from taking a text, or a part of it, for a formula."""
    return _FORMULA.sub(r"\1'", text)
