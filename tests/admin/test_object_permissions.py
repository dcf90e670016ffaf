"""A ModelAdmin, a row, a queryset or another model can deny what the permissions grant."""

from itertools import product
from typing import Any

import pytest
from django.contrib.admin import AdminSite, ModelAdmin, site
from django.contrib.admin.models import LogEntry
from django.http import HttpRequest
from django.test import Client
from django.urls import path

from django_taskclaim.admin import ClaimAdminMixin
from django_taskclaim.admin.control_room import snapshot
from django_taskclaim.control.actions import ROW_ACTIONS, Action
from django_taskclaim.models import Control, WorkerProcess
from tests.admin.room import (
    OPERATE,
    VIEW,
    act_on,
    address,
    chosen,
    command_url,
    failed,
    group_of,
    in_states,
    overview,
    perform,
    photos,
    recorded,
    run_action,
    said,
    somebody,
    text_of,
    worker,
)
from tests.factories import make
from tests.querysets.models import Labelled, UuidLinks
from tests.querysets.support import facts, stored
from tests.testapp.models import Child, HiddenRows, Parent, Photo, UuidKey
from tests.urls import urlpatterns as project

pytestmark = [
    pytest.mark.once,
    pytest.mark.urls(__name__),
    pytest.mark.django_db(databases=["default", "other"]),
]

ROW_BUTTONS = [action.slug for action in ROW_ACTIONS]

own_site = AdminSite("own")


class OursAdmin(ClaimAdminMixin, ModelAdmin):  # type: ignore[type-arg]
    """Its users see the photos of New Zealand, and only Ada may change any."""

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).filter(country="NZ")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.get_username() == "ada"


own_site.register(Photo, OursAdmin)
#: A site whose owner wants no control room.
bare_site = AdminSite("bare")
bare_site.register(Photo, OursAdmin)
bare_site.unregister(Control)
urlpatterns = [*project, path("own/", own_site.urls), path("bare/", bare_site.urls)]


def deny(monkeypatch: pytest.MonkeyPatch, model: Any, method: str, *rows: Any) -> None:
    """Let the ModelAdmin of *model* deny these rows, or everything."""
    keys = {row.pk for row in rows}

    def may(self: Any, request: Any, obj: Any = None) -> bool:
        return bool(keys) and (obj is None or obj.pk not in keys)

    monkeypatch.setattr(type(site._registry[model]), method, may, raising=False)


# Rows


def test_a_row_that_the_user_may_not_change_or_see_stays_as_it_is(boss: Client) -> None:
    fixed, free = make(HiddenRows, 2, note=lambda i: "" if i else "fixed")
    (hidden,) = make(HiddenRows, hidden=True)
    for act in ROW_BUTTONS:
        for row, code in ((fixed, 403), (hidden, 404)):
            assert boss.get(act_on(HiddenRows, act, row)).status_code == code
            assert boss.post(act_on(HiddenRows, act, row), {"reason": "r"}).status_code == code
    page = boss.get(address(HiddenRows)).content.decode()
    assert act_on(HiddenRows, "pause-rows", fixed) not in page
    assert act_on(HiddenRows, "pause-rows", free) in page
    sent = chosen("claim_pause_rows", fixed, free, hidden)
    answer = run_action(boss, address(HiddenRows), sent)
    assert [facts(row).status for row in (fixed, free, hidden)] == ["open", "paused", "open"]
    assert said(answer) == "1 hidden rows was paused. Left alone: 1 that you may not change."


@pytest.mark.parametrize("action", ROW_ACTIONS, ids=lambda action: action.slug)
def test_no_action_changes_a_row_that_the_user_may_not_change(boss: Client, action: Action) -> None:
    rows = in_states(HiddenRows)
    HiddenRows.objects.update(note="fixed")
    before = [stored(row) for row in rows.values()]
    named = {"reason": "r", "running": "on", "complete": "on"}
    sent = chosen("claim_" + action.slug.replace("-", "_"), *rows.values(), **named)
    answer = run_action(boss, address(HiddenRows), sent)
    assert [stored(row) for row in rows.values()] == before
    assert "that you may not change" in said(answer)
    assert sum(one[2] for one in recorded()) == 0


@pytest.mark.parametrize(
    ("by", "method"),
    [
        *product(
            ("retry", "delete", "action"), ("has_change_permission", "has_operate_permission")
        ),
        ("delete", "has_delete_permission"),
    ],
)
def test_a_failed_row_that_the_user_may_not_change_is_not_retried_or_deleted(
    boss: Client, monkeypatch: pytest.MonkeyPatch, by: str, method: str
) -> None:
    kept, *others = failed(3)
    group = group_of(boss)
    deny(monkeypatch, Photo, method, kept)
    if by == "action":
        sent = chosen("claim_reset", kept, select_across="1")
        run_action(somebody(*OPERATE), address(Photo), sent)
    else:
        ada = somebody(*OPERATE, "testapp.delete_photo")
        perform(ada, photos(by, group=group), {"first": "on"})
    assert list(Photo.objects.failed()) == [kept]
    assert recorded()[-1][2] == len(others)


@pytest.mark.parametrize(
    ("model", "beside"), [(Parent, Child), (UuidKey, UuidLinks), (Labelled, LogEntry)]
)
def test_deleting_asks_for_every_model_whose_rows_go_too(
    model: Any, beside: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child row goes with the row of its parent, also where the parent does not know it."""
    failed(1, model=model)
    name, meta = model._meta.model_name, beside._meta
    granted = [*OPERATE, *(f"testapp.{what}_{name}" for what in ("view", "change", "delete"))]
    some = somebody(*granted)
    every = somebody(*granted, f"{meta.app_label}.delete_{meta.model_name}")
    group = group_of(every, overview(f"testapp.{name}"))
    where = f"{overview(f'testapp.{name}', 'delete')}?group={group}"
    monkeypatch.setitem(site._registry, beside, ModelAdmin(beside, site))
    assert [one.post(where, {}).status_code for one in (some, every)] == [403, 302]
    assert not model.objects.exists()


def test_a_model_admin_that_lets_nobody_operate_is_obeyed(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    deny(monkeypatch, Photo, "has_operate_permission")
    assert boss.post(photos("pause"), {"reason": ""}).status_code == 403
    for page in (photos(), address(Photo)):
        assert "Pause claiming" not in text_of(boss.get(page))
    assert recorded() == []


# Workers that serve other models as well


def test_an_order_needs_every_model_that_the_worker_serves(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By permission and by the ModelAdmin of each; a page orders the workers of its own model."""
    worker(labels=["testapp.Photo", "testapp.Job"])
    client = somebody(*OPERATE)
    assert client.get(command_url("drain")).status_code == 403
    assert client.post(command_url("drain"), {"reason": ""}).status_code == 403
    assert not WorkerProcess.objects.exclude(command="").exists()
    other = somebody(*OPERATE, "testapp.change_job")
    assert other.post(command_url("drain"), {"reason": ""}).status_code == 302
    assert WorkerProcess.objects.get().command == "drain"

    worker("elsewhere@h:1", labels=["testapp.Job"])
    assert boss.post(command_url("stop", "elsewhere@h:1"), {"reason": ""}).status_code == 403
    worker("both@h:1", labels=["testapp.Photo", "testapp.UuidKey"])
    deny(monkeypatch, UuidKey, "has_change_permission")
    assert boss.post(command_url("stop", "both@h:1"), {"reason": ""}).status_code == 403
    assert boss.post(command_url("dance"), {"reason": ""}).status_code == 404
    assert boss.get(overview("testapp.nothing")).status_code == 404
    assert boss.get(overview("auth.user")).status_code == 404


# What is shown


def test_without_the_permission_no_page_is_shown(db: None) -> None:
    pages = [photos(), photos("live"), photos("pause"), overview(), overview("live")]
    pages.append(overview("testapp.job", "pause"))
    for permissions in ((), ("testapp.view_photo",), VIEW[:1], OPERATE[1:]):
        client = somebody(*permissions)
        assert {client.get(page).status_code for page in pages} == {403}
        assert client.post(photos("export")).status_code == 403
    assert "/login/" in Client().get(photos("live")).headers["Location"]
    page = text_of(somebody(*VIEW[:2]).get(overview()))
    assert "testapp.Photo" in page
    assert "testapp.Job" not in page


def own(page: str = "", **query: str) -> str:
    return photos(page, site="own", **query)


@pytest.fixture
def ada(db: None) -> Client:
    failed(6, "no picture of nz", country="NZ")
    failed(4, "no picture of au", country="AU")
    return somebody(name="ada", is_superuser=True)


def test_failures_that_the_user_may_not_see_are_not_shown_exported_or_retried(
    ada: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as sharing:
        sharing.setattr(snapshot, "SHARED_FOR", 60.0)
        assert "no picture of au" in text_of(ada.get(photos()))
        page = text_of(ada.get(own()))
        failed(1, LookupError("au"), country="AU")
        listed = [text_of(ada.get(address(Photo, site=one))) for one in ("admin", "own")]
        assert ["LookupError" in one for one in listed] == [True, False]
    assert "no picture of nz" in page
    assert "no picture of au" not in page
    answer: Any = ada.post(own("export"))
    exported = answer.content.decode()
    assert exported.count("no picture of nz") == 6
    assert "no picture of au" not in exported

    visible = group_of(ada, own())
    Photo.objects.filter(country="NZ").reset()
    hidden = group_of(ada, photos())
    assert hidden != visible
    perform(ada, own("retry", group=hidden), {"reason": ""})
    button = address(Photo, "claim", "reset", site="own")
    assert ada.post(button, {"reason": ""}).status_code == 302
    assert Photo.objects.failed().count() == 5


def test_the_last_error_of_a_worker_is_named_only_to_a_user_who_may_see_every_row(
    ada: Client,
) -> None:
    worker(last_error="ValueError: disk of au is full")
    assert "ValueError" in text_of(ada.get(own()))
    assert "disk of au" not in text_of(ada.get(own()))
    assert "disk of au" in text_of(ada.get(photos()))


def test_another_site_has_a_control_room_with_its_own_addresses_and_rules(ada: Client) -> None:
    page = ada.get("/own/taskclaim/control/").content.decode()
    assert f'href="{own()}"' in page
    assert "/admin/taskclaim" not in page
    menu = text_of(ada.get(address(Photo, site="bare")))
    assert "Reset all failed rows " in menu
    assert "Control room" not in menu
    grace = somebody(name="grace", is_superuser=True)
    assert "Pause claiming" not in text_of(grace.get(own()))
    assert grace.post(own("pause"), {"reason": ""}).status_code == 403
    assert grace.post(own("settings"), {"batch_size": 3}).status_code == 403
    assert ada.post(own("pause"), {"reason": ""}).status_code == 302
