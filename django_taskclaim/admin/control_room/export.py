"""Failed rows as a file for a spreadsheet, sent while it is read."""

import csv
import re
from collections.abc import Iterator
from typing import Any

from django.db import Error
from django.utils.translation import gettext as _

from django_taskclaim import conf
from django_taskclaim.admin.control_room.failures import Failure, Rows, failed_rows
from django_taskclaim.links import is_companion


class _Echo:
    """What ``csv.writer`` writes to comes back as the value of the call."""

    def write(self, line: str) -> str:
        return line


def exported(rows: Rows, group: str = "") -> Iterator[str]:
    """Return the failed ones of *rows* as lines of CSV, those of one group or all of them."""
    # Said now: a server may send the lines once the language of the request is no longer that of its thread.
    source = [_("source")] if is_companion(rows.model) else []
    head = [_("key"), *source, _("error"), _("message"), _("last tried at (UTC)")]
    return _lines(rows, group, head, [_("Not complete: the database did not answer in time.")])


def _lines(rows: Rows, group: str, head: list[str], broken_off: list[str]) -> Iterator[str]:
    writer: Any = csv.writer(_Echo())
    # Spreadsheets take a file without this mark for one in the system's own encoding.
    yield "\ufeff" + writer.writerow(head)
    try:
        for part in failed_rows(rows, int(conf.setting("CHUNK_SIZE"))):
            wanted = [failure for failure in part if not group or failure.group == group]
            yield "".join(
                writer.writerow(_cells(failure, with_source=is_companion(rows.model)))
                for failure in wanted
            )
    except Error:
        yield writer.writerow(broken_off)


def _cells(failure: Failure, *, with_source: bool) -> list[str]:
    source = [failure.source] if with_source else []
    tried = failure.tried_at.isoformat(" ", "seconds") if failure.tried_at is not None else ""
    told = (failure.key, *source, failure.error, failure.text)
    return [*(_harmless(str(cell)) for cell in told), tried]


#: Where a cell may begin for a spreadsheet, whatever it takes for a separator, and what makes a formula there.
_FORMULA = re.compile(r"(^|[;\t\r\n])(?=[=+\-@＝＋－＠])|^(?=[\t\r\n])")


def _harmless(text: str) -> str:
    """Keep a spreadsheet from taking a text, or a part of it, for a formula."""
    return _FORMULA.sub(r"\1'", text)
