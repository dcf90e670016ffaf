"""Several takers at once, in threads and in processes: no row is handed to two, and none stays with the dead."""

import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection

from django_taskclaim import take
from django_taskclaim.exceptions import CommitUnknown
from tests.factories import make
from tests.processes import Partner
from tests.proxy import swallowed, withheld
from tests.querysets.support import DEADLINE, at_once, elsewhere, keys, wait_for
from tests.taking.models import Letter, Writer
from tests.testapp.models import CompositeKey

pytestmark = pytest.mark.django_db(transaction=True)

needs_row_locks = pytest.mark.skipif(
    not connection.features.has_select_for_update,
    reason="needs has_select_for_update: this database has one writer at a time",
)


# In threads


@pytest.mark.promise(1)
@pytest.mark.parametrize("delete", [True, False])
def test_no_row_is_handed_to_two(delete: bool) -> None:
    """Four that begin together work until nothing is left."""
    Letter.objects.bulk_create([Letter() for _ in range(40)])

    def drain() -> list[Any]:
        mine: list[Any] = []
        while True:
            with take(Letter.objects.filter(sent=False), 4, delete=delete) as rows:
                mine += keys(rows)
                if not delete:
                    Letter.objects.filter(pk__in=keys(rows)).update(sent=True)
            if not rows and not Letter.objects.filter(sent=False).exists():
                return mine

    handed = [key for mine in at_once(drain, drain, drain, drain) for key in mine]
    assert len(handed) == len(set(handed)) == 40


@needs_row_locks
@pytest.mark.parametrize("model", [Letter, CompositeKey])
def test_others_get_the_next_rows_and_end_without_waiting(model: Any) -> None:
    """On a table as small as this a DELETE that scans it would wait for the rows of the first."""
    make(model, 6)
    queryset = model.objects.order_by("pk")
    known = keys(queryset)

    def take_two() -> list[Any]:
        with take(queryset, 2) as rows:
            return keys(rows)

    with take(queryset, 1) as first:
        assert elsewhere(take_two).result(DEADLINE) == known[1:3]
        assert keys(first) == known[:1]
    assert keys(queryset.all()) == known[3:]


@needs_row_locks
def test_a_row_that_was_finished_just_before_its_lock_is_not_handed_over(
    letters: list[Letter],
) -> None:
    """What a join says may change between the look and the lock."""
    ada, bob = Writer.objects.create(name="Ada"), Writer.objects.create(name="Bob")
    Letter.objects.update(writer=ada)
    Letter.objects.filter(pk=letters[0].pk).update(writer=bob)
    locked: list[str] = []

    def rename_bob(send: Any, sql: str, *args: Any) -> Any:
        answer = send(sql, *args)
        if "SKIP LOCKED" in sql and not locked:
            locked.append(sql)
            elsewhere(lambda: Writer.objects.filter(pk=bob.pk).update(name="Rob")).result(DEADLINE)
        return answer

    with (
        connection.execute_wrapper(rename_bob),
        take(Letter.objects.filter(writer__name__in=["Ada", "Bob"]), 2) as rows,
    ):
        assert keys(rows) == [letters[1].pk]
    assert locked
    assert Letter.objects.count() == 5


# In processes


Taker = Callable[[int, int], Partner]


@pytest.fixture
def taker(process_env: dict[str, str]) -> Taker:
    """Return what runs a process that takes letters and keeps them until the test lets it end its block."""
    return partial(Partner, process_env, "tests.taking.probe")


@pytest.mark.promise(7)
def test_processes_share_no_row_and_the_dead_keep_none(letters: list[Letter], taker: Taker) -> None:
    left = 6
    with taker(2, 60) as dying:
        assert dying.heard() == keys(letters[:2])
        if connection.features.has_select_for_update:
            with taker(2, 60) as living:
                assert living.heard() == keys(letters[2:4])
                living.tell()
                assert living.heard() == "done"
            left = 4
        dying.process.kill()
        dying.process.wait(DEADLINE)
    wait_for(lambda: count_of_free() == left)


def count_of_free() -> int:
    with take(Letter.objects.all(), 6, delete=False) as rows:
        return len(rows)


@needs_row_locks
@pytest.mark.promise(7)
def test_a_frozen_process_keeps_its_rows_no_longer_than_it_may_be_silent(
    letters: list[Letter], taker: Taker
) -> None:
    # Not less: a busy machine may keep a healthy process from its next query for seconds.
    with taker(2, 8) as frozen:
        assert frozen.heard() == keys(letters[:2])
        frozen.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: count_of_free() == 6)
        frozen.process.send_signal(signal.SIGCONT)
        frozen.tell()
        errors = {"TaskClaimError", "InternalError", "InterfaceError", "OperationalError"}
        assert frozen.heard() in errors
    assert Letter.objects.count() == 6


# A COMMIT that is not answered


@pytest.mark.promise(5)
@pytest.mark.parametrize(
    ("delete", "fate"), [(True, swallowed), (False, swallowed), (False, withheld)]
)
def test_a_lost_answer_to_a_commit_is_undecided(
    commits: Any, letters: list[Letter], delete: bool, fate: Any
) -> None:
    def send(rows: list[Letter]) -> None:
        Letter.objects.filter(pk__in=keys(rows)).update(sent=True)
        commits.arm(fate)

    with (
        pytest.raises(CommitUnknown) as undecided,
        take(Letter.objects.filter(sent=False), 2, delete=delete) as rows,
    ):
        send(rows)
    assert undecided.value.undecided == undecided.value.lost == rows
    assert Letter.objects.filter(sent=False).count() == (4 if fate is swallowed else 6)
