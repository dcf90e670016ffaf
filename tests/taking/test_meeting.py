"""Several takers at once, in threads and in processes: no row is handed to two, and none stays with the dead."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_taskclaim import take
from django_taskclaim.exceptions import CommitUndecided
from tests.behaviour.support import DEADLINE, at_once, elsewhere, execute, wait_for
from tests.factories import make
from tests.proxy import swallowed, withheld
from tests.taking.conftest import taken_elsewhere
from tests.taking.models import Letter, Line, Writer
from tests.testapp.models import Child, CompositeKey

pytestmark = pytest.mark.django_db(transaction=True)

needs_row_locks = pytest.mark.skipif(
    not connection.features.has_select_for_update,
    reason="needs has_select_for_update: this database has one writer at a time",
)


def keys_of(rows: Any) -> list[Any]:
    return [row.pk for row in rows]


# In threads


@pytest.mark.parametrize("options", [{}, {"update": {"sent": True}}, {"cascade": True}], ids=str)
def test_no_row_is_handed_to_two(options: dict[str, Any]) -> None:
    """Four that begin together work until nothing is left; each row comes up once."""
    Letter.objects.bulk_create([Letter() for _ in range(60)])

    def drain() -> list[Any]:
        mine: list[Any] = []
        while True:
            with take(Letter.objects.filter(sent=False), 4, **options) as rows:
                mine += keys_of(rows)
            if not rows and not Letter.objects.filter(sent=False).exists():
                return mine

    handed = Counter(key for mine in at_once(drain, drain, drain, drain) for key in mine)
    assert len(handed) == 60
    assert set(handed.values()) == {1}


@needs_row_locks
@pytest.mark.parametrize("options", [{}, {"update": {"text": "sent"}}, {"cascade": True}], ids=str)
def test_others_get_the_next_rows_and_end_without_waiting(
    letters: list[Letter], options: dict[str, Any]
) -> None:
    """On a table as small as this a DELETE that walks it would wait for the rows of the first."""
    queryset = Letter.objects.order_by("id")
    with taken_elsewhere(queryset, 1) as first, take(queryset, 4, **options) as second:
        assert keys_of(first) == keys_of(letters[:1])
        assert keys_of(second) == keys_of(letters[1:5])
        with taken_elsewhere(queryset.reverse(), 6) as third:
            assert third == letters[5:]
    assert Letter.objects.filter(pk__in=keys_of(first)).exists()


@needs_row_locks
def test_rows_of_other_shapes_are_passed_over_as_well(lines: list[Line]) -> None:
    make(CompositeKey, 4)
    make(Child, 4)
    for model, options in [
        (Line, {}),
        (Line, {"update": {"text": "read"}}),
        (CompositeKey, {}),
        (Child, {"cascade": True}),
    ]:
        queryset: Any = model._base_manager.order_by("pk")  # type: ignore[attr-defined]
        with (
            taken_elsewhere(queryset, 1, update={}) as first,
            take(queryset, 1, **options) as second,
        ):
            assert len(first) == len(second) == 1
            assert keys_of(first) != keys_of(second)


@needs_row_locks
def test_a_row_that_was_finished_just_before_its_lock_is_not_handed_over(
    letters: list[Letter],
) -> None:
    """What a join says may change between the look and the lock; then the row is not ours to delete."""
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
        assert keys_of(rows) == [letters[1].pk]
    assert locked
    assert Letter.objects.count() == 5


def test_a_child_refers_to_no_row_that_is_about_to_go(letters: list[Letter]) -> None:
    """Whoever stamps a letter that is being deleted hears of it, instead of the taker at its end."""
    if connection.vendor != "postgresql":
        pytest.skip("needs row locks of several strengths, of which a reference takes the weakest")
    writer = Writer.objects.create(name="Ada")
    with taken_elsewhere(Writer.objects.all(), 1, update={}):
        # Only kept: referring to it is nobody's trouble.
        Letter.objects.filter(pk=letters[0].pk).update(writer=writer)
    Letter.objects.filter(pk=letters[0].pk).update(writer=None)
    with (
        taken_elsewhere(Writer.objects.all(), 1),
        pytest.raises(OperationalError, match="lock timeout"),
    ):
        refer_at_once(letters[0], writer)


def refer_at_once(letter: Letter, writer: Writer) -> None:
    with transaction.atomic():
        execute("SET LOCAL lock_timeout = '100ms'")
        Letter.objects.filter(pk=letter.pk).update(writer=writer)


# In processes


@contextmanager
def taker(env: dict[str, str], limit: int, idle: float) -> "Iterator[subprocess.Popen[str]]":
    """Run a process that takes letters and keeps them until it is told to end its block."""
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


def test_processes_share_no_row_and_the_dead_keep_none(
    letters: list[Letter], process_env: dict[str, str]
) -> None:
    left = 6
    with taker(process_env, 2, 60) as dying:
        assert json.loads(heard(dying)) == keys_of(letters[:2])
        if connection.features.has_select_for_update:
            with taker(process_env, 2, 60) as living:
                assert json.loads(heard(living)) == keys_of(letters[2:4])
                assert tell(living) == "done"
            left = 4
        dying.kill()
        dying.wait(DEADLINE)
    wait_for(lambda: count_of_free() == left)


def count_of_free() -> int:
    with take(Letter.objects.all(), 6, update={}) as rows:
        return len(rows)


@needs_row_locks
def test_a_frozen_process_keeps_its_rows_no_longer_than_it_may_be_silent(
    letters: list[Letter], process_env: dict[str, str]
) -> None:
    # Not less: a busy machine may keep a healthy process from its next query for seconds.
    with taker(process_env, 2, 8) as frozen:
        assert json.loads(heard(frozen)) == keys_of(letters[:2])
        os.kill(frozen.pid, signal.SIGSTOP)
        wait_for(lambda: count_of_free() == 6)
        os.kill(frozen.pid, signal.SIGCONT)
        assert tell(frozen) in {"TaskClaimError", "InterfaceError", "OperationalError"}
    assert Letter.objects.count() == 6


# A COMMIT that is not answered


def test_a_lost_answer_to_a_commit_that_deleted_is_undecided(
    commits: Any, letters: list[Letter]
) -> None:
    with pytest.raises(CommitUndecided) as undecided, take(Letter.objects.all(), 2) as rows:
        commits.arm(swallowed)
    assert undecided.value.undecided == undecided.value.lost == rows
    assert Letter.objects.count() == 4


def test_a_commit_that_did_not_happen_is_told_by_the_rows(
    commits: Any, letters: list[Letter]
) -> None:
    with pytest.raises(OperationalError) as error, take(Letter.objects.all(), 2):
        commits.arm(withheld)
    assert not isinstance(error.value, CommitUndecided)
    assert Letter.objects.count() == 6
    with take(Letter.objects.all(), 6) as rows:
        assert len(rows) == 6


@pytest.mark.parametrize("fate", [swallowed, withheld])
def test_an_update_tells_nothing_of_its_commit(
    commits: Any, letters: list[Letter], fate: Any
) -> None:
    with (
        pytest.raises(CommitUndecided),
        take(Letter.objects.all(), 2, update={"sent": True}),
    ):
        commits.arm(fate)
    assert Letter.objects.filter(sent=True).count() == (2 if fate is swallowed else 0)


@pytest.mark.skipif(
    connection.vendor != "postgresql", reason="needs triggers that wait for the COMMIT"
)
def test_a_commit_that_is_refused_was_answered(letters: list[Letter]) -> None:
    """The server has said that nothing was committed, by an error like those of a server in trouble."""
    execute(
        "CREATE FUNCTION refuses() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE EXCEPTION 'not this one' USING ERRCODE = '54000'; END$$"
    )
    execute(
        f"CREATE CONSTRAINT TRIGGER refuses AFTER UPDATE ON {Letter._meta.db_table} DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION refuses()"
    )
    try:
        with (
            pytest.raises(OperationalError, match="not this one") as error,
            take(Letter.objects.all(), 2, update={"sent": True}),
        ):
            pass
    finally:
        execute(f"DROP TRIGGER refuses ON {Letter._meta.db_table}")
        execute("DROP FUNCTION refuses()")
    assert not isinstance(error.value, CommitUndecided)
    assert not Letter.objects.filter(sent=True).exists()
