"""The audit from the commands: who turned a switch or put rows back from a shell is on the control page, too."""

import getpass
import io
import socket
import sys
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core.management import CommandError

from django_taskclaim.control.models import OperatorAct
from django_taskclaim.control.reading import acts
from tests.test_commands import lapsed, run
from tests.testapp.models import Photo, UuidKey

pytestmark = pytest.mark.django_db(databases="__all__")


def told(using: str = "default") -> list[tuple[str, str, int, str]]:
    found = OperatorAct.objects.using(using).order_by("id")
    return [(act.model, act.act, act.rows, act.reason) for act in found]


def test_pause_and_resume_are_recorded_where_the_switch_is_turned() -> None:
    run("claimpause", "testapp.Photo", "--reason", "deploy", "--until", "2h")
    run("claimresume", "testapp.Photo", "--reason", "deployed")
    wanted = [
        ("testapp.photo", "pause", 0, "deploy for 2 h"),
        ("testapp.photo", "resume", 0, "deployed"),
    ]
    assert told() == told("other") == wanted
    first, _ = OperatorAct.objects.order_by("id")
    assert first.by == f"{getpass.getuser()}@{socket.gethostname()}"


def test_all_of_one_database() -> None:
    run("claimpause", "--all", "--by", "ada", "--database", "other")
    run("claimresume", "--all", "--by", "bob", "--database", "other")
    assert told() == []
    assert [act.by for act in acts(Photo, using="other")] == ["bob", "ada"]
    assert told("other") == [("*", "pause", 0, ""), ("*", "resume", 0, "")]


def test_who_is_named_by_a_login_has_it_among_the_admins_recent_acts() -> None:
    ada = User.objects.create_user("ada")
    run("claimpause", "testapp.Photo", "--by", "ada", "--reason", "deploy")
    run("claimresume", "testapp.Photo", "--by", "nobody of that name")
    (entry,) = LogEntry.objects.all()
    assert (entry.user_id, entry.change_message) == (ada.pk, "Pause: deploy")


def test_a_refused_command_is_no_act() -> None:
    with pytest.raises(CommandError):
        run("claimpause")
    assert told() == []


def test_expired_rows_put_back_in_a_terminal_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    lapsed(Photo, 3)
    lapsed(UuidKey, 1)
    run("release_expired", "testapp.Photo", "testapp.UuidKey")
    assert sorted(told()) == [
        ("testapp.photo", "release expired", 3, ""),
        ("testapp.uuidkey", "release expired", 1, ""),
    ]
    assert acts(Photo, using="default")[0].by == f"{getpass.getuser()}@{socket.gethostname()}"
    run("release_expired", "testapp.Photo", "testapp.UuidKey")
    assert len(told()) == 2


@pytest.mark.parametrize("stdin", ["no terminal", None])
def test_cron_leaves_no_record_of_what_it_puts_back(
    monkeypatch: pytest.MonkeyPatch, stdin: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO() if stdin else None)
    lapsed(Photo)
    assert "put back 1 expired row" in run("release_expired", "testapp.Photo")
    assert told() == []


def test_who_puts_expired_rows_back_by_name_has_it_among_the_admins_recent_acts() -> None:
    ada = User.objects.create_user("ada")
    lapsed(Photo, 2)
    run("release_expired", "testapp.Photo", "--by", "ada", "--reason", "web-3 is gone")
    assert told() == [("testapp.photo", "release expired", 2, "web-3 is gone")]
    (entry,) = LogEntry.objects.all()
    assert (entry.user_id, entry.change_message) == (
        ada.pk,
        "Release expired, 2 rows: web-3 is gone",
    )


def test_a_reason_alone_makes_it_somebodys_act() -> None:
    lapsed(Photo)
    run("release_expired", "testapp.Photo", "--reason", "web-3 is gone")
    (act,) = acts(Photo, using="default")
    assert (act.by.endswith(f"@{socket.gethostname()}"), act.reason) == (True, "web-3 is gone")
