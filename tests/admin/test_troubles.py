"""An act that gets only part of the way: what was done stays, is recorded and said, and nothing else is."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib import admin
from django.db import InterfaceError, OperationalError, connection, router
from django.test import Client

from django_taskclaim import switch
from django_taskclaim.admin.control_room import views
from django_taskclaim.control.models import OperatorAct
from django_taskclaim.models import Switch
from django_taskclaim.querysets import ClaimQuerySet
from tests.admin.room import (
    act_on,
    address,
    chosen,
    failed,
    form_of,
    group_of,
    order_url,
    perform,
    photos,
    recorded,
    said,
    text_of,
    worker,
)
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
        usual, calls = ClaimQuerySet.reset, []

        def reset(self: Any, **options: Any) -> int:
            calls.append(1)
            if len(calls) == 2:
                if connection.settings_dict["ATOMIC_REQUESTS"] and connection.in_atomic_block:
                    connection.set_rollback(True)
                raise error
            return usual(self, **options)

        monkeypatch.setattr(ClaimQuerySet, "reset", reset)

    return arrange


def retry(client: Client) -> Any:
    return perform(client, photos("retry", group=group_of(client)), {"reason": "why"})


def button(client: Client) -> Any:
    return client.post(act_on(Photo, "reset-failed"), {"reason": "why"})


def action(client: Client) -> Any:
    sent = chosen("claim_reset_failed", Photo.objects.earliest("pk"), select_across="1")
    return client.post(address(Photo), sent)


@pytest.mark.usefixtures("four_failed")
@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
@pytest.mark.parametrize("press", [retry, button, action])
def test_what_was_done_before_the_database_refused_is_recorded_and_said(
    boss: Client, second_chunk_raises: Any, press: Press, error: type[Exception]
) -> None:
    second_chunk_raises(error("the server went away"))
    answer = press(boss)
    assert Photo.objects.open().count() == 2
    assert said(answer).startswith("2 ")
    assert "the server went away" in said(answer)
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
def test_what_was_done_before_a_mistake_of_the_project_is_recorded(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = Photo.objects.latest("pk")

    def may(self: Any, request: Any, obj: Any = None) -> bool:
        if obj is not None and obj.pk == last.pk:
            raise KeyError("a mistake")
        return True

    kind = type(admin.site._registry[Photo])
    monkeypatch.setattr(kind, "has_operate_permission", may, raising=False)
    boss.raise_request_exception = False
    assert button(boss).status_code == 500
    assert Photo.objects.open().count() == 2
    assert [act[1:3] for act in recorded()] == [("reset", 2)]


@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
@pytest.mark.parametrize("by", ["button", "control room"])
def test_a_pause_that_reaches_one_database_of_two_is_recorded_there_alone(
    boss: Client, monkeypatch: pytest.MonkeyPatch, by: str, error: type[Exception]
) -> None:
    usual = switch._store

    def store(scope: str, alias: str, values: Any) -> None:
        if alias == "other":
            raise error("away")
        usual(scope, alias, values)

    monkeypatch.setattr(switch, "_store", store)
    where = act_on(Photo, "pause") if by == "button" else photos("switch")
    answer = boss.post(where, {"turn": "off", "reason": "deploy"})
    assert "but not on other: away" in said(answer)
    assert Switch.objects.count() == OperatorAct.objects.count() == 1
    assert not OperatorAct.objects.using("other").exists()


def test_a_pause_is_recorded_on_every_database_that_it_reached(boss: Client) -> None:
    boss.post(photos("switch"), {"turn": "off", "reason": "deploy"})
    for alias in ("default", "other"):
        assert OperatorAct.objects.using(alias).get().act == "pause"


def refuse(*args: Any, **options: Any) -> None:
    raise OperationalError("the disk is full")


def test_a_refused_order_is_said(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    worker()
    monkeypatch.setattr(views, "order", refuse)
    assert "he disk is full" in said(boss.post(order_url("drain"), {"reason": ""}))


def test_settings_that_the_database_refuses_are_shown_again(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "change_settings", refuse)
    page = boss.post(photos("settings"), {"batch_size": "7"})
    assert "he disk is full" in text_of(page)
    assert form_of(page, photos("settings"))["batch_size"] == ["7"]


def test_where_routers_keep_the_tables_away_the_page_says_so(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "allow_migrate", lambda *args, **hints: False)
    answer = boss.post(photos("settings"), {"batch_size": "7"})
    assert answer.status_code == 200
    assert "need the tables of django_taskclaim.control" in text_of(answer)
    assert boss.get(order_url("drain")).status_code == 404
