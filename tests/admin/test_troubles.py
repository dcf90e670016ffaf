"""What goes wrong half-way: what was done is recorded and told, and nothing else is."""

from typing import Any

import pytest
from django.contrib import admin
from django.db import InterfaceError, OperationalError, connection
from django.test import Client
from django.urls import resolve, reverse

from django_taskclaim import switch
from django_taskclaim.admin.control_room.failures import group_id, normalised
from django_taskclaim.control.models import OperatorAct
from django_taskclaim.models import Switch
from django_taskclaim.querysets import ClaimQuerySet, operating
from tests.admin.acting import act_on, acts, address, all_of, said
from tests.factories import make
from tests.testapp.models import Photo

everywhere = pytest.mark.django_db(databases=["default", "other"])
committing = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture
def four_failed(settings: Any) -> None:
    """Four failed rows, two of which make a chunk."""
    settings.TASKCLAIM = {"CHUNK_SIZE": 2}
    make(Photo, 4)
    for row in Photo.objects.claim_batch(4, durable=False):
        row.claim.fail("broken", retry=False)


@pytest.fixture
def second_chunk_raises(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what makes the second chunk of a reset raise an error."""

    def arrange(error: Exception, *, doomed: bool = False) -> None:
        usual, calls = ClaimQuerySet.reset, []

        def reset(self: Any, **options: Any) -> int:
            calls.append(1)
            if len(calls) == 2:
                if doomed and connection.in_atomic_block:
                    connection.set_rollback(
                        True
                    )  # as contention does to a transaction of the caller's
                raise error
            return usual(self, **options)

        monkeypatch.setattr(ClaimQuerySet, "reset", reset)

    return arrange


def open_rows() -> int:
    return Photo.objects.filter(status="open").count()


@committing
@pytest.mark.usefixtures("four_failed")
@pytest.mark.parametrize(("by", "changed"), [("button", 2), ("action", 0)])
def test_under_atomic_requests_what_is_told_is_what_was_done(
    boss: Client,
    second_chunk_raises: Any,
    monkeypatch: pytest.MonkeyPatch,
    by: str,
    changed: int,
) -> None:
    """A button commits each chunk; an action is part of the list's transaction, which keeps nothing."""
    second_chunk_raises(OperationalError("deadlock detected"), doomed=True)
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    if by == "button":
        answer = boss.post(act_on(Photo, "reset-failed"), {"reason": "why"})
    else:
        row = Photo.objects.earliest("pk")
        answer = boss.post(address(Photo), all_of("claim_reset_failed", row))
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", False)
    assert open_rows() == changed
    assert said(answer).startswith(f"{changed} rows were reset.")
    assert "deadlock detected" in said(answer)
    assert sum(act[2] for act in acts()) == changed


@pytest.mark.parametrize(
    "name", ["pause", "resume", "release_expired", "reset_failed", "pause_row", "fail"]
)
def test_no_button_acts_in_a_transaction_of_the_request(name: str) -> None:
    args = ["1"] if name in ("pause_row", "fail") else []
    view: Any = resolve(reverse(f"admin:testapp_photo_claim_{name}", args=args)).func
    assert view._non_atomic_requests == {"default", "other"}


@everywhere
@pytest.mark.usefixtures("four_failed")
def test_what_was_done_before_the_connection_was_lost_is_told_and_recorded(
    boss: Client, second_chunk_raises: Any
) -> None:
    second_chunk_raises(InterfaceError("connection already closed"))
    answer = boss.post(act_on(Photo, "reset-failed"), {"reason": "why"})
    assert open_rows() == 2
    assert "connection already closed" in said(answer)
    assert [act[1:3] for act in acts()] == [("reset", 2)]


@everywhere
@pytest.mark.usefixtures("four_failed")
@pytest.mark.parametrize("by", ["button", "group"])
def test_a_chunk_that_was_done_when_the_look_for_more_failed_is_recorded(
    boss: Client, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """A verb over as many rows as a chunk has looks once more, and that can fail."""
    usual, calls = operating._chunk, []

    def chunk(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise InterfaceError("connection already closed")
        return usual(*args, **options)

    monkeypatch.setattr(operating, "_chunk", chunk)
    where, given = act_on(Photo, "reset-failed"), {"reason": "why"}
    if by == "group":
        failed = Photo.objects.failed().earliest("pk")
        name = group_id(failed.error_class, normalised(failed.last_error))
        where = reverse("admin:testapp_photo_control_retry", kwargs={"group": name})
    boss.post(where, given)
    assert open_rows() == 2
    assert [act[1:3] for act in acts()] == [("reset", 2)]


@everywhere
@pytest.mark.usefixtures("four_failed")
def test_what_was_done_before_an_error_of_the_projects_own_is_recorded(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = Photo.objects.latest("pk")

    def may(self: Any, request: Any, obj: Any = None) -> bool:
        if obj is not None and obj.pk == last.pk:
            raise KeyError("a mistake")
        return True

    monkeypatch.setattr(
        type(admin.site._registry[Photo]), "has_operate_permission", may, raising=False
    )
    boss.raise_request_exception = False
    assert boss.post(act_on(Photo, "reset-failed"), {"reason": "why"}).status_code == 500
    assert open_rows() == 2
    assert [act[1:3] for act in acts()] == [("reset", 2)]


@everywhere
@pytest.mark.usefixtures("four_failed")
def test_an_action_asks_the_permission_to_operate_for_each_row(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = Photo.objects.earliest("pk")
    monkeypatch.setattr(
        type(admin.site._registry[Photo]),
        "has_operate_permission",
        lambda self, request, obj=None: obj is None or obj.pk != fixed.pk,
        raising=False,
    )
    boss.post(address(Photo), all_of("claim_reset_failed", fixed))
    assert list(Photo.objects.filter(status="failed")) == [fixed]


@everywhere
@pytest.mark.parametrize("error", [OperationalError, InterfaceError])
def test_a_switch_that_was_turned_on_some_databases_is_recorded_there(
    boss: Client, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    usual = switch._store

    def store(scope: str, alias: str, values: Any) -> None:
        if alias == "other":
            raise error("away")
        usual(scope, alias, values)

    monkeypatch.setattr(switch, "_store", store)
    answer = boss.post(act_on(Photo, "pause"), {"reason": "deploy"})
    assert "but not on other: away" in said(answer)
    assert Switch.objects.count() == OperatorAct.objects.count() == 1
    assert not OperatorAct.objects.using("other").exists()


@everywhere
def test_a_row_that_is_none_leads_back_to_the_list(boss: Client) -> None:
    page = boss.get(act_on(Photo, "pause") + "?row=%0A")
    assert page.context["back"] == address(Photo)
