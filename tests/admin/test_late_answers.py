"""A form that was shown before somebody else acted overwrites nothing."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin import site
from django.db.models import Count
from django.test import Client

from django_taskclaim.admin import actions
from django_taskclaim.switch import overrides_of, pause, paused_by, set_overrides
from tests.admin.room import act_on, form_of, in_states, perform, photos, recorded, said, text_of
from tests.factories import make
from tests.querysets.support import facts, stored
from tests.testapp.models import Photo

pytestmark = [pytest.mark.once, pytest.mark.django_db(databases=["default", "other"])]

# Rows


def claimed(row: Any, who: str) -> Any:
    (mine,) = Photo.objects.filter(pk=row.pk).claim_batch(1, claimed_by=who)
    return mine


def taken_by(who: str) -> Callable[[Any], None]:
    """Return what gives a row that may be held to *who*."""

    def take(row: Any) -> None:
        Photo.objects.filter(pk=row.pk).take_back()
        claimed(row, who)

    return take


def complete(row: Any) -> None:
    Photo.objects.filter(pk=row.pk).reset()
    claimed(row, "user:2").claim.complete()


@pytest.mark.parametrize(
    ("begin", "act", "meanwhile", "state"),
    [
        ("open", "fail", complete, "complete"),
        ("failed", "reset", complete, "complete"),
        ("processing", "release", taken_by("user:2"), "running"),
        ("processing", "release", taken_by("user:1"), "running"),
        ("processing", "fail", taken_by("user:2"), "running"),
    ],
)
def test_a_late_answer_changes_nothing_and_shows_the_row_as_it_is_now(
    boss: Client, begin: str, act: str, meanwhile: Callable[[Any], None], state: str
) -> None:
    row = in_states(Photo)[begin]
    url = act_on(Photo, act, row)
    typed = {"reason": "because", "running": "on", "complete": "on"}
    shown = form_of(boss.get(url))
    meanwhile(row)
    before = stored(row)
    again = boss.post(url, {**shown, **typed})
    assert "changed since the page was shown" in text_of(again)
    assert state in text_of(again)
    assert form_of(again)["reason"] == ["because"]
    assert stored(row) == before
    assert recorded() == []
    boss.post(url, {**form_of(again), **typed})
    assert stored(row) != before


def test_an_answer_to_another_page_or_to_none_asks_first(boss: Client) -> None:
    one, other = make(Photo, 2)
    shown = form_of(boss.get(act_on(Photo, "pause-rows", one)))
    for sent in (shown, {}):
        answer = boss.post(act_on(Photo, "pause-rows", other), {**sent, "reason": "because"})
        assert "because" in answer.content.decode()
    assert facts(other).status == "open"


@pytest.mark.parametrize("extra", [{}, {"total": Count("pk")}])
def test_a_row_that_changes_between_the_look_and_the_act_is_left_alone(
    boss: Client, monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any]
) -> None:
    """The answer was compared already; the statement that acts compares again, under an aggregate too."""
    row, usual = in_states(Photo)["processing"], actions.run_action
    annotated = lambda *given: Photo.objects.annotate(**extra)  # noqa: E731
    monkeypatch.setattr(type(site._registry[Photo]), "get_queryset", annotated)

    def late(*given: Any, **options: Any) -> Any:
        taken_by("user:2")(row)
        return usual(*given, **options)

    monkeypatch.setattr(actions, "run_action", late)
    answer = perform(boss, act_on(Photo, "release", row), {"running": "on"})
    assert facts(row).claimed_by == "user:2"
    assert "somebody else has locked or changed meanwhile" in said(answer)


# Settings


def test_settings_from_an_old_page_undo_no_change_of_somebody_else(boss: Client) -> None:
    """Nor a pause, nor when they are shown again after an error."""
    set_overrides(Photo, lease=60, batch_size=9, hours="01:00-02:00")
    shown = form_of(boss.get(photos()), photos("settings"))
    again = boss.post(photos("settings"), {**shown, "batch_size": "100000"})
    pause(Photo)
    set_overrides(Photo, lease=90, rate="5/s")
    typed = {"max_running": "4", "batch_size": "", "hours": "none"}
    for page in (shown, form_of(again, photos("settings"))):
        boss.post(photos("settings"), {**page, **typed})
        for alias in ("default", "other"):
            stored = overrides_of(Photo, using=alias)
            lease = timedelta(seconds=90)
            assert stored == {"lease": lease, "rate": "5/s", "max_running": 4, "hours": ""}
        set_overrides(Photo, max_running=1, batch_size=9, hours="01:00-02:00")
    assert paused_by(Photo) is not None
    assert recorded()[0][4] == "batch size default, max running 4, hours none"
