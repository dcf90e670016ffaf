"""Run by ``test_time_zones`` in a process of its own: what leases do under this process's time zone.

``python -m tests.behaviour.clock_probe <zone of the server's session> …`` prints one JSON object: for each zone
named, the failures seen. It works on the database that the environment names and leaves it empty.
"""

# ruff: noqa: E402 - models can be imported only once Django is set up

import json
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import django

django.setup()

from django.conf import settings
from django.db import connection
from django.utils import timezone

from django_taskclaim.fields import NEVER_WAITED
from django_taskclaim.switch import pause, paused_by, resume
from tests.behaviour.support import clock, set_raw
from tests.testapp.models import Photo

#: How far two clocks of one machine, and a slow statement between them, may lie apart.
SLACK = timedelta(seconds=20)


def in_zone(zone: str) -> None:
    """Reconnect with sessions whose zone is *zone*, as a server's or a role's own setting would make them."""
    options = connection.settings_dict["OPTIONS"]
    connection.close()
    if connection.vendor == "postgresql":
        # With the sign of ISO 8601; POSIX's own is the other way round.
        options["options"] = (
            f"-c timezone=<{zone.strip('+-')}>{invert(zone)}" if zone != "UTC" else ""
        )
    elif connection.vendor == "mysql":
        options["init_command"] = f"SET time_zone = '{'+00:00' if zone == 'UTC' else zone}'"
        with connection.cursor() as cursor:
            cursor.execute("SELECT TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(), NOW())")
            assert cursor.fetchone()[0] == minutes(zone), "the session is not in its zone"


def invert(zone: str) -> str:
    return zone.translate(str.maketrans("+-", "-+"))


def minutes(zone: str) -> int:
    if zone == "UTC":
        return 0
    hours, rest = zone[1:].split(":")
    return (int(hours) * 60 + int(rest)) * (-1 if zone[0] == "-" else 1)


def seconds_until(row: Any, column: str) -> float:
    """Ask the database itself how far a stored moment lies ahead of its own clock."""
    distance = {
        "postgresql": f"EXTRACT(EPOCH FROM {column} - STATEMENT_TIMESTAMP())",
        "mysql": f"TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), {column}) / 1000000",
        "sqlite": f"(JULIANDAY({column}) - JULIANDAY('now')) * 86400",
    }[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {distance} FROM testapp_photo WHERE id = %s", [row.pk])
        return float(cursor.fetchone()[0])


def about(seconds: float, expected: float) -> bool:
    """Say whether *seconds* have been *expected* ones a moment ago; SQLite's day numbers are not exact."""
    return expected - SLACK.total_seconds() < seconds < expected + 0.5


def claimed(**options: Any) -> Any:
    Photo.objects.create()
    (row,) = Photo.objects.claim_batch(1, **options)
    return row


def now(ahead: timedelta = timedelta(0)) -> datetime:
    """Return a moment from now as a project has it, naive in TIME_ZONE without USE_TZ.

    A naive one is not to be reckoned with: when summer time ends, five minutes later may be an hour ago.
    """
    moment = datetime.now(UTC) + ahead
    if settings.USE_TZ:
        return moment
    return timezone.make_naive(moment, timezone.get_default_timezone())


def since(shown: datetime) -> timedelta:
    """Return how long ago a moment is that was read from the database."""
    return datetime.now(UTC) - in_utc(shown)


def in_utc(shown: datetime) -> datetime:
    if not settings.USE_TZ:
        # Not made aware by its zone's wall clock alone: of an hour that comes twice, fold tells which.
        shown = shown.replace(tzinfo=timezone.get_default_timezone())
    return shown.astimezone(UTC)


def reread(row: Any) -> Any:
    return Photo.objects.get(pk=row.pk)


# Each function is one promise; what it yields is a failure.


def a_fresh_lease_is_live() -> Iterator[Any]:
    row = claimed(lease=60)
    if not about(seconds_until(row, "expires_at"), 60):
        yield seconds_until(row, "expires_at")
    if Photo.objects.expired().exists() or Photo.objects.release_expired():
        yield "expired at birth"
    row.claim.complete()


def an_ended_lease_is_expired() -> Iterator[Any]:
    row = claimed(lease=60)
    set_raw(row, "expires_at", clock("-1 SECOND"))
    if Photo.objects.expired().count() != 1:
        yield "not seen as expired"
    if Photo.objects.release_expired() != 1:
        yield "not released"


def a_renewal_extends_from_now() -> Iterator[Any]:
    row = claimed(lease=1)
    row.claim.renew(lease=120)
    if not about(seconds_until(row, "expires_at"), 120):
        yield seconds_until(row, "expires_at")


def a_moment_from_python_is_that_moment() -> Iterator[Any]:
    row = Photo.objects.create(not_before=now(timedelta(minutes=5)))
    if not about(seconds_until(row, "not_before"), 300):
        yield seconds_until(row, "not_before")
    if Photo.objects.claim_batch(1):
        yield "claimed before its time"
    wait = -since(reread(row).not_before)
    if abs(wait - timedelta(minutes=5)) > SLACK:
        yield f"read back as in {wait}"
    if Photo.objects.due().exists():
        yield "due before its time"
    if not Photo.objects.filter(not_before__gt=now(timedelta(minutes=4))).exists():
        yield "not found by a moment of Python's"
    if Photo.objects.filter(not_before__gt=now(timedelta(minutes=6))).exists():
        yield "found by a later moment of Python's"


def a_moment_that_has_passed_is_due() -> Iterator[Any]:
    Photo.objects.create(not_before=now(-timedelta(minutes=5)))
    if len(Photo.objects.claim_batch(1)) != 1:
        yield "not claimed"


def a_delay_is_as_long_as_asked() -> Iterator[Any]:
    row = claimed()
    row.claim.release(delay=300)
    if not about(seconds_until(row, "not_before"), 300):
        yield seconds_until(row, "not_before")
    if Photo.objects.claim_batch(1):
        yield "claimed before its time"


def moments_read_back_are_now() -> Iterator[Any]:
    row = claimed(lease=60)
    for shown in (row, reread(row)):
        if abs(since(shown.claimed_at)) > SLACK:
            yield f"claimed_at {shown.claimed_at}, and now it is {now()}"
        if in_utc(shown.expires_at) - in_utc(shown.claimed_at) != timedelta(seconds=60):
            yield f"a lease from {shown.claimed_at} to {shown.expires_at}"
        if timezone.is_aware(shown.claimed_at) is not settings.USE_TZ:
            yield f"USE_TZ is {settings.USE_TZ}, and claimed_at {shown.claimed_at!r}"
    row.claim.complete()
    if abs(since(reread(row).completed_at)) > SLACK:
        yield f"completed_at {reread(row).completed_at}"


def a_row_that_never_waited_shows_the_fixed_past() -> Iterator[Any]:
    row = reread(Photo.objects.create())
    expected = NEVER_WAITED
    if not settings.USE_TZ:
        expected = timezone.make_naive(expected, timezone.get_default_timezone())
    if row.not_before != expected:
        yield row.not_before
    row.save()  # and is not taken for assigned


def both_hours_of_a_clock_put_back_are_told_apart() -> Iterator[Any]:
    """01:30 comes twice when summer time ends: in New York, and on Lord Howe by half an hour."""
    for moment in (
        datetime(2026, 11, 1, 5, 30, tzinfo=UTC),
        datetime(2026, 11, 1, 6, 30, tzinfo=UTC),
        datetime(2026, 4, 4, 14, 45, tzinfo=UTC),
        datetime(2026, 4, 4, 15, 15, tzinfo=UTC),
        datetime(2026, 3, 8, 7, 0, tzinfo=UTC),
        datetime(2026, 10, 3, 15, 30, tzinfo=UTC),
    ):
        local = timezone.localtime(moment, timezone.get_default_timezone())
        given = local if settings.USE_TZ else local.replace(tzinfo=None)
        row = Photo.objects.create(not_before=given)
        shown = reread(row).not_before
        if (shown.astimezone(UTC) if settings.USE_TZ else shown, shown.fold) != (
            moment if settings.USE_TZ else given,
            shown.fold if settings.USE_TZ else given.fold,
        ):
            yield f"{given!r} read back as {shown!r}"
        if not Photo.objects.filter(pk=row.pk, not_before=given).exists():
            yield f"{given!r} is not found again"
        if Photo.objects.filter(pk=row.pk, not_before=reread(row).not_before).count() != 1:
            yield f"{shown!r} is not found again"
        if not stored_as(row, moment):
            yield f"{given!r} is not stored as {moment}"


def stored_as(row: Any, moment: datetime) -> bool:
    """Ask the database itself whether it has stored this moment, in UTC."""
    literal = moment.strftime("%Y-%m-%d %H:%M:%S")
    condition = {
        "postgresql": f"not_before = TIMESTAMPTZ '{literal}+00'",
        "mysql": f"not_before = '{literal}'",
        "sqlite": f"not_before = '{literal}.000'",
    }[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT COUNT(*) FROM testapp_photo WHERE id = %s AND {condition}", [row.pk]
        )
        return bool(cursor.fetchone()[0])


def a_pause_ends_at_its_moment() -> Iterator[Any]:
    Photo.objects.create()
    for until, paused in (
        (now(timedelta(minutes=5)), True),
        (now(-timedelta(minutes=5)), False),
        (300, True),
    ):
        pause(Photo, until=until, using="default")
        if (paused_by(Photo) is not None) is not paused:
            yield f"until {until!r}: {paused_by(Photo)}"
        if bool(Photo.objects.claim_batch(1)) is paused:
            yield f"until {until!r}: a claim flowed or did not"
        Photo.objects.reset(running=True)
    resume(Photo, using="default")


PROMISES: list[Callable[[], Iterator[Any]]] = [
    a_fresh_lease_is_live,
    an_ended_lease_is_expired,
    a_renewal_extends_from_now,
    a_moment_from_python_is_that_moment,
    a_moment_that_has_passed_is_due,
    a_delay_is_as_long_as_asked,
    moments_read_back_are_now,
    a_row_that_never_waited_shows_the_fixed_past,
    both_hours_of_a_clock_put_back_are_told_apart,
    a_pause_ends_at_its_moment,
]


def failures() -> list[str]:
    seen = []
    for promise in PROMISES:
        Photo._base_manager.all().delete()
        seen += [f"{promise.__name__}: {failure}" for failure in promise()]
    Photo._base_manager.all().delete()
    return seen


def main(zones: list[str]) -> None:
    answers = {}
    for zone in zones:
        in_zone(zone)
        answers[zone] = failures()
    facts = {"USE_TZ": settings.USE_TZ, "TIME_ZONE": settings.TIME_ZONE, "failures": answers}
    sys.stdout.write(json.dumps(facts))


if __name__ == "__main__":
    main(sys.argv[1:])
