"""Under ``ATOMIC_REQUESTS`` every page that acts does what it says, and what it said is what was done."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.test import Client
from django.urls import resolve, reverse
from django.utils import timezone

from django_taskclaim.admin.confirming import CONFIRMED
from django_taskclaim.admin.control_room import asking
from django_taskclaim.control.models import LiveSettings, OperatorAct, WorkerOrder
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.switch import paused_by
from tests.admin.acting import act_on, address, answered, chosen
from tests.admin.test_control_room_rights import failed, group, order_url, url, worker
from tests.behaviour.support import facts, set_raw
from tests.factories import make
from tests.testapp.models import Photo

PAGES = ["", "live", "switch", "orders", "settings", "export", "first", "retry"]
OVERALL = ["changelist", "live", "pause", "resume"]

committing = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture
def atomic_requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    asking.forget()
    with monkeypatch.context() as patch:
        for alias in connections:
            patch.setitem(connections[alias].settings_dict, "ATOMIC_REQUESTS", True)
        yield


@pytest.mark.parametrize("page", PAGES)
def test_no_page_of_a_model_is_a_transaction(page: str) -> None:
    view: Any = resolve(url(page, **({"group": "0"} if page in {"first", "retry"} else {}))).func
    assert view._non_atomic_requests == {"default", "other"}


@pytest.mark.parametrize("page", OVERALL)
def test_no_page_of_all_models_is_a_transaction(page: str) -> None:
    view: Any = resolve(reverse(f"admin:taskclaim_control_{page}")).func
    assert view._non_atomic_requests == {"default", "other"}


@committing
@pytest.mark.usefixtures("atomic_requests")
def test_every_act_of_the_control_room(boss: Client) -> None:
    failed(Photo, 12)
    alive, dead = worker(), worker("w@h:7", seen_at=timezone.now() - timedelta(minutes=5))
    made = make(Photo, 2)
    for row in Photo.objects.filter(pk__in=[row.pk for row in made]).claim_batch(2):
        set_raw(row, "claimed_by", f"'{dead.name}#1'")

    boss.post(url("switch"), {"turn": "off", "reason": "deploy"})
    assert paused_by(Photo) is not None
    boss.post(url("switch"), {"turn": "on"})
    assert paused_by(Photo) is None
    boss.post(order_url("drain", alive.name), {"reason": ""})
    boss.post(order_url("release", dead.name), {"reason": ""})
    given = {one.order: one.done_at is not None for one in WorkerOrder.objects.all()}
    assert given == {"drain": False, "release": True}
    assert Photo.objects.open().count() == 2
    boss.post(url("first", group=group(Photo)))
    assert Photo.objects.open().count() == 12
    boss.post(url("retry", group=group(Photo)), {"reason": "mended"})
    assert Photo.objects.open().count() == 14
    boss.post(url("settings"), {"batch_size": "7"})
    assert LiveSettings.objects.get().batch_size == 7
    for act in ("pause", "resume"):
        boss.post(reverse(f"admin:taskclaim_control_{act}"), {"reason": ""})
        assert (paused_by(Photo) is None) == (act == "resume")
    told = OperatorAct.objects.order_by("pk").values_list("act", "rows")
    assert list(told) == [
        ("pause", 0),
        ("resume", 0),
        ("worker order", 0),
        ("worker order", 2),
        ("reset", 10),
        ("reset", 2),
        ("settings", 0),
        ("pause", 0),
        ("resume", 0),
    ]


@committing
@pytest.mark.usefixtures("atomic_requests")
def test_a_retry_that_breaks_off_keeps_what_it_has_done(
    boss: Client, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.TASKCLAIM = {"CHUNK_SIZE": 2}
    failed(Photo, 4)
    usual, calls = ClaimQuerySet.reset, []

    def reset(self: Any, **options: Any) -> int:
        calls.append(1)
        if len(calls) == 2:
            if connection.in_atomic_block:
                # As contention does to a transaction of the caller's.
                connection.set_rollback(True)
            raise OperationalError("deadlock detected")
        return usual(self, **options)

    monkeypatch.setattr(ClaimQuerySet, "reset", reset)
    boss.post(url("retry", group=group(Photo)), {"reason": ""})
    assert Photo.objects.open().count() == 2
    assert OperatorAct.objects.get().rows == 2


ACTIONS = [
    ("claim_reset_failed", "failed", "open"),
    ("claim_pause_rows", "open", "paused"),
    ("claim_resume_rows", "paused", "open"),
    ("claim_release_expired", "expired", "open"),
    ("claim_reset", "complete", "open"),
    ("claim_take_back", "processing", "open"),
    ("claim_fail", "waiting", "failed"),
]
BUTTONS = [
    ("reset", "failed", "open"),
    ("pause-row", "open", "paused"),
    ("resume-row", "paused", "open"),
    ("take-back", "processing", "open"),
    ("fail", "waiting", "failed"),
]
SURE = {"reason": "why", "complete": "on", "running": "on"}


@committing
@pytest.mark.usefixtures("atomic_requests")
def test_every_action_and_every_button(boss: Client, in_states: Any) -> None:
    for action, state, ends in ACTIONS:
        row = in_states(Photo)[state]
        boss.post(address(Photo), {**chosen(action, row), **SURE, CONFIRMED: "yes"})
        assert (action, facts(row).status) == (action, ends)
    rows = in_states(Photo)
    for act, state, ends in BUTTONS:
        answered(boss, act_on(Photo, act, rows[state]), SURE)
        assert (act, facts(rows[state]).status) == (act, ends)
    assert OperatorAct.objects.filter(rows=1).count() == len(ACTIONS) + len(BUTTONS)
    boss.post(act_on(Photo, "pause"), {"reason": "deploy"})
    assert paused_by(Photo) is not None
    boss.post(act_on(Photo, "resume"), {})
    assert paused_by(Photo) is None
    for act in ("reset-failed", "release-expired"):
        boss.post(act_on(Photo, act), {})
    assert not Photo.objects.failed().exists()
    assert not Photo.objects.expired().exists()
