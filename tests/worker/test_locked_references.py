"""A lock on what a result refers to holds up that result alone, and costs no lease."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from django_taskclaim.worker.crew import Crew
from tests.behaviour.conftest import rival  # noqa: F401 - a fixture
from tests.behaviour.support import ROW_LOCKS, Rival, execute
from tests.factories import make
from tests.testapp.models import Author, OrderedByForeignKey, Photo
from tests.worker.conftest import wait_until

pytestmark = pytest.mark.skipif(not ROW_LOCKS, reason="no rows are locked one by one")

StartCrew = Callable[..., Crew]

#: Seconds; the lock is held for more than two leases.
LEASE = 8


class Runs:
    """A handler that notes its runs and gives the rows *of* their result."""

    def __init__(self, name: str, results: dict[Any, Any]) -> None:
        self.name, self.results = name, results
        self.keys: list[Any] = []

    def __call__(self, row: Any) -> None:
        self.keys.append(row.pk)
        setattr(row, self.name, self.results.get(row.pk))


def begin(rival: Rival, statement: str, params: Any = ()) -> None:  # noqa: F811
    """Let the other session send *statement* in a transaction that stays open."""
    rival.connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    rival.execute(statement, params)


def wait_for_two_leases(rows: Any, crew: Crew, blocked: int) -> None:
    """Wait until all but *blocked* rows are complete, and two leases more; the others are renewed meanwhile."""
    held, done = (rows.filter(status=one) for one in ("processing", "complete"))
    wait_until(lambda: (held.count(), done.count()) == (blocked, 100 - blocked))
    ends = max(held.values_list("expires_at", flat=True))
    time.sleep(2 * LEASE)
    assert held.count() == len(crew.inflight.undelivered()) == blocked
    assert min(held.values_list("expires_at", flat=True)) > ends


@pytest.mark.timeout(300)
@pytest.mark.parametrize("blocked", [1, pytest.param(100, marks=pytest.mark.long)])
def test_a_locked_reference_holds_up_no_other_result(
    start_crew: StartCrew,
    rival: Rival,  # noqa: F811
    blocked: int,
) -> None:
    """Somebody holds the target of a foreign key for longer than two leases: no row runs twice, none is charged."""
    locked = Author.objects.create(name="locked")
    rows = make(OrderedByForeignKey, 100)
    handler = Runs("author_id", {row.pk: locked.pk for row in rows[:blocked]})
    begin(rival, "SELECT 1 FROM testapp_author WHERE id = %s FOR UPDATE", [locked.pk])
    how = {"lease": LEASE, "batch_size": 100, "update_fields": ["author"]}
    crew = start_crew(OrderedByForeignKey, handler, **how)
    wait_for_two_leases(OrderedByForeignKey.objects, crew, blocked)
    rival.let_go()
    wait_until(crew.has_ended)
    states = OrderedByForeignKey.objects.values_list("status", "attempts", "iteration")
    assert set(states) == {("complete", 0, 0)}
    assert OrderedByForeignKey.objects.filter(author=locked).count() == blocked
    assert sorted(handler.keys) == sorted(row.pk for row in rows)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("end", ["commit", pytest.param("rollback", marks=pytest.mark.long)])
def test_a_unique_value_that_is_about_to_be_taken_holds_up_no_other_result(
    start_crew: StartCrew,
    rival: Rival,  # noqa: F811
    end: str,
) -> None:
    """Once the other transaction ends, the row is complete, or fails because the value is taken."""
    execute("CREATE UNIQUE INDEX only_once ON testapp_photo (width)")
    try:
        (other,) = make(Photo, 1, status="complete")
        rows = make(Photo, 100)
        handler = Runs("width", {rows[0].pk: 7})
        begin(rival, "UPDATE testapp_photo SET width = 7 WHERE id = %s", [other.pk])
        how = {"lease": LEASE, "batch_size": 100, "update_fields": ["width"], "max_attempts": 1}
        crew = start_crew(Photo, handler, **how)
        wait_for_two_leases(Photo.objects.exclude(pk=other.pk), crew, 1)
        getattr(rival.connection, end)()
        wait_until(crew.has_ended)
    finally:
        rival.let_go()
        execute(
            f"DROP INDEX only_once{' ON testapp_photo' if connection.vendor == 'mysql' else ''}"
        )
    wanted = ("complete", 0, 0) if end == "rollback" else ("failed", 1, 0)
    photo = Photo.objects.get(pk=rows[0].pk)
    assert (photo.status, photo.attempts, photo.iteration) == wanted
    rest = Photo.objects.exclude(pk=photo.pk).values_list("status", "attempts", "iteration")
    assert set(rest) == {("complete", 0, 0)}
    assert sorted(handler.keys) == sorted(row.pk for row in rows)
