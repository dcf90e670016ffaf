"""An act that gets only part of the way: what was done stays, is recorded and said, and nothing else is."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connection, router
from django.db.models import ProtectedError
from django.test import Client

from django_taskclaim.models import WorkerProcess
from django_taskclaim.querysets import operating
from tests.admin.room import command_url, failed, recorded, said, worker
from tests.admin.test_acts import action, button, retry
from tests.querysets.refusing import SAID, refused
from tests.testapp.models import Photo

pytestmark = [pytest.mark.once, pytest.mark.django_db(databases=["default", "other"])]

Press = Callable[[Client], Any]


@pytest.fixture
def four_failed(settings: Any) -> None:
    """Four failed rows, two of which make a chunk."""
    settings.TASKCLAIM = {"CHUNK_SIZE": 2}
    failed(4)


@pytest.fixture
def second_chunk_raises(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Return what makes the second chunk of a reset raise, and doom the transaction that it runs in."""

    def arrange(error: Exception) -> None:
        usual, calls = operating.run, []

        def run(*given: Any) -> Any:
            calls.append(1)
            if len(calls) == 2:
                if connection.settings_dict["ATOMIC_REQUESTS"] and connection.in_atomic_block:
                    connection.set_rollback(True)
                raise error
            return usual(*given)

        monkeypatch.setattr(operating, "run", run)

    return arrange


@pytest.mark.usefixtures("four_failed")
@pytest.mark.parametrize("press", [retry, button, action])
@pytest.mark.parametrize("error", [InterfaceError("why"), ProtectedError("why", {"each row"})])
def test_what_was_done_before_the_database_refused_is_recorded_and_said(
    boss: Client, second_chunk_raises: Any, press: Press, error: Exception
) -> None:
    """Not each of the protected rows, which may be any number."""
    second_chunk_raises(error)
    answer = press(boss)
    assert Photo.objects.open().count() == 2
    assert said(answer).startswith("2 ")
    assert said(answer).endswith(": why")
    assert [act[1:3] for act in recorded()] == [("reset", 2)]


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
@pytest.mark.usefixtures("four_failed")
@pytest.mark.parametrize(("press", "changed"), [(retry, 2), (button, 2), (action, 0)])
def test_under_atomic_requests_the_answer_says_what_was_committed(
    boss: Client,
    second_chunk_raises: Any,
    monkeypatch: pytest.MonkeyPatch,
    press: Press,
    changed: int,
) -> None:
    """A page that acts commits each chunk; an action is part of the list's own transaction."""
    second_chunk_raises(OperationalError("deadlock detected"))
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
        answer = press(boss)
    assert Photo.objects.open().count() == changed
    assert said(answer).startswith(f"{changed} ")
    assert "deadlock detected" in said(answer)
    assert sum(act[2] for act in recorded()) == changed


@pytest.mark.usefixtures("four_failed")
def test_a_row_that_the_database_refuses_is_left_alone_and_named(boss: Client) -> None:
    with refused(Photo, when=f"OLD.id = {Photo.objects.latest('pk').pk}"):
        answer = button(boss)
    assert said(answer).startswith("3 photos were reset. Left alone: 1 that the database refuses")
    assert SAID in said(answer)


def test_a_command_that_cannot_be_stored_is_said_to_be_refused(boss: Client) -> None:
    worker()
    with refused(WorkerProcess, when="OLD.command = ''"):
        answer = boss.post(command_url("drain"), {"reason": ""})
    assert answer.status_code == 302
    assert SAID in said(answer)


def test_where_routers_keep_the_tables_away_nobody_gives_orders(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "allow_migrate", lambda *args, **hints: False)
    assert boss.get(command_url("drain")).status_code == 404
