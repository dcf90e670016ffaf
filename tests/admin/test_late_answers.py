"""An answer to a page is an answer to what the page has shown: what has changed since is shown first."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from django_taskclaim.admin import buttons
from django_taskclaim.admin.acts import Act
from tests.admin.acting import act_on, acts, answered, said, shown_on
from tests.behaviour.support import facts, stored
from tests.factories import make
from tests.testapp.models import Child, Photo

pytestmark = pytest.mark.django_db(databases=["default", "other"])


def opened(model: Any) -> Any:
    (row,) = make(model)
    return row


def failed(model: Any) -> Any:
    (row,) = make(model)
    _claimed(row, "user:1").claim.fail("broken", retry=False)
    return row


def held(model: Any) -> Any:
    (row,) = make(model)
    _claimed(row, "user:1")
    return row


def _claimed(row: Any, who: str) -> Any:
    (mine,) = type(row).objects.filter(pk=row.pk).claim_batch(1, claimed_by=who)
    return mine


def _completed(row: Any) -> None:
    _claimed(row, "user:2").claim.complete()


def _reset_and_completed(row: Any) -> None:
    type(row).objects.filter(pk=row.pk).reset()
    _completed(row)


def _taken_by_another(row: Any) -> None:
    type(row).objects.filter(pk=row.pk).take_back()
    _claimed(row, "user:2")


def _claimed_again(row: Any) -> None:
    type(row).objects.filter(pk=row.pk).take_back()
    _claimed(row, "user:1")


CHANGES = [
    (opened, "fail", _completed, "complete"),
    (failed, "reset", _reset_and_completed, "complete"),
    (held, "take-back", _taken_by_another, "processing"),
    (held, "take-back", _claimed_again, "processing"),
    (held, "fail", _taken_by_another, "processing"),
]


@pytest.mark.parametrize("model", [Photo, Child])
@pytest.mark.parametrize(("begin", "act", "meanwhile", "state"), CHANGES)
def test_a_late_answer_changes_nothing_and_shows_the_row_as_it_is_now(
    boss: Client,
    model: Any,
    begin: Callable[[Any], Any],
    act: str,
    meanwhile: Callable[[Any], None],
    state: str,
) -> None:
    row = begin(model)
    url = act_on(model, act, row)
    answer = {**shown_on(boss.get(url)), "reason": "because", "running": "on"}
    meanwhile(row)
    before = stored(row)
    again = boss.post(url, answer)
    text = again.content.decode()
    assert "changed since the page was shown" in text
    assert f"The row is {state}." in text
    assert 'value="because"' in text
    assert stored(row) == before
    assert acts() == []
    boss.post(url, {**answer, **shown_on(again)})
    assert stored(row) != before


def test_an_answer_that_has_seen_no_page_gets_one(boss: Client) -> None:
    row = opened(Photo)
    answer = boss.post(act_on(Photo, "fail", row), {"reason": "because"})
    assert "because" in answer.content.decode()
    assert facts(row).status == "open"


def test_what_changes_between_the_look_and_the_act_is_left_alone(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the row is taken by another after the answer was compared, before the statement that acts."""
    row = held(Photo)
    usual = buttons._as_shown

    def late(act: Act, row: Any, seen: Any) -> Act:
        _taken_by_another(row)
        return usual(act, row, seen)

    monkeypatch.setattr(buttons, "_as_shown", late)
    answer = answered(boss, act_on(Photo, "take-back", row), {"running": "on"})
    assert facts(row).claimed_by == "user:2"
    assert "somebody else has locked or changed meanwhile" in said(answer)
