"""What the acts of the control room do, and what is recorded and told of them."""

import re
from collections.abc import Callable, Iterator
from datetime import time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from django_taskclaim.admin.control_room import asking
from django_taskclaim.control.models import LiveSettings, OperatorAct, WorkerOrder
from django_taskclaim.control.orders import change_settings
from django_taskclaim.switch import pause_all, paused_by
from tests.admin.room import (
    CONFIGURE,
    OPERATE,
    VIEW,
    failed_jobs,
    group_of,
    overview,
    somebody,
    text_of,
    url,
    worker,
)
from tests.factories import make
from tests.testapp.models import CompositeKey, Job

pytestmark = pytest.mark.django_db(databases=["default", "other"])


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    asking.forget()
    yield
    asking.forget()


@pytest.fixture
def login() -> Callable[..., Client]:
    return somebody


def test_pause_and_resume_from_the_page_are_recorded(login: Any) -> None:
    client = login(*OPERATE)
    client.post(url("switch"), {"turn": "off", "reason": "deploy", "until": "900"})
    switch = paused_by(Job)
    assert switch is not None
    assert (switch.by, switch.reason) == ("u0", "deploy")
    assert switch.until is not None
    client.post(url("switch"), {"turn": "on"})
    assert paused_by(Job) is None
    assert list(OperatorAct.objects.order_by("pk").values_list("act", "by", "reason")) == [
        ("pause", "u0", "deploy for 15 min"),
        ("resume", "u0", ""),
    ]
    text = text_of(client.get(url()))
    assert "u0 resumed claiming" in text
    assert "u0 paused claiming “deploy for 15 min”" in text


def test_pausing_everything_asks_first_and_is_shown_on_every_page(login: Any) -> None:
    client = login(*OPERATE)
    assert "Pause claiming of all models" in text_of(client.get(overview("pause")))
    assert paused_by(Job) is None
    client.post(overview("pause"), {"reason": "fire", "until": ""})
    switch = paused_by(Job)
    assert switch is not None
    assert switch.scope == "*"
    assert "All models are paused, not only this one." in text_of(client.get(url()))
    client.post(overview("resume"), {"reason": ""})
    assert paused_by(Job) is None


def test_resuming_one_model_leaves_the_pause_of_all(login: Any) -> None:
    pause_all()
    login(*OPERATE).post(url("switch"), {"turn": "on"})
    assert paused_by(Job) is not None


@pytest.mark.parametrize("what", ["drain", "stop", "release"])
def test_an_order_is_asked_about_and_given(login: Any, what: str) -> None:
    known, client = worker(), login(*OPERATE)
    address = f"{url('orders')}?order={what}&worker={known.name}"
    assert known.name in text_of(client.get(address))
    client.post(address, {"reason": "old version"})
    assert WorkerOrder.objects.get().order == what
    assert WorkerOrder.objects.get().by == "u0"
    assert "told to" in text_of(client.get(url()))


def test_a_worker_of_another_model_is_not_this_pages_to_order(login: Any) -> None:
    known = worker(labels="testapp.Photo")
    address = f"{url('orders')}?order=stop&worker={known.name}"
    assert login(*OPERATE).post(address, {"reason": ""}).status_code == 403


def test_ten_of_a_group_are_retried_first_and_then_all(login: Any) -> None:
    failed_jobs(12, "job 7 has no width")
    failed_jobs(2, "the disk is full")
    client = login(*OPERATE)
    group = group_of(client)
    client.post(url("first", group=group))
    assert Job.objects.open().count() == 10
    client.post(url("retry", group=group), {"reason": "mended"})
    assert Job.objects.open().count() == 12
    assert set(Job.objects.failed().values_list("last_error", flat=True)) == {"the disk is full"}
    latest = OperatorAct.objects.latest("pk")
    assert (latest.act, latest.rows, latest.by, latest.reason) == (
        "reset",
        2,
        "u0",
        f"group {group} – mended",
    )


def test_rows_of_a_composite_key_are_retried_too() -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    make(CompositeKey, 3)
    for row in CompositeKey.objects.claim_batch(3, durable=False):
        row.claim.fail("no", retry=False)
    page = client.get(url(model="testapp_compositekey")).content.decode()
    found = re.search(r'<tr data-key="([0-9a-f]{16})"', page)
    assert found is not None
    client.post(url("retry", model="testapp_compositekey", group=found[1]), {"reason": ""})
    assert CompositeKey.objects.open().count() == 3


def test_the_export_is_csv_that_no_spreadsheet_takes_for_a_formula(login: Any) -> None:
    (row,) = failed_jobs(1, "=HYPERLINK(1)")
    answer = login(*VIEW).get(url("export"))
    body = b"".join(answer.streaming_content).decode("utf-8-sig")
    assert answer["Content-Type"].startswith("text/csv")
    lines = body.splitlines()
    assert lines[0] == "key,error,message,last tried at (UTC)"
    assert lines[1].startswith(f"{row.pk},")
    assert ",'=HYPERLINK(1)," in lines[1]


def test_settings_are_stored_recorded_and_shown(login: Any) -> None:
    client = login(*CONFIGURE)
    client.post(url("settings"), {"batch_size": "7", "rate_limit": "2.5", "reason": "gently"})
    stored = LiveSettings.objects.get()
    assert (stored.batch_size, stored.rate_limit, stored.changed_by) == (7, 2.5, "u0")
    page = client.get(url())
    assert 'value="7"' in page.content.decode()
    assert "Last changed by u0" in text_of(page)
    assert "gently" in text_of(page)


def sent(page: Any, **typed: str) -> dict[str, str]:
    """Return what a browser sends of the settings form, hidden inputs among it, after *typed* was typed."""
    (form,) = re.findall(r'id="tc-settings-form".*?</form>', page.content.decode(), re.S)
    inputs = [
        dict(re.findall(r'([\w-]+)="([^"]*)"', one)) for one in re.findall("<input.*?>", form)
    ]
    return {one["name"]: one.get("value", "") for one in inputs} | typed


def test_settings_from_an_old_page_undo_nobody_elses(login: Any) -> None:
    client = login(*CONFIGURE)
    night = {"lease": 60, "window_from": time(22, 0, 30), "window_to": time(6), "batch_size": 9}
    change_settings(Job, night, by="Ada", using="default")
    page = client.get(url())
    change_settings(Job, {"lease": 90, "rate_limit": 2.5}, by="Grace", using="default")

    client.post(url("settings"), sent(page, concurrency="4", batch_size=""))
    stored = LiveSettings.objects.get()
    assert (stored.lease, stored.rate_limit) == (90, 2.5)
    assert (stored.window_from, stored.window_to) == (time(22, 0, 30), time(6))
    assert (stored.concurrency, stored.batch_size) == (4, None)


def test_a_form_that_was_shown_again_still_knows_what_it_showed_first(login: Any) -> None:
    client = login(*CONFIGURE)
    change_settings(Job, {"lease": 60}, by="Ada", using="default")
    again = client.post(url("settings"), sent(client.get(url()), batch_size="100000"))
    assert "errorlist" in again.content.decode()
    change_settings(Job, {"lease": 90}, by="Grace", using="default")
    client.post(url("settings"), sent(again, batch_size="7"))
    stored = LiveSettings.objects.get()
    assert (stored.lease, stored.batch_size) == (90, 7)


def test_settings_that_make_no_sense_are_shown_again(login: Any) -> None:
    answer = login(*CONFIGURE).post(
        url("settings"), {"batch_size": "100000", "window_from": "8:00"}
    )
    assert answer.status_code == 200
    assert 'value="100000"' in answer.content.decode()
    assert "errorlist" in answer.content.decode()
    assert not LiveSettings.objects.exists()
