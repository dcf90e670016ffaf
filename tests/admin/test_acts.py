"""What may be done from the list and the pages, and what is said of it."""

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.db.models import Count
from django.test import Client

from django_taskclaim.admin import sweeping
from django_taskclaim.admin.confirming import CONFIRMED
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.switch import pause, pause_all, paused_by
from tests.admin.acting import (
    MODELS,
    act_on,
    acts,
    address,
    all_of,
    answered,
    chosen,
    said,
    shown_on,
)
from tests.behaviour.support import facts, stored
from tests.factories import make
from tests.testapp.models import Child, ClaimOnly, Photo, TextKey, UuidKey

pytestmark = pytest.mark.django_db(databases=["default", "other"])


# One row


@pytest.mark.parametrize("model", MODELS)
def test_buttons_of_a_row_do_what_they_say_whatever_the_key(
    boss: Client, in_states: Any, model: Any
) -> None:
    rows = in_states(model)
    for act, state, ends in (
        ("reset", "failed", "open"),
        ("pause-row", "open", "paused"),
        ("resume-row", "paused", "open"),
    ):
        row = rows[state]
        page = boss.get(act_on(model, act, row))
        assert page.status_code == 200
        assert facts(row).status == state
        answer = answered(boss, act_on(model, act, row), {"reason": "why not"})
        assert answer.status_code == 302
        assert facts(row).status == ends
        label = model._meta.concrete_model._meta.label_lower
        assert acts()[-1][:2] == (label, act.replace("-", " ").replace("row", "rows"))
        assert acts()[-1][2:] == (1, "boss", "why not", str(row.pk)[:255])
        assert LogEntry.objects.latest("id").object_id == str(row.pk)


@pytest.mark.parametrize(("act", "ends"), [("take-back", "open"), ("fail", "failed")])
def test_a_running_row_is_taken_from_its_holder_only_when_the_page_says_so(
    boss: Client, in_states: Any, act: str, ends: str
) -> None:
    row = in_states(Photo)["processing"]
    page = boss.get(act_on(Photo, act, row))
    assert "will lose it" in page.content.decode()
    before = stored(row)
    again = answered(boss, act_on(Photo, act, row), {"reason": "r"})
    assert "the row stays with its holder" in again.content.decode()
    assert stored(row) == before
    answered(boss, act_on(Photo, act, row), {"reason": "r", "running": "on"})
    assert facts(row).status == ends
    with pytest.raises(ClaimLost):
        row.claim.complete()


def test_a_row_that_moved_on_meanwhile_is_left_alone_and_that_is_said(
    boss: Client, in_states: Any
) -> None:
    row = in_states(Photo)["complete"]
    answer = answered(boss, act_on(Photo, "resume-row", row), {})
    assert facts(row).status == "complete"
    assert said(answer) == "0 rows were resumed. Left alone: 1 complete."


def test_from_the_page_one_returns_to_the_page_and_from_the_list_to_the_list_as_it_was(
    boss: Client, in_states: Any
) -> None:
    row = in_states(Photo)["failed"]
    text = boss.get(address(Photo), {"claim_state": "failed"}).content.decode()
    kept = f"{act_on(Photo, 'reset', row)}?_changelist_filters=claim_state%3Dfailed"
    assert kept in text
    assert answered(boss, kept).url == f"{address(Photo)}?claim_state=failed"
    page = address(Photo, "change", row.pk)
    assert f"{act_on(Photo, 'pause-row', row)}?from=page" in boss.get(page).content.decode()
    assert answered(boss, f"{act_on(Photo, 'pause-row', row)}?from=page").url == page


# The whole model


@pytest.mark.parametrize("model", [Photo, TextKey])
def test_the_switch_is_turned_by_two_buttons(boss: Client, model: Any) -> None:
    make(model)
    assert "Pause claiming" in boss.get(address(model)).content.decode()
    boss.post(act_on(model, "pause"), {"reason": "deploy", "lasts": "1h"})
    switch = paused_by(model)
    assert switch is not None
    assert (switch.by, switch.reason) == ("boss", "deploy")
    assert switch.until is not None
    assert model.objects.claim_batch(1) == []
    assert "Resume claiming" in boss.get(address(model)).content.decode()
    boss.post(act_on(model, "resume"), {})
    assert paused_by(model) is None
    assert [act[1:4] for act in acts()] == [("pause", 0, "boss"), ("resume", 0, "boss")]


def test_resuming_a_model_says_that_a_pause_of_everything_stays(boss: Client) -> None:
    pause(Photo)
    pause_all(by="eve")
    text = boss.get(act_on(Photo, "resume")).content.decode()
    assert "This one stays: paused, as all models are, by eve" in text


def test_all_failed_rows_and_all_expired_ones(boss: Client, in_states: Any) -> None:
    rows = in_states(Photo)
    assert "1 row" in boss.get(act_on(Photo, "reset-failed")).content.decode()
    boss.post(act_on(Photo, "reset-failed"), {})
    boss.post(act_on(Photo, "release-expired"), {})
    assert {facts(rows[state]).status for state in ("failed", "expired")} == {"open"}
    assert facts(rows["processing"]).status == "processing"
    assert [act[1:3] for act in acts()] == [("reset", 1), ("release expired", 1)]


# Actions


@pytest.mark.parametrize("model", MODELS)
def test_actions_count_what_they_changed_and_what_they_left_alone_and_why(
    boss: Client, in_states: Any, model: Any
) -> None:
    rows = in_states(model)
    held = [state for state in ("processing", "expired") if state in rows]
    answer = boss.post(address(model), chosen("claim_reset_failed", *rows.values()))
    assert facts(rows["failed"]).status == "open"
    told = said(answer)
    assert told.startswith("1 row was reset. Left alone: 1 complete, ")
    assert f"{len(held)} processing" in told
    assert acts()[-1][1:3] == ("reset", 1)


@pytest.mark.parametrize(
    ("action", "changed"),
    [
        ("claim_pause_rows", {"open", "waiting"}),
        ("claim_resume_rows", {"paused"}),
        ("claim_release_expired", {"expired"}),
    ],
)
def test_actions_that_take_nothing_from_anybody_act_at_once(
    boss: Client, in_states: Any, action: str, changed: set[str]
) -> None:
    rows = in_states(Photo)
    before = {state: stored(row) for state, row in rows.items()}
    boss.post(address(Photo), chosen(action, *rows.values()))
    assert {state for state, row in rows.items() if stored(row) != before[state]} == changed


@pytest.mark.parametrize(
    ("action", "answers", "changed"),
    [
        ("claim_reset", {}, {"failed"}),
        ("claim_reset", {"complete": "on"}, {"failed", "complete"}),
        ("claim_reset", {"running": "on"}, {"failed", "processing", "expired"}),
        ("claim_fail", {}, {"open", "waiting", "paused"}),
        (
            "claim_fail",
            {"running": "on"},
            {"open", "waiting", "paused", "processing", "expired"},
        ),
        ("claim_take_back", {}, {"processing", "expired"}),
    ],
)
def test_actions_that_may_take_rows_from_people_ask_first(
    boss: Client, in_states: Any, action: str, answers: dict[str, str], changed: set[str]
) -> None:
    rows = in_states(Photo)
    before = {state: stored(row) for state, row in rows.items()}
    page = boss.post(address(Photo), chosen(action, *rows.values()))
    assert page.status_code == 200
    text = page.content.decode()
    assert "lose them" in text
    assert "2 processing" in text
    assert {state: stored(row) for state, row in rows.items()} == before
    answer = {**chosen(action, *rows.values()), **answers, "reason": "r", CONFIRMED: "yes"}
    boss.post(address(Photo), answer)
    assert {state for state, row in rows.items() if stored(row) != before[state]} == changed


def test_all_that_the_filters_match_are_meant_and_no_others(boss: Client) -> None:
    rows = make(Photo, 7, url=lambda i: "yes" if i < 5 else "no")
    boss.post(f"{address(Photo)}?q=yes", all_of("claim_pause_rows", rows[0]))
    assert [facts(row).status for row in rows] == ["paused"] * 5 + ["open"] * 2


def test_a_queryset_that_counts_related_rows_can_be_acted_on(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = admin.site._registry[Child]
    usual = type(site).get_queryset
    monkeypatch.setattr(
        type(site),
        "get_queryset",
        lambda self, request: usual(self, request).annotate(n=Count("parent_ptr__pk")).distinct(),
        raising=False,
    )
    rows = make(Child, 3)
    answer = boss.post(address(Child), all_of("claim_pause_rows", rows[0]))
    assert said(answer) == "3 rows were paused."


# Many rows


def test_many_rows_are_done_in_portions_and_every_one_is_accounted_for(
    boss: Client, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.TASKCLAIM = {"CHUNK_SIZE": 4}
    monkeypatch.setattr(sweeping, "BUDGET", 0.0)
    rows = make(Photo, 18)
    Photo.objects.filter(pk__in=[row.pk for row in rows[::3]]).pause_rows()
    data = all_of("claim_pause_rows", rows[0])
    answer = boss.post(address(Photo), data)
    portions = 1
    while answer.status_code == 200:
        assert "Go on" in answer.content.decode()
        data = {}
        for name, value in answer.context["hidden"]:
            data.setdefault(name, []).append(value)
        answer = boss.post(address(Photo), data)
        portions += 1
    assert portions == 6
    assert said(answer) == "12 rows were paused. Left alone: 6 paused."
    assert sum(act[2] for act in acts()) == 12
    assert {facts(row).status for row in rows} == {"paused"}


@pytest.mark.parametrize("model", [UuidKey, TextKey, Child])
def test_portions_go_on_behind_any_key(
    boss: Client, monkeypatch: pytest.MonkeyPatch, settings: Any, model: Any
) -> None:
    settings.TASKCLAIM = {"CHUNK_SIZE": 2}
    monkeypatch.setattr(sweeping, "BUDGET", 0.0)
    rows = make(model, 5)
    data: dict[str, Any] = all_of("claim_pause_rows", rows[0])
    answer = boss.post(address(model), data)
    while answer.status_code == 200:
        data = {}
        for name, value in answer.context["hidden"]:
            data.setdefault(name, []).append(value)
        answer = boss.post(address(model), data)
    assert said(answer) == "5 rows were paused."


@pytest.fixture
def under_way(boss: Client, monkeypatch: pytest.MonkeyPatch, settings: Any) -> dict[str, Any]:
    """What the page of a sweep over photos that has done two of five would send."""
    settings.TASKCLAIM = {"CHUNK_SIZE": 2}
    monkeypatch.setattr(sweeping, "BUDGET", 0.0)
    rows = make(Photo, 5)
    page = boss.post(address(Photo), all_of("claim_pause_rows", rows[0]))
    sent: dict[str, Any] = {}
    for name, value in page.context["hidden"]:
        sent.setdefault(name, []).append(value)
    return sent


@pytest.mark.parametrize(
    ("model", "query", "changed"),
    [
        (ClaimOnly, "", {}),
        (UuidKey, "", {}),
        (TextKey, "", {}),
        (Photo, "", {"action": "claim_resume_rows"}),
        (Photo, "", {"select_across": "0"}),
        (Photo, "?q=yes", {}),
        (Photo, "", {sweeping.FIELD: "nonsense"}),
        (Photo, "", {sweeping.FIELD: ""}),
    ],
)
def test_a_portion_counts_only_where_it_came_from(
    boss: Client, under_way: dict[str, Any], model: Any, query: str, changed: dict[str, str]
) -> None:
    """Of another model, action, selection or list, or a forged one, it does nothing and says so."""
    rows = [*make(model, 3), *Photo.objects.order_by("pk")]
    before = [stored(row) for row in rows]
    answer = boss.post(address(model) + query, under_way | changed)
    assert answer.status_code == 302
    assert said(answer).startswith("Nothing was done: this page is too old, or belongs to another")
    assert [stored(row) for row in rows] == before
    assert len(acts()) == 1


def test_a_portion_of_somebody_else_or_of_another_database_is_refused(
    boss: Client, login: Any, under_way: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    eve = login(superuser=True, name="eve")
    assert "Nothing was done" in said(eve.post(address(Photo), under_way))
    with monkeypatch.context() as patch:
        patch.setattr(sweeping, "alias_of", lambda rows: "other")
        assert "Nothing was done" in said(boss.post(address(Photo), under_way))
    assert boss.post(address(Photo), under_way).status_code == 200


def test_the_answer_for_one_row_counts_for_no_other(boss: Client) -> None:
    one, other = make(Photo, 2)
    shown = shown_on(boss.get(act_on(Photo, "pause-row", one)))
    answer = boss.post(act_on(Photo, "pause-row", other), shown)
    assert "Nothing was done: this has changed" in answer.content.decode()
    assert facts(other).status == "open"


def test_more_rows_than_are_quickly_counted_are_asked_about(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_taskclaim.admin import actions, switching

    for module in (actions, switching):
        monkeypatch.setattr(module, "MOST", 3)
    rows = make(Photo, 5)
    page = boss.post(address(Photo), all_of("claim_pause_rows", rows[0]))
    assert "More than 3 rows, all that the filters match" in page.content.decode()
    assert facts(rows[0]).status == "open"
    boss.post(address(Photo), all_of("claim_pause_rows", rows[0], **{CONFIRMED: "yes"}))
    assert {facts(row).status for row in rows} == {"paused"}
