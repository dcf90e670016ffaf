"""What must not be possible from the list and the pages, and who is shown no way to it."""

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.test import Client, RequestFactory
from django.urls import reverse

from django_taskclaim.admin.buttons import ROW_BUTTONS
from django_taskclaim.admin.confirming import CONFIRMED
from django_taskclaim.switch import paused_by
from tests.admin.acting import MODELS, act_on, acts, address, answered, chosen, said
from tests.behaviour.support import facts, set_raw, stored
from tests.factories import make
from tests.testapp.models import HiddenRows, Photo, UuidKey

pytestmark = pytest.mark.django_db(databases=["default", "other"])

ROW_ACTS = [button.name for button in ROW_BUTTONS]
LIST_ACTS = ["pause", "resume", "release-expired", "reset-failed"]
ACTIONS = [
    "claim_reset_failed",
    "claim_reset",
    "claim_pause_rows",
    "claim_resume_rows",
    "claim_release_expired",
    "claim_take_back",
    "claim_fail",
]

OPERATE = "taskclaim_control.operate"
LOOK = ("testapp.view_photo", "taskclaim_control.view_control")


def every_address(row: Any) -> list[str]:
    model = type(row)
    return [
        *(act_on(model, act, row) for act in ROW_ACTS),
        *(act_on(model, act) for act in LIST_ACTS),
    ]


def test_looking_at_an_act_changes_nothing(boss: Client, in_states: Any) -> None:
    rows = in_states(Photo)
    before = {state: stored(row) for state, row in rows.items()}
    for row in rows.values():
        for url in every_address(row):
            assert boss.get(url).status_code == 200
            assert boss.head(url).status_code == 200
            assert boss.put(url).status_code == 405
            assert boss.delete(url).status_code == 405
    assert {state: stored(row) for state, row in rows.items()} == before
    assert paused_by(Photo) is None
    assert acts() == []


def test_no_act_without_csrf(boss: Client, in_states: Any) -> None:
    rows = in_states(Photo)
    before = {state: stored(row) for state, row in rows.items()}
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = boss.cookies
    given = {"reason": "r", "running": "on", CONFIRMED: "yes"}
    for row in rows.values():
        for url in every_address(row):
            assert strict.post(url, given).status_code == 403
    for action in ACTIONS:
        data = {**chosen(action, *rows.values()), **given}
        assert strict.post(address(Photo), data).status_code == 403
    assert {state: stored(row) for state, row in rows.items()} == before


@pytest.mark.parametrize(
    "granted",
    [
        LOOK,
        ("testapp.change_photo", "taskclaim_control.view_control"),
        ("testapp.view_photo", OPERATE),
        ("testapp.view_photo", "testapp.change_uuidkey", OPERATE),
    ],
    ids=["may look", "may change, not operate", "may operate, not change", "may change another"],
)
def test_who_may_not_operate_sees_no_button_and_cannot_act(
    login: Any, in_states: Any, granted: tuple[str, ...]
) -> None:
    client = login(*granted)
    rows = in_states(Photo)
    before = {state: stored(row) for state, row in rows.items()}
    given = {"reason": "r", "running": "on", CONFIRMED: "yes"}
    for row in rows.values():
        for url in every_address(row):
            assert client.get(url).status_code == 403
            assert client.post(url, given).status_code == 403
    text = client.get(address(Photo)).content.decode()
    page = client.get(address(Photo, "change", rows["open"].pk)).content.decode()
    for name in (*ROW_ACTS, *LIST_ACTS, *ACTIONS):
        assert f"/claim/{name}/" not in text
        assert f"/claim/{name}/" not in page
        assert f'value="{name}"' not in text
    for action in ACTIONS:
        client.post(address(Photo), {**chosen(action, *rows.values()), **given})
    assert {state: stored(row) for state, row in rows.items()} == before
    assert acts() == []


def test_with_both_permissions_one_may(login: Any) -> None:
    client = login("testapp.change_photo", "testapp.view_photo", OPERATE)
    (row,) = make(Photo)
    answered(client, act_on(Photo, "pause-row", row))
    assert facts(row).status == "paused"
    assert acts()[-1][3] == "ada"


def test_nobody_who_is_not_logged_in_gets_anywhere(client: Client) -> None:
    (row,) = make(Photo)
    for url in every_address(row):
        for answer in (client.get(url), client.post(url, {"reason": "r"})):
            assert answer.status_code == 302
            assert "/login/" in answer.url
    assert facts(row).status == "open"


def test_a_row_that_the_user_may_not_change_stays_as_it_is(boss: Client) -> None:
    """The admin of this model lets rows be seen that it does not let be changed."""
    fixed, free = make(HiddenRows, 2, note=lambda i: "" if i else "fixed")
    for act in ROW_ACTS:
        assert boss.get(act_on(HiddenRows, act, fixed)).status_code == 403
        assert boss.post(act_on(HiddenRows, act, fixed), {"reason": "r"}).status_code == 403
    text = boss.get(address(HiddenRows)).content.decode()
    assert act_on(HiddenRows, "pause-row", fixed) not in text
    assert act_on(HiddenRows, "pause-row", free) in text
    answer = boss.post(address(HiddenRows), chosen("claim_pause_rows", fixed, free))
    assert (facts(fixed).status, facts(free).status) == ("open", "paused")
    assert said(answer) == "1 row was paused. Left alone: 1 that you may not change."


def test_a_key_from_outside_the_users_queryset_leads_nowhere(boss: Client) -> None:
    (row,) = make(HiddenRows, hidden=True)
    for act in ROW_ACTS:
        assert boss.get(act_on(HiddenRows, act, row)).status_code == 404
        assert boss.post(act_on(HiddenRows, act, row), {"reason": "r"}).status_code == 404
    boss.post(address(HiddenRows), chosen("claim_pause_rows", row))
    assert facts(row).status == "open"


@pytest.mark.parametrize("key", ["0", "nonsense", "1;drop", "../1", "%00", "9" * 40])
def test_a_key_that_is_none_leads_nowhere(boss: Client, key: str) -> None:
    for model in (Photo, UuidKey):
        answer = boss.get(address(model, "claim_reset", quote(key)))
        assert answer.status_code == 404


def test_a_reason_with_a_script_is_text_everywhere(boss: Client) -> None:
    (row,) = make(Photo)
    evil = "<script>alert(1)</script>"
    answered(boss, act_on(Photo, "fail", row), {"reason": evil})
    assert facts(row).last_error == evil
    pages = [address(Photo), address(Photo, "change", row.pk), address(Photo, "history", row.pk)]
    for page in (*pages, reverse("admin:index")):
        assert "<script>alert" not in boss.get(page).content.decode()


def test_two_admins_never_share_an_address() -> None:
    from django_taskclaim.admin.buttons import row_urls, url_name
    from django_taskclaim.admin.switching import list_urls

    admins = [admin.site._registry[model] for model in MODELS]
    found = [url.name for one in admins for url in (*row_urls(one), *list_urls(one))]
    assert len(found) == len(set(found))
    assert url_name(admins[0], "pause-row") == "testapp_photo_claim_pause_row"


def test_a_page_that_does_not_know_who_looks_shows_no_buttons(rf: RequestFactory) -> None:
    (row,) = make(Photo)
    set_raw(row, "status", "'failed'")
    shown = admin.site._registry[Photo].actions_holder(Photo.objects.get())
    assert "claim/" not in shown


def test_without_the_control_app_everything_works_and_is_logged(
    login: Any, in_states: Any, settings: Any
) -> None:
    settings.INSTALLED_APPS = [
        name for name in settings.INSTALLED_APPS if name != "django_taskclaim.control"
    ]
    client = login("testapp.change_photo", "testapp.view_photo")
    row = in_states(Photo)["failed"]
    assert client.get(address(Photo)).status_code == 200
    assert client.get(address(Photo, "change", row.pk)).status_code == 200
    answered(client, act_on(Photo, "reset", row), {"reason": "again"})
    assert facts(row).status == "open"
    entry = LogEntry.objects.get()
    assert entry.object_id == str(row.pk)
    assert "again" in entry.change_message
