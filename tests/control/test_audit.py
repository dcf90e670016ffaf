"""The audit: every act of an operator leaves a record of who, what and why, and a failing record undoes nothing."""

import logging
import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import ImproperlyConfigured
from django.urls import reverse

from django_taskclaim.control.audit import record_action, send_command
from django_taskclaim.control.models import OperatorAct
from django_taskclaim.control.reading import acts
from django_taskclaim.management.base import acting
from django_taskclaim.switch import paused_by
from tests.admin.room import SILENT, worker
from tests.commands import nobody_answers, run, table_away
from tests.factories import make
from tests.testapp.models import Photo, PhotoProxy

pytestmark = pytest.mark.django_db(databases="__all__")


def recorded(using: str = "default") -> list[tuple[Any, ...]]:
    found = OperatorAct.objects.using(using).order_by("id")
    return [(act.model, act.act, act.rows, act.by, act.reason) for act in found]


@pytest.mark.once
def test_a_pause_is_recorded_on_the_databases_that_it_names() -> None:
    run("claimpause", "--all", "--by", "ada", "--until", "2h", "--database", "other")
    assert recorded() == []
    assert recorded("other") == [("*", "pause", 0, acting("ada"), "for 2 h")]
    # The account of the operating system is named beside the name that was typed.
    (act,) = acts(Photo, using="other")
    assert re.fullmatch(r"ada \(\S+@\S+\)", act.by)
    run("claimresume", "--all")
    assert len(recorded()) == 1
    assert len(recorded("other")) == 2


@pytest.mark.once
def test_an_act_is_logged_once_with_its_facts(caplog: pytest.LogCaptureFixture) -> None:
    """The newest are read first, up to a limit; a text that is too long or odd is stored all the same."""
    reason = "\0 \ud800 " + "x" * 900
    for rows in (2, 3):
        record_action(Photo, "reset", rows=rows, by="ada" * 100, reason=reason, key="k" * 999)
    newest, before = acts(Photo, using="default", limit=2)
    assert (newest.rows, before.rows) == (3, 2)
    assert (len(newest.by), len(newest.reason)) == (200, 500)
    assert newest.reason.startswith("\\x00 \\ud800 xxx")
    caplog.set_level(logging.INFO, "django_taskclaim.control")
    record_action(Photo, "fail", rows=1, by="ada", reason="spam", key="7")
    (record,) = [one for one in caplog.records if one.name == "django_taskclaim.control"]
    assert "ada" in record.getMessage()
    facts: Any = record
    assert (facts.event, facts.act, facts.rows, facts.key) == ("act", "fail", 1, "7")


@pytest.mark.once
def test_the_admins_recent_actions_name_the_act_and_link_to_its_row(client: Any) -> None:
    """The entry of a proxy is its own, so its history page finds it."""
    (photo,) = make(Photo, 1)
    user = User.objects.create_superuser("ada")
    record_action(PhotoProxy, "reset", rows=1, reason="again", key=str(photo.pk), by=user)
    entry = LogEntry.objects.get()
    types = ContentType.objects
    assert entry.content_type == types.get_for_model(PhotoProxy, for_concrete_model=False)
    assert entry.get_change_message() == "Reset: again"
    record_action(None, "pause", by=user)
    record_action(Photo, "reset", rows=1204, by=user)
    record_action(Photo, "reset", rows=1, key=str(photo.pk), by=user)
    assert LogEntry.objects.earliest("pk").get_admin_url() is None
    client.force_login(user)
    page = client.get(reverse("admin:index")).content.decode()
    assert "1,204 rows of testapp.photo: reset" in page
    assert "all models: claiming paused" in page
    assert f'href="{reverse("admin:testapp_photo_change", args=[photo.pk])}"' in page


# DDL commits on MySQL and MariaDB, so a test's own transaction would leave its rows behind.
@pytest.mark.django_db(transaction=True, databases="__all__")
def test_an_act_whose_record_fails_is_done_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    with table_away(OperatorAct):
        run("claimpause", "testapp.Photo")
        assert paused_by(Photo) is not None
    with nobody_answers():
        record_action(Photo, "reset", rows=3, by=User(pk=1))
    # The act of the command, and both records of the user's.
    assert caplog.text.count("could not be stored") == 3


@pytest.mark.once
def test_a_command_that_nobody_can_obey_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    known = worker(SILENT, silent=True)
    for name, command, why in (
        (SILENT, "drain", "Rows of one that is silent come back"),
        (SILENT, "explode", "'explode'; it knows drain, stop"),
        ("nobody", "stop", "No living worker is listed as 'nobody'"),
    ):
        with pytest.raises(ValueError, match=why):
            send_command(name, command, by="ada", using="default")
    known.refresh_from_db()
    assert known.command == ""
    monkeypatch.setattr("django_taskclaim.control.audit.is_on", lambda using: False)
    with pytest.raises(ImproperlyConfigured, match="its tables on the database 'default'"):
        send_command(SILENT, "stop", by="ada", using="default")
