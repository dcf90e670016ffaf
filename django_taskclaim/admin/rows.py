"""What a page says of one row: its claim columns by their roles, seen at one moment of the database's clock."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.db import DEFAULT_DB_ALIAS, models
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_taskclaim.columns import claim_columns
from django_taskclaim.control.actions import EXPIRED
from django_taskclaim.fields import OPEN_ENDED, QUARANTINED, as_utc
from django_taskclaim.monitoring.overview import database_time
from django_taskclaim.policy import policy_for
from django_taskclaim.states import WORKER_MARK, Status

#: Open, but not due yet.
WAITING = "waiting"
#: Where an instance keeps the look that it is shown under.
_KEPT = "_taskclaim_look"


#: The words on the pills.
STATES: Mapping[str, Any] = {
    Status.OPEN.value: gettext_lazy("open"),
    WAITING: gettext_lazy("waiting"),
    Status.PROCESSING.value: gettext_lazy("running"),
    EXPIRED: gettext_lazy("expired"),
    Status.COMPLETE.value: gettext_lazy("complete"),
    Status.FAILED.value: gettext_lazy("failed"),
    Status.PAUSED.value: gettext_lazy("paused"),
}


def holder_text(claimed_by: str) -> str:
    """Return ``worker-3 on web-2`` of a worker's ``<name>@<host>[:<pid>]#<random>``; people keep their names."""
    process, mark, _batch = claimed_by.partition(WORKER_MARK)
    name, at, place = process.rpartition("@")
    if not mark or not at:
        return claimed_by
    host, _colon, pid = place.rpartition(":")
    worker = _("process %(pid)s") % {"pid": name} if name.isdigit() else name
    return _("%(worker)s on %(host)s") % {
        "worker": worker,
        "host": host if pid.isdigit() else place,
    }


class Look:
    """One page's look at rows: the clock is read once for all of them, when the first is shown."""

    def __init__(self, alias: str, request: HttpRequest | None = None) -> None:
        self.alias = alias
        #: Who looks; None where nobody knows, and then nobody may do anything.
        self.request = request

    @cached_property
    def now(self) -> datetime:
        return database_time(self.alias)


def look_at(rows: Iterable[models.Model], look: Look) -> None:
    """Show *rows* under one look."""
    for row in rows:
        row.__dict__[_KEPT] = look


def look_of(row: models.Model) -> Look:
    """Return the look that the row is shown under; one of its own where no page has given it one."""
    look = row.__dict__.get(_KEPT)
    if look is None:
        look = Look(row._state.db or DEFAULT_DB_ALIAS)
        look_at([row], look)
    return look


@dataclass(frozen=True, slots=True)
class RowFacts:
    """The claim columns of a row; those that its model does not have are None."""

    now: datetime
    status: str
    holder: str
    expires_at: datetime | None
    iteration: int
    attempts: int | None
    not_before: datetime | None
    last_error: str | None
    error_class: str | None
    max_attempts: int

    @property
    def kind(self) -> str:
        """One of ``Status``, or ``waiting``, or ``expired``."""
        if self.status == Status.OPEN and self.wait is not None:
            return WAITING
        if self.status == Status.PROCESSING and (self.left is None or self.left <= timedelta()):
            return EXPIRED
        return self.status

    @property
    def left(self) -> timedelta | None:
        """How long the lease still lasts, negative once it has ended; None without one."""
        return None if self.expires_at is None else self.expires_at - self.now

    @property
    def wait(self) -> timedelta | None:
        """How long an open row waits until it is due; None where it is."""
        if self.status != Status.OPEN or self.not_before is None:
            return None
        if self.not_before <= self.now or self.crashed:
            return None
        return self.not_before - self.now

    @property
    def open_ended(self) -> bool:
        """Whether the row is a range of keys among which rows may still be committed."""
        return self.status == Status.OPEN and self.not_before == OPEN_ENDED

    @property
    def crashed(self) -> bool:
        """Whether the row is to be claimed alone, because its worker died on its last try."""
        marked = self.not_before is not None and self.not_before >= QUARANTINED
        return self.status == Status.OPEN and marked

    @property
    def is_held(self) -> bool:
        return self.status == Status.PROCESSING


def facts_of(row: models.Model) -> RowFacts:
    """Return what there is to say of the row."""
    columns = claim_columns(type(row))

    def read(role: str) -> Any:
        field = getattr(columns, role)
        value = None if field is None else getattr(row, field.attname)
        return as_utc(value) if isinstance(value, datetime) else value

    return RowFacts(
        now=look_of(row).now,
        status=str(read("status")),
        holder=read("claimed_by") or "",
        expires_at=read("expires_at"),
        iteration=read("iteration"),
        attempts=read("attempts"),
        not_before=read("not_before"),
        last_error=read("last_error"),
        error_class=read("error_class"),
        max_attempts=policy_for(type(row)).max_attempts,
    )
