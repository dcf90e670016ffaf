"""The field classes behind the claim columns.

Users' migrations name these classes, so this import path and the stored form never change.
"""

# Django's own fields take no type arguments when they run.
# mypy: disable-error-code="type-arg"

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from django.conf import settings
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

from django_taskclaim.states import Status

if TYPE_CHECKING:
    AnyField: TypeAlias = models.Field[Any, Any]
else:
    # Django's fields take no parameters while the program runs.
    AnyField = models.Field

#: ``not_before`` of a row that never had to wait: a fixed past, so that such rows lead in the index.
NEVER_WAITED = datetime(1970, 1, 1, tzinfo=UTC)

#: ``not_before`` of an open-ended range, to which open transactions may still add rows: not due until it is made so. A
#: year that every time zone can show.
OPEN_ENDED = datetime(9000, 1, 1, tzinfo=UTC)

#: The mark of a row that is quarantined because its worker died on its last try: a ``not_before`` behind all others,
#: so that ordinary claims leave the row out by the index. It is claimed alone, see ``release_expired``.
QUARANTINED = OPEN_ENDED + timedelta(days=1)

#: … and of such a row claimed by a worker that has not started it yet: if the claim expires, it has killed nobody.
QUARANTINED_UNSTARTED = QUARANTINED + timedelta(seconds=1)

MARKS = (OPEN_ENDED, QUARANTINED, QUARANTINED_UNSTARTED)


def is_quarantine_mark(moment: datetime | None) -> bool:
    """Say whether a ``not_before`` is the mark of a row whose worker died on its last try."""
    return moment is not None and as_utc(moment) in (QUARANTINED, QUARANTINED_UNSTARTED)


def is_unstarted_mark(moment: datetime | None) -> bool:
    """Say whether a ``not_before`` is the mark of such a row that its holder has not started."""
    return moment is not None and as_utc(moment) == QUARANTINED_UNSTARTED


def before_marks(moment: datetime) -> datetime:
    """Return the ``not_before`` of a row that is to wait until *moment*: it is no mark, however late that is."""
    return OPEN_ENDED - timedelta(days=1) if moment.year >= OPEN_ENDED.year else moment


class PackageField(models.Field):
    """Migrations do not keep how people see such a column: a better word is no change of the table."""

    def deconstruct(self) -> Any:
        name, path, args, kwargs = super().deconstruct()
        display = ("verbose_name", "editable")
        return name, path, args, {key: value for key, value in kwargs.items() if key not in display}


class ClaimColumn(PackageField):
    """Marks a column that the verbs alone write, so it is in no form; ``priority`` is the one that stays the user's."""

    #: Arguments that the field is made with where its maker gives no others.
    usual: ClassVar[Mapping[str, Any]] = {}

    # A pre_save of its own would make update_or_create() write the column; see Django's `update_or_create`.
    pre_save = models.Field.pre_save

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"editable": False, **self.usual, **kwargs})


class StatusField(ClaimColumn, models.CharField):
    """The state of a row, one of ``Status``."""

    usual = {"max_length": 10, "choices": Status.choices}


class Utf8Collation(ClaimColumn):
    """Text that MySQL and MariaDB keep as utf8mb4 and compare byte for byte, with any default of the table.

    Their usual collations find ``user:Bob`` when asked for ``user:bob``, and a utf8mb3 table refuses emoji.
    """

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters = super().db_parameters(connection)
        if connection.vendor == "mysql" and not parameters.get("collation"):
            is_mariadb = getattr(connection, "mysql_is_mariadb", False)
            parameters["collation"] = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_0900_bin"
        return parameters


class HolderField(Utf8Collation, models.CharField):
    """Who holds the claim, compared byte for byte on every database."""

    usual = {"max_length": 200}


class ShortTextField(Utf8Collation, models.CharField):
    """A short text: the dotted name of an error's class, a reason, what was done."""

    usual = {"max_length": 200}


class ErrorTextField(Utf8Collation, models.TextField):
    """What a try ended with, in words."""


class CounterField(ClaimColumn, models.IntegerField):
    """A count. A plain integer: ``Positive…Field`` adds a CHECK that scans the whole table."""


class PriorityField(PackageField, models.IntegerField):
    """The user's own order of claims; higher comes first."""


class RangeColumn(ClaimColumn):
    """Marks a column of a range of keys; like the claim columns it is written by verbs alone."""


class RangeTextField(RangeColumn, models.TextField):
    """A key of the source model as JSON, never compared as text except for being the same; or open transactions."""


class RangeCountField(RangeColumn, models.BigIntegerField):
    """A number of rows of the source model, or of a range."""


class MomentField(ClaimColumn, models.DateTimeField):
    """A moment, stored as UTC on every database, for any ``USE_TZ`` and ``TIME_ZONE``.

    Python sees what Django users expect: aware values under ``USE_TZ``, else naive ones in ``TIME_ZONE``.
    On SQLite the text has three digits of milliseconds, the shape of its own clock, so that text order is time order.
    """

    def get_internal_type(self) -> str:
        # Not "DateTimeField": the backends would attach converters that shift the moment.
        return "MomentField"

    def db_type(self, connection: BaseDatabaseWrapper) -> str:
        kinds = {"postgresql": "timestamp with time zone", "mysql": "datetime(6)"}
        return kinds.get(connection.vendor, "text")

    def get_db_prep_value(
        self, value: object, connection: BaseDatabaseWrapper, prepared: bool = False
    ) -> Any:
        if not prepared:
            value = self.get_prep_value(value)
        if not isinstance(value, datetime):
            return value
        moment = as_utc(value)
        if connection.vendor == "postgresql":
            return moment
        digits = "milliseconds" if connection.vendor == "sqlite" else "microseconds"
        return moment.replace(tzinfo=None).isoformat(" ", digits)

    def get_db_converters(self, connection: BaseDatabaseWrapper) -> list[Any]:
        converters = super().get_db_converters(connection)
        if connection.vendor == "postgresql":
            # Its driver makes the moments that Python shows.
            return converters
        read = moment_reader(connection)
        return [lambda stored, expression, connection: read(stored), *converters]


def moment_reader(
    connection: BaseDatabaseWrapper,
) -> Callable[[datetime | str | None], datetime | None]:
    """Return what turns a moment as this database gives it into what Python shows, by the settings of now."""
    zone = connection.timezone or timezone.get_default_timezone()
    # PostgreSQL's driver gives naive moments as Python shows them.
    stored_in = zone if connection.vendor == "postgresql" else UTC
    is_aware = settings.USE_TZ

    def read(stored: datetime | str | None) -> datetime | None:
        if stored is None:
            return None
        moment = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=stored_in)
        moment = moment.astimezone(zone)
        return moment if is_aware else moment.replace(tzinfo=None)

    return read


def as_utc(value: datetime) -> datetime:
    """Return the moment in UTC; a naive one is meant in ``TIME_ZONE``."""
    if timezone.is_naive(value):
        value = timezone.make_aware(value, timezone.get_default_timezone())
    return value.astimezone(UTC)
