"""Several takers at once, in threads and in processes: no row is handed to two, and none stays with the dead."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection

from django_taskclaim import take
from django_taskclaim.exceptions import CommitUnknown
from tests.factories import make
from tests.proxy import swallowed, withheld
from tests.querysets.support import DEADLINE, at_once, elsewhere, keys, wait_for
from tests.taking.conftest import taken_elsewhere
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
    with taken_elsewhere(queryset, 1) as first, take(queryset, 2) as second:
        assert keys(first) == known[:1]
        assert keys(second) == known[1:3]
    assert queryset.filter(pk=known[0]).exists()


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


@contextmanager
def taker(env: dict[str, str], limit: int, idle: float) -> "Iterator[subprocess.Popen[str]]":
    """Run a process that takes letters and keeps them until the test lets it end its block."""
    words = [sys.executable, "-m", "tests.taking.probe", str(limit), str(idle)]
    process = subprocess.Popen(
        words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def heard(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: "subprocess.Popen[str]") -> str:
    """Let the process end its block and return what it says of it."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return str(heard(process))


@pytest.mark.promise(7)
def test_processes_share_no_row_and_the_dead_keep_none(
    letters: list[Letter], process_env: dict[str, str]
) -> None:
    left = 6
    with taker(process_env, 2, 60) as dying:
        assert json.loads(heard(dying)) == keys(letters[:2])
        if connection.features.has_select_for_update:
            with taker(process_env, 2, 60) as living:
                assert json.loads(heard(living)) == keys(letters[2:4])
                assert tell(living) == "done"
            left = 4
        dying.kill()
        dying.wait(DEADLINE)
    wait_for(lambda: count_of_free() == left)


def count_of_free() -> int:
    with take(Letter.objects.all(), 6, delete=False) as rows:
        return len(rows)


@needs_row_locks
@pytest.mark.promise(7)
def test_a_frozen_process_keeps_its_rows_no_longer_than_it_may_be_silent(
    letters: list[Letter], process_env: dict[str, str]
) -> None:
    # Not less: a busy machine may keep a healthy process from its next query for seconds.
    with taker(process_env, 2, 8) as frozen:
        assert json.loads(heard(frozen)) == keys(letters[:2])
        os.kill(frozen.pid, signal.SIGSTOP)
        wait_for(lambda: count_of_free() == 6)
        os.kill(frozen.pid, signal.SIGCONT)
        errors = {"TaskClaimError", "InternalError", "InterfaceError", "OperationalError"}
        assert tell(frozen) in errors
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
