"""The audit: every operator's act leaves a record, and a record that fails undoes no act."""

import logging
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse

from django_taskclaim.control.acts import record_act
from django_taskclaim.control.models import OperatorAct
from django_taskclaim.control.reading import acts
from tests.factories import make
from tests.testapp.models import Photo, PhotoProxy, UuidKey

pytestmark = pytest.mark.django_db(databases="__all__")


def test_an_act_tells_who_what_how_many_and_why() -> None:
    record_act(Photo, "reset", rows=3, by="ada", reason="the server is back", using="default")
    (act,) = acts(Photo, using="default")
    assert (act.model, act.act, act.rows, act.by) == ("testapp.photo", "reset", 3, "ada")
    assert (act.reason, act.key) == ("the server is back", "")
    assert act.at is not None


def ours(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """Return the records of the audit; a thread of an earlier test may have something to say as well."""
    return [record for record in caplog.records if record.name == "django_taskclaim.control"]


def test_one_record_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_taskclaim.control")
    record_act(Photo, "fail", rows=1, by="ada", reason="spam", key="7")
    (record,) = ours(caplog)
    assert record.getMessage() == "Fail by ada, 1 row of testapp.photo 7: spam"
    assert (record.event, record.act, record.rows, record.key) == ("act", "fail", 1, "7")


def test_a_user_gets_one_log_entry() -> None:
    user = User.objects.create_user("ada")
    (photo,) = make(Photo, 1)
    record_act(PhotoProxy, "reset", rows=1, by="ada", reason="again", user=user, key=str(photo.pk))
    (entry,) = LogEntry.objects.all()
    assert entry.user == user
    # As the admin does it: the proxy's own, so that its history page finds it.
    assert entry.content_type == ContentType.objects.get_for_model(
        PhotoProxy, for_concrete_model=False
    )
    assert entry.object_id == str(photo.pk)
    assert entry.get_change_message() == "Reset, 1 row: again"
    assert [act.model for act in acts(Photo, using="default")] == ["testapp.photo"]


@pytest.mark.parametrize(
    ("facts", "shown", "message"),
    [
        ({"act": "reset", "rows": 1204}, "1,204 photos: reset", "Reset, 1,204 rows"),
        ({"act": "reset", "rows": 1, "key": "{key}"}, "photo {key}: reset", "Reset, 1 row"),
        ({"act": "pause", "reason": "deploy"}, "photos: pause", "Pause: deploy"),
        (
            {"act": "worker order", "rows": 2, "worker": "w@web-1:7", "reason": "release"},
            "w@web-1:7: worker order",
            "Worker order, 2 rows: release",
        ),
        ({"act": "pause", "model": None}, "all models: pause", "Pause"),
    ],
)
def test_the_admins_recent_actions_tell_what_was_done_and_lead_to_rows_alone(
    client: Client, facts: dict[str, Any], shown: str, message: str
) -> None:
    (photo,) = make(Photo, 1)
    user = User.objects.create_superuser("ada")
    given = {"model": Photo, **facts, **({"key": str(photo.pk)} if "key" in facts else {})}
    record_act(given.pop("model"), given.pop("act"), by="ada", user=user, **given)
    client.force_login(user)
    text = client.get(reverse("admin:index")).content.decode()
    assert shown.format(key=photo.pk) in text
    entry = LogEntry.objects.get()
    assert entry.get_change_message() == message
    link = entry.get_admin_url()
    assert (link is None) == ("key" not in facts)
    if link is not None:
        assert f'href="{link}"' in text
        assert client.get(link).status_code == 200


def test_what_is_done_to_no_rows_is_logged_without_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "django_taskclaim.control")
    record_act(Photo, "pause", by="ada", reason="deploy")
    record_act(Photo, "worker order", by="ada", worker="w@web-1:7", reason="drain")
    assert [record.getMessage() for record in ours(caplog)] == [
        "Pause by ada, testapp.photo: deploy",
        "Worker order by ada, testapp.photo w@web-1:7: drain",
    ]


def test_what_concerns_all_models_is_an_act_on_each() -> None:
    record_act(None, "pause", by="ada", using=["default", "other"])
    assert [act.model for act in acts(Photo, using="default")] == ["*"]
    assert [act.model for act in acts(UuidKey, using="other")] == ["*"]


def test_the_newest_come_first_and_not_too_many() -> None:
    for number in range(5):
        record_act(Photo, "reset", rows=number, by="ada")
    assert [act.rows for act in acts(Photo, using="default", limit=3)] == [4, 3, 2]


def test_a_long_or_odd_text_is_stored_all_the_same() -> None:
    record_act(
        Photo, "reset", rows=1, by="ada" * 100, reason="\0 \ud800 " + "x" * 900, key="k" * 999
    )
    (act,) = acts(Photo, using="default")
    assert len(act.by), len(act.reason) == (200, 500)
    assert act.reason.startswith("\\0 \\ud800 xxx")


# DDL commits on MySQL and MariaDB, so a test's own transaction would leave its rows behind.
@pytest.mark.django_db(transaction=True, databases="__all__")
def test_a_record_that_fails_leaves_the_caller_its_transaction(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE taskclaim_operatoract RENAME TO elsewhere")
    try:
        with transaction.atomic():
            (photo,) = make(Photo, 1)
            record_act(Photo, "reset", rows=1, by="ada")
            assert Photo.objects.filter(pk=photo.pk).exists()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO taskclaim_operatoract")
    assert "could not be stored" in caplog.text
    assert not OperatorAct.objects.exists()
