"""A form that was shown before somebody else acted overwrites nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_taskclaim.admin import buttons
from django_taskclaim.admin.acts import Act
from django_taskclaim.control.models import LiveSettings
from django_taskclaim.control.orders import change_settings, settings_of
from tests.admin.room import (
    act_on,
    failed,
    form_of,
    perform,
    photos,
    recorded,
    said,
    text_of,
)
from tests.factories import make
from tests.querysets.support import facts, stored
from tests.testapp.models import Photo

pytestmark = [pytest.mark.once, pytest.mark.django_db(databases=["default", "other"])]

# Rows


def opened() -> Any:
    return make(Photo)[0]


def broken() -> Any:
    return failed(1)[0]


def held() -> Any:
    return claimed(opened(), "user:1")


def claimed(row: Any, who: str) -> Any:
    (mine,) = Photo.objects.filter(pk=row.pk).claim_batch(1, claimed_by=who)
    return mine


def complete(row: Any) -> None:
    claimed(row, "user:2").claim.complete()


def reset_and_complete(row: Any) -> None:
    Photo.objects.filter(pk=row.pk).reset()
    complete(row)


def give_to_another(row: Any) -> None:
    Photo.objects.filter(pk=row.pk).take_back()
    claimed(row, "user:2")


def claim_again(row: Any) -> None:
    Photo.objects.filter(pk=row.pk).take_back()
    claimed(row, "user:1")


@pytest.mark.parametrize(
    ("begin", "act", "meanwhile", "state"),
    [
        (opened, "fail", complete, "complete"),
        (broken, "reset", reset_and_complete, "complete"),
        (held, "take-back", give_to_another, "processing"),
        (held, "take-back", claim_again, "processing"),
        (held, "fail", give_to_another, "processing"),
    ],
)
def test_a_late_answer_changes_nothing_and_shows_the_row_as_it_is_now(
    boss: Client,
    begin: Callable[[], Any],
    act: str,
    meanwhile: Callable[[Any], None],
    state: str,
) -> None:
    row = begin()
    url = act_on(Photo, act, row)
    typed = {"reason": "because", "running": "on"}
    shown = form_of(boss.get(url))
    meanwhile(row)
    before = stored(row)
    again = boss.post(url, {**shown, **typed})
    assert "changed since the page was shown" in text_of(again)
    assert f"The row is {state}." in text_of(again)
    assert form_of(again)["reason"] == ["because"]
    assert stored(row) == before
    assert recorded() == []
    boss.post(url, {**form_of(again), **typed})
    assert stored(row) != before


def test_an_answer_to_another_page_or_to_none_asks_first(boss: Client) -> None:
    one, other = make(Photo, 2)
    shown = form_of(boss.get(act_on(Photo, "pause-row", one)))
    for sent in (shown, {}):
        answer = boss.post(act_on(Photo, "pause-row", other), {**sent, "reason": "because"})
        assert "because" in answer.content.decode()
    assert facts(other).status == "open"


def test_a_row_that_changes_between_the_look_and_the_act_is_left_alone(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was compared already; the statement that acts compares again."""
    row, usual = held(), buttons._as_shown

    def late(act: Act, row: Any, seen: Any) -> Act:
        give_to_another(row)
        return usual(act, row, seen)

    monkeypatch.setattr(buttons, "_as_shown", late)
    answer = perform(boss, act_on(Photo, "take-back", row), {"running": "on"})
    assert facts(row).claimed_by == "user:2"
    assert "somebody else has locked or changed meanwhile" in said(answer)


# Settings


def change(by: str, **values: Any) -> None:
    change_settings(Photo, values, by=by, using="default")


def test_settings_from_an_old_page_undo_no_change_of_somebody_else(boss: Client) -> None:
    change("Ada", lease=60, hours="22:00-06:00", batch_size=9)
    shown = form_of(boss.get(photos()), photos("settings"))
    change("Grace", lease=90, rate="5/s")
    boss.post(photos("settings"), {**shown, "max_running": "4", "batch_size": ""})
    assert settings_of(Photo, using="default") == {
        "lease": 90,
        "batch_size": None,
        "rate": "5/s",
        "max_running": 4,
        "hours": "22:00-06:00",
    }


def test_settings_that_are_shown_again_after_an_error_undo_nothing_either(boss: Client) -> None:
    change("Ada", lease=60)
    shown = form_of(boss.get(photos()), photos("settings"))
    again = boss.post(photos("settings"), {**shown, "batch_size": "100000"})
    change("Grace", lease=90)
    boss.post(photos("settings"), {**form_of(again, photos("settings")), "batch_size": "7"})
    stored = LiveSettings.objects.get()
    assert (stored.lease, stored.batch_size) == (90, 7)
