"""Run by ``test_clocks`` in a process of its own: what leases do under this process's time zone.

``python -m tests.querysets.clock_probe`` fails with the first promise that is broken.
It works on the database that the environment names and leaves it empty.
"""

# ruff: noqa: E402 - models can be imported only once Django is set up

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import django

django.setup()

from django.conf import settings
from django.db import connection
from django.utils import timezone

from django_taskclaim.completion import Archive
from django_taskclaim.fields import NEVER_WAITED
from django_taskclaim.models import TaskMixin
from django_taskclaim.policy import Policy, policies
from django_taskclaim.switch import pause, resume
from tests.factories import make
from tests.meanwhile import table_made
from tests.querysets.models import Parcel, ParcelArchive
from tests.querysets.support import clock, execute, set_raw, value_of
from tests.testapp.models import Photo

#: How far two clocks of one machine, and slow statements between them, may lie apart.
SLACK = timedelta(minutes=2)
MINUTE = timedelta(minutes=1)

#: The zones of the server's sessions. Django itself sets that of PostgreSQL's; SQLite has neither.
ZONES = ["+00:00", "+05:30"] if connection.vendor == "mysql" else [""]


class Imported(TaskMixin):
    """Its table is made under the settings of this process, and its row by SQL."""

    class Meta:
        app_label = "testapp"


def in_zone(zone: str) -> None:
    """Reconnect with sessions whose zone is *zone*, as a server's own setting would make them."""
    connection.close()
    if settings.USE_TZ:
        connection.settings_dict["TIME_ZONE"] = "Asia/Kolkata"
    if zone:
        connection.settings_dict["OPTIONS"]["init_command"] = f"SET time_zone = '{zone}'"
        assert value_of("SELECT @@session.time_zone") == zone, "the session is not in its zone"


def ahead_of_the_database(row: Any, column: str) -> timedelta:
    """Ask the database itself how far a stored moment lies ahead of its own clock."""
    distance = {
        "postgresql": f"EXTRACT(EPOCH FROM {column} - STATEMENT_TIMESTAMP())",
        "mysql": f"TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), {column}) / 1000000",
        "sqlite": f"(JULIANDAY({column}) - JULIANDAY('now')) * 86400",
    }[connection.vendor]
    found = value_of(f"SELECT {distance} FROM testapp_photo WHERE id = %s", [row.pk])
    return timedelta(seconds=float(found))


def assert_about(found: timedelta, expected: timedelta) -> None:
    assert expected - SLACK < found < expected + timedelta(seconds=1), found


def given(moment: datetime) -> datetime:
    """Return a moment as a project has it: naive in TIME_ZONE without USE_TZ."""
    local = moment.astimezone(timezone.get_default_timezone())
    return local if settings.USE_TZ else local.replace(tzinfo=None)


def in_utc(shown: datetime) -> datetime:
    assert timezone.is_aware(shown) is settings.USE_TZ
    if not settings.USE_TZ:
        shown = shown.replace(tzinfo=timezone.get_default_timezone())
    return shown.astimezone(UTC)


def reread(row: Any) -> Any:
    return Photo.objects.get(pk=row.pk)


def a_lease_is_as_long_as_asked_and_ends_by_the_clock_of_the_database() -> None:
    Photo.objects.create()
    (row,) = Photo.objects.claim_batch(1, lease=600)
    assert_about(ahead_of_the_database(row, "expires_at"), 10 * MINUTE)
    for shown in (row, reread(row)):
        assert abs(in_utc(shown.claimed_at) - datetime.now(UTC)) < SLACK
        assert in_utc(shown.expires_at) - in_utc(shown.claimed_at) == 10 * MINUTE
    row.claim.renew(lease=3600)
    assert_about(ahead_of_the_database(row, "expires_at"), 60 * MINUTE)
    assert Photo.objects.expired().count() == Photo.objects.release_expired() == 0
    set_raw(row, "expires_at", clock("-1 SECOND"))
    assert Photo.objects.expired().count() == Photo.objects.release_expired() == 1
    (row,) = Photo.objects.claim_batch(1)
    row.claim.complete()
    assert abs(in_utc(reread(row).completed_at) - datetime.now(UTC)) < SLACK


def a_row_waits_until_its_moment() -> None:
    now = datetime.now(UTC)
    row = Photo.objects.create(not_before=given(now + 60 * MINUTE))
    assert_about(ahead_of_the_database(row, "not_before"), 60 * MINUTE)
    assert Photo.objects.filter(not_before__gt=given(now + 50 * MINUTE)).exists()
    assert not Photo.objects.filter(not_before__gt=given(now + 70 * MINUTE)).exists()
    assert Photo.objects.claim_batch(1) == []
    Photo.objects.create(not_before=given(now - 5 * MINUTE))
    (past,) = Photo.objects.claim_batch(2)
    past.claim.release(delay=3600)
    assert_about(ahead_of_the_database(past, "not_before"), 60 * MINUTE)
    assert not Photo.objects.due().exists()
    assert Photo.objects.claim_batch(1) == []


def a_row_that_never_waited_shows_the_fixed_past() -> None:
    """Also one that was made by SQL, in a table made under these settings: claims look for that very moment."""
    row = reread(Photo.objects.create())
    assert in_utc(row.not_before) == NEVER_WAITED
    row.save()  # and is not taken for assigned
    with table_made(Imported):
        nothing = "() VALUES ()" if connection.vendor == "mysql" else "DEFAULT VALUES"
        execute(f"INSERT INTO testapp_imported {nothing}")
        (row,) = Imported.objects.filter(not_before=NEVER_WAITED).claim_batch(1)
        assert in_utc(row.not_before) == NEVER_WAITED


def both_hours_of_a_clock_put_back_are_told_apart() -> None:
    """01:30 comes twice when summer time ends: in New York, and on Lord Howe by half an hour."""
    for moment in (
        datetime(2026, 11, 1, 5, 30, tzinfo=UTC),
        datetime(2026, 11, 1, 6, 30, tzinfo=UTC),
        datetime(2026, 4, 4, 14, 45, tzinfo=UTC),
        datetime(2026, 4, 4, 15, 15, tzinfo=UTC),
        datetime(2026, 3, 8, 7, 0, tzinfo=UTC),
        datetime(2026, 10, 3, 15, 30, tzinfo=UTC),
    ):
        row = Photo.objects.create(not_before=given(moment))
        assert in_utc(reread(row).not_before) == moment
        for spelled in (given(moment), reread(row).not_before):
            assert Photo.objects.filter(pk=row.pk, not_before=spelled).exists(), spelled


def a_pause_ends_at_its_moment() -> None:
    Photo.objects.create()
    now = datetime.now(UTC)
    for until, claimed in ((given(now + 60 * MINUTE), 0), (given(now - 5 * MINUTE), 1), (3600, 0)):
        pause(Photo, until=until, using="default")
        assert len(Photo.objects.claim_batch(1)) == claimed, until
        Photo.objects.reset(running=True)
    resume(Photo, using="default")


def a_row_keeps_its_moments_in_the_archive() -> None:
    policies[Parcel] = Policy(completion=Archive(ParcelArchive))
    make(Parcel)
    Parcel.objects.claim_batch(1)[0].claim.complete()
    archived = ParcelArchive.objects.get()
    assert abs(in_utc(archived.completed_at) - datetime.now(UTC)) < SLACK
    archived.delete()


PROMISES = [
    a_lease_is_as_long_as_asked_and_ends_by_the_clock_of_the_database,
    a_row_waits_until_its_moment,
    a_row_that_never_waited_shows_the_fixed_past,
    both_hours_of_a_clock_put_back_are_told_apart,
    a_pause_ends_at_its_moment,
    a_row_keeps_its_moments_in_the_archive,
]


def main() -> None:
    for zone in ZONES:
        in_zone(zone)
        for promise in PROMISES:
            Photo._base_manager.all().delete()
            promise()
    Photo._base_manager.all().delete()
    sys.stdout.write(f"{settings.USE_TZ} {settings.TIME_ZONE}")


if __name__ == "__main__":
    main()
