"""What a person does from the control room: each changes something, is recorded, and says what it did."""

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.core import signing
from django.db import Error, connections, models
from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_taskclaim import conf
from django_taskclaim.admin.control_room.failures import Failure, failed_rows
from django_taskclaim.admin.sweeping import FORBIDDEN, MAX_AGE, MEANWHILE, Sieve, Tally
from django_taskclaim.claim import clock
from django_taskclaim.control.acts import record_act
from django_taskclaim.formatting import format_duration
from django_taskclaim.links import is_companion
from django_taskclaim.monitoring.server import server_for
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.querysets.operating import written_before
from django_taskclaim.switch import (
    SwitchError,
    claimable_models,
    pause,
    pause_all,
    places_of,
    resume,
    resume_all,
)

Rows = models.QuerySet[Any]

#: Seconds after which "retry all" says how far it got, before a proxy would give the request up.
PATIENCE = 20.0

#: To be read, each part of an export or of a retry may take so long.
READING_LIMIT = timedelta(seconds=20)


def who(request: HttpRequest) -> str:
    """Return the name that goes into the record, the same as that of an act on the list."""
    return str(request.user)


def turn(
    request: HttpRequest,
    model: type[models.Model] | None,
    *,
    off: bool,
    reason: str,
    until: float | None = None,
) -> None:
    """Pause or resume *model*, or with None all models, on every database that holds it.

    It is recorded where it was done, also when another database could not be reached, which is a SwitchError.
    """
    done = places_of(None, claimable_models() if model is None else [model])
    failed: SwitchError | None = None
    try:
        _turn(model, off=off, reason=reason, by=who(request), until=until)
    except SwitchError as error:
        done, failed = error.done, error
    if done:
        facts: dict[str, Any] = {"by": who(request), "user": request.user, "using": done}
        facts["reason"] = reason_of_pause(reason, timedelta(seconds=until) if until else None)
        record_act(model, "pause" if off else "resume", **facts)
    if failed is not None:
        raise failed


def reason_of_pause(reason: str, lasts: timedelta | None) -> str:
    """Return what is recorded of a pause, in the language of whoever made it: the reason, and for how long."""
    if not lasts:
        return reason
    return f"{reason} {_('for %(time)s') % {'time': format_duration(lasts)}}".strip()


def _turn(
    model: type[models.Model] | None, *, off: bool, reason: str, by: str, until: float | None
) -> None:
    if off and model is not None:
        pause(model, reason=reason, by=by, until=until)
    elif off:
        pause_all(reason=reason, by=by, until=until)
    elif model is not None:
        resume(model)
    else:
        resume_all()


@dataclass(slots=True)
class Retrying:
    """How far a retry of a group has got; ``after`` is the key of the last row looked at."""

    tally: Tally = field(default_factory=Tally)
    after: Any = None
    #: The class of the group's errors, as soon as one was met. Not their text, which may be of rows that whoever reads
    #: the record may not see.
    kind: str = ""
    #: Whether the whole group was gone through, or as much of it as was asked for.
    through: bool = False

    def reason(self, group: str, why: str) -> str:
        """Return what goes into the record: which group, then what the operator said; the column takes 500 signs."""
        which = _("%(error)s, group %(group)s") if self.kind else _("group %(group)s")
        which %= {"error": self.kind, "group": group}
        return " – ".join(part for part in (which[: max(0, 497 - len(why))], why) if part)


def retry(
    rows: Rows,
    group: str,
    so_far: Retrying,
    *,
    most: int | None = None,
    sieve: Sieve | None = None,
) -> None:
    """Go on resetting the failed ones of *rows* that belong to the group, up to *most* of them, or for PATIENCE.

    What *sieve* keeps back is left alone. Each chunk is counted in *so_far* once it is done. What takes too long to be
    read is an OperationalError; nothing that another request could not go on with is lost.
    """
    ends, tally = clock() + PATIENCE, so_far.tally
    rest = rows if so_far.after is None else rows.filter(pk__gt=so_far.after)
    for part in _limited(rest):
        alike = [failure for failure in part if failure.group == group]
        so_far.kind = so_far.kind or next((failure.error for failure in alike), "")
        keys = _allowed([failure.key for failure in alike], tally, sieve)
        _reset(rows, keys if most is None else keys[: most - tally.changed], tally)
        so_far.after = part[-1].key
        if most is not None and tally.changed >= most:
            break
        if clock() > ends:
            return
    so_far.through = True


def _allowed(keys: list[Any], tally: Tally, sieve: Sieve | None) -> list[Any]:
    if sieve is None or not keys:
        return keys
    allowed = sieve(keys)
    tally.left[FORBIDDEN] += sum(key not in allowed for key in keys)
    return [key for key in keys if key in allowed]


def _reset(rows: Rows, keys: list[Any], tally: Tally) -> None:
    if not keys:
        return
    verbs: ClaimQuerySet[Any] = ClaimQuerySet(rows.model, using=rows.db)
    try:
        done = verbs.filter(pk__in=keys).reset()
    except Exception as error:
        tally.changed += written_before(error)
        raise
    tally.changed += done
    tally.left[MEANWHILE] += len(keys) - done


def resumption(so_far: Retrying, salt: str) -> str:
    """Return how far a retry got as text that an address may carry to the next request; see ``salt_of``."""
    after = so_far.after
    key = json.dumps([str(part) for part in after]) if isinstance(after, tuple) else str(after)
    return signing.dumps(key, salt=salt)


def resumed(text: str, model: type[models.Model], salt: str) -> Retrying:
    """Return the retry that *text* goes on with; from the start where it is empty, too old, or not ours."""
    try:
        key = signing.loads(text, salt=salt, max_age=MAX_AGE)
    except signing.BadSignature:
        return Retrying()
    after = model._meta.pk.to_python(key)
    return Retrying(after=tuple(after) if isinstance(after, list) else after)


class Echo:
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
    writer: Any = csv.writer(Echo())
    # Spreadsheets take a file without this mark for one in the system's own encoding.
    yield "\ufeff" + writer.writerow(head)
    try:
        for part in _limited(rows):
            wanted = [failure for failure in part if not group or failure.group == group]
            yield "".join(
                writer.writerow(_cells(failure, with_source=is_companion(rows.model)))
                for failure in wanted
            )
    except Error:
        yield writer.writerow(broken_off)


def _limited(rows: Rows) -> Iterator[list[Failure]]:
    parts = failed_rows(rows, int(conf.setting("CHUNK_SIZE")))
    while True:
        with server_for(connections[rows.db]).time_limit(READING_LIMIT):
            part = next(parts, None)
        if part is None:
            return
        yield part


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
