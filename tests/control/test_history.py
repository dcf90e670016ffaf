"""The history of a row: what it keeps, for the models that are named and no others."""

from typing import Any

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.checks import run_checks
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_taskclaim.admin.forms import CONFIRMED
from django_taskclaim.control.audit import record_action
from django_taskclaim.control.models import ClaimEvent
from django_taskclaim.control.reading import history
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.management.base import acting
from tests.commands import lapsed, run, table_away
from tests.factories import make, make_claimed
from tests.querysets.support import expire
from tests.testapp.models import Child, CompositeKey, Photo, UuidKey

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")


@pytest.fixture(autouse=True)
def kept(settings: Any) -> None:
    labels = ["testapp.photo", "testapp.UuidKey", "testapp.CompositeKey"]
    settings.TASKCLAIM = {"HISTORY": labels}


@pytest.mark.promise(5)
@pytest.mark.parametrize("model", [Photo, UuidKey, CompositeKey])
def test_each_step_of_a_row_is_kept_in_order(model: Any) -> None:
    (row,) = make_claimed(model)
    row.claim.renew()
    row.claim.release()
    (row,) = model.objects.claim_batch(1)
    row.claim.fail("no such picture", retry=False)
    model.objects.reset()
    (row,) = model.objects.claim_batch(1)
    model.objects.all().take_back()
    with pytest.raises(ClaimLost):
        row.claim.complete()
    model.objects.pause_rows()
    model.objects.resume_rows()
    (expired,) = model.objects.claim_batch(1)
    expire(expired)
    (row,) = model.objects.claim_batch(1)
    row.claim.hand_over("user:2")
    (row,) = model.objects.holdings("user:2")
    row.claim.complete()
    found = history(model, row.pk, using="default")
    assert [event.event for event in found] == [
        *("claimed", "released"),
        *("claimed", "failed", "reset"),
        *("claimed", "taken back", "lost", "paused", "resumed"),
        *("claimed", "expired", "claimed", "handed over", "completed"),
    ]
    assert found[3].detail == "no such picture"
    assert found[11].holder == expired.claim.token.holder
    assert [event.iteration for event in found if event.event == "claimed"] == [0, 1, 2, 4, 5]


def test_of_models_that_are_not_named_failures_alone_are_kept(settings: Any) -> None:
    (child,) = make_claimed(Child)
    child.claim.complete()
    settings.TASKCLAIM = {}
    lapsed(Photo, 1)
    assert not ClaimEvent.objects.exists()
    (row,) = make_claimed(UuidKey)
    row.claim.fail(LookupError("no such picture"), retry=False)
    (event,) = history(UuidKey, row.pk, using="default")
    assert (event.event, event.detail) == ("failed", "LookupError: no such picture")


def test_an_act_is_one_step_of_each_row_with_who_and_why(admin_client: Any) -> None:
    photos = make(Photo, 3, status="failed")
    facts = {"action": "claim_reset", "reason": "mended", CONFIRMED: "yes", "index": "0"}
    rows = {ACTION_CHECKBOX_NAME: [photos[0].pk]}
    admin_client.post(reverse("admin:testapp_photo_changelist"), {**facts, **rows})
    with transaction.atomic():
        run("claimreset", "testapp.Photo", "--by", "ada", "--reason", "again")
    record_action(Photo, "flag", rows=1, key=str(photos[2].pk), by="bob", reason="by hand")
    *found, (own, last) = [history(Photo, row.pk, using="default") for row in photos]
    assert (last.event, last.holder, last.detail) == ("flag", "bob", "by hand")
    found.append([own])
    assert [[one.event for one in events] for events in found] == [["reset"]] * 3
    assert [one.holder for (one,) in found] == ["admin", *[acting("ada")] * 2]
    assert [one.detail.split()[-1] for (one,) in found] == ["mended", "again", "again"]


def test_a_batch_costs_one_insert() -> None:
    rows = make_claimed(Photo, 50)
    with CaptureQueriesContext(connection) as sent:
        Photo.objects.complete(rows)
    assert len([one for one in sent if one["sql"].startswith("INSERT")]) == 1
    assert ClaimEvent.objects.filter(event="completed").count() == 50


def test_a_history_that_cannot_be_written_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    make(Photo, 1)
    with table_away(ClaimEvent):
        (photo,) = Photo.objects.claim_batch(1)
        photo.claim.complete()
    assert Photo.objects.progress().complete == 1
    assert "taskclaim" in caplog.text


@pytest.mark.once
@pytest.mark.promise(14)
@pytest.mark.parametrize(
    ("labels", "app", "found"),
    [
        (["testapp.Photo", "testapp.uuidkey"], True, []),
        (["testapp.Foto", "testapp.Ledger", "testapp.photo"], True, ["E041", "E041"]),
        (None, True, ["E001"]),
        (["testapp.Photo"], False, ["E041"]),
    ],
)
def test_a_check_names_what_is_wrong_with_the_setting(
    settings: Any, labels: Any, app: bool, found: list[str]
) -> None:
    settings.TASKCLAIM = {"HISTORY": labels}
    if not app:
        settings.INSTALLED_APPS = [
            name for name in settings.INSTALLED_APPS if name != "django_taskclaim.control"
        ]
    ids = [str(one.id) for one in run_checks()]
    ours = [one.removeprefix("taskclaim.") for one in ids if one.startswith("taskclaim.E")]
    assert ours == found
