"""What may be done from the list and the pages, what is said of it, and what must not be possible."""

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.messages import get_messages
from django.db.models import Count
from django.test import Client, RequestFactory
from django.urls import reverse

from django_taskclaim.admin import sweeping
from django_taskclaim.admin.buttons import ROW_BUTTONS
from django_taskclaim.admin.confirming import CONFIRMED
from django_taskclaim.control.models import OperatorAct
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.switch import pause, pause_all, paused_by
from tests.behaviour.support import facts, set_raw, stored
from tests.factories import make
from tests.testapp.models import (
    Child,
    ClaimOnly,
    HiddenRows,
    Photo,
    PrefixedOwnStatus,
    TextKey,
    UuidKey,
)

pytestmark = pytest.mark.django_db(databases=["default", "other"])

MODELS = [Photo, ClaimOnly, UuidKey, TextKey, PrefixedOwnStatus, Child, HiddenRows]
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


def address(model: Any, page: str = "changelist", *args: Any) -> str:
    return reverse(f"admin:testapp_{model._meta.model_name}_{page}", args=args)


def act_on(model: Any, act: str, row: Any = None) -> str:
    args = () if row is None else (quote(row.pk),)
    return address(model, f"claim_{act.replace('-', '_')}", *args)


def said(answer: Any) -> str:
    return " ".join(str(message) for message in get_messages(answer.wsgi_request))


def chosen(action: str, *rows: Any, **more: Any) -> dict[str, Any]:
    return {"action": action, "_selected_action": [str(row.pk) for row in rows], **more}


def all_of(action: str, row: Any, **more: Any) -> dict[str, Any]:
    return chosen(action, row, select_across="1", **more)


def answered(client: Client, url: str, answers: dict[str, Any] | None = None) -> Any:
    """Open the page of a button, and answer it as a browser does."""
    return client.post(url, {**shown_on(client.get(url)), **(answers or {})})


def shown_on(page: Any) -> dict[str, Any]:
    """Return the hidden fields that a browser sends back."""
    return dict(page.context["hidden"])


def acts() -> list[tuple[Any, ...]]:
    fields = ("model", "act", "rows", "by", "reason", "key")
    return list(OperatorAct.objects.order_by("id").values_list(*fields))


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


@pytest.mark.parametrize("forged", ["nonsense", "x:y:z"])
def test_a_forged_portion_is_refused(boss: Client, forged: str) -> None:
    (row,) = make(Photo)
    data = chosen("claim_pause_rows", row, **{sweeping.FIELD: forged})
    assert boss.post(address(Photo), data).status_code == 400
    assert facts(row).status == "open"


def test_a_portion_of_another_act_is_refused(boss: Client) -> None:
    (row,) = make(Photo)
    user = boss.get(address(Photo)).wsgi_request.user
    other = sweeping.Sweep("resume rows", after=row.pk).dumps(user)
    data = chosen("claim_pause_rows", row, **{sweeping.FIELD: other})
    assert boss.post(address(Photo), data).status_code == 400


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


# Attempts that must fail

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
