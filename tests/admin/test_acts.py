"""Every act of an operator: who may do it and how, what it changes, and what is recorded."""

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connections, transaction
from django.test import Client
from django.urls import resolve
from django.utils.http import urlencode

from django_taskclaim.admin import actions
from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.switch import pause, pause_all
from tests.admin.acts import ACTS, Act, clear, scene, world
from tests.admin.room import (
    OPERATE,
    VIEW,
    act_on,
    address,
    chosen,
    failed,
    group_of,
    in_states,
    perform,
    photos,
    recorded,
    run_action,
    said,
    somebody,
    text_of,
)
from tests.factories import make
from tests.querysets.support import facts, stored
from tests.testapp.admin import PhotoAdmin
from tests.testapp.models import Child, ClaimOnly, Photo, PrefixedOwnStatus, TextKey, UuidKey

pytestmark = [pytest.mark.once, pytest.mark.django_db(databases=["default", "other"])]


@pytest.fixture
def rows(boss: Client) -> Any:
    return scene(boss)


def changed(before: dict[str, Any], rows: Any) -> dict[str, Any]:
    return {name: value for name, value in world(rows).items() if value != before[name]}


GRANTED = {
    "nothing": (),
    "to look": VIEW,
    "to change photos": ("testapp.view_photo", "testapp.change_photo"),
    "to operate": OPERATE,
    "to delete": (*VIEW, "testapp.delete_photo"),
    "to operate on other models": (
        *VIEW,
        "taskclaim_control.operate",
        "taskclaim_control.configure",
        "testapp.change_uuidkey",
    ),
}


def test_no_act_is_done_without_a_post_with_csrf_and_its_permissions(
    boss: Client, rows: Any
) -> None:
    """A GET, a forged POST and a user without the permissions change nothing."""
    before = world(rows)
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = boss.cookies
    denied = {allowed: somebody(*granted) for allowed, granted in GRANTED.items()}
    for where in {act.where(rows) for act in ACTS}:
        for answer in (boss.get(where), boss.head(where)):
            assert answer.status_code in {200, 302}, where
    # Who may not act is not told whether there is such a row.
    assert denied["to look"].get(address(Photo, "claim", "0", "reset")).status_code == 403
    for act in ACTS:
        where, confirmed = act.where(rows), act.sent(rows) | {"taskclaim_confirmed": "yes"}
        assert boss.get(where, act.sent(rows)).status_code in {200, 302, 404}, act.name
        assert strict.post(where, confirmed).status_code == 403, act.name
        assert Client().post(where, act.sent(rows)).status_code in {302, 403}, act.name
        for allowed, client in denied.items():
            if not act.is_allowed(GRANTED[allowed]):
                answer = client.post(where, confirmed)
                assert answer.status_code == 403 or act.action, (act.name, allowed)
        assert (changed(before, rows), recorded()) == ({}, []), act.name


def test_an_act_is_done_by_somebody_with_its_permissions_and_is_recorded(rows: Any) -> None:
    for act in ACTS:
        with undone():
            perform_and_compare(act, somebody(*act.needs, name="ada"), rows)


@contextmanager
def undone() -> Iterator[None]:
    """Undo what the block does."""
    one, other = transaction.atomic("default"), transaction.atomic("other")
    # They count as no transaction, as those of a TestCase do.
    one._from_testcase = other._from_testcase = True
    with one, other:
        yield
        for alias in ("default", "other"):
            transaction.set_rollback(True, using=alias)


@pytest.mark.parametrize("allowed", GRANTED)
def test_pages_offer_no_act_to_somebody_who_may_not_do_it(rows: Any, allowed: str) -> None:
    client = somebody(*GRANTED[allowed])
    pages = (address(Photo), address(Photo, "change", rows["open"].pk), photos())
    text = "".join(client.get(page).content.decode() for page in pages)
    assert ("taskclaim-menu" in text) == (VIEW[0] in GRANTED[allowed])
    for act in ACTS:
        if not act.is_allowed(GRANTED[allowed]):
            assert f'href="{act.where(rows)}' not in text or act.action, act.name
            assert not act.action or f'value="{act.action}"' not in text, act.name


def perform_and_compare(act: Act, ada: Client, rows: Any) -> None:
    act.first()
    before = world(rows)
    answer = act.send(ada, rows)
    assert answer.status_code == 302, (act.name, text_of(answer))
    assert changed(before, rows) == act.changes, act.name
    done = recorded()[-1]
    assert done[:4] == ("*" if act.is_of_all else "testapp.photo", act.record, act.rows, "ada")
    assert ("why" in done[4]) == ("reason" in act.typed)
    assert LogEntry.objects.filter(user__username="ada").count() >= 1


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_the_acts_of_every_view_do_the_same_under_atomic_requests(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, rows, one_of_each = somebody(name="ada", is_superuser=True), scene(boss), {}
    for act in ACTS:
        view = resolve(act.where(rows).partition("?")[0])
        one_of_each[view.view_name, view.kwargs.get("page"), "reason" in act.typed] = act
    clear()
    with monkeypatch.context() as patch:
        for alias in connections:
            patch.setitem(connections[alias].settings_dict, "ATOMIC_REQUESTS", True)
        for act in one_of_each.values():
            perform_and_compare(act, ada, scene(boss))
            clear()


def test_without_the_control_app_the_models_own_permissions_count(settings: Any) -> None:
    settings.INSTALLED_APPS = [
        name for name in settings.INSTALLED_APPS if name != "django_taskclaim.control"
    ]
    row = in_states(Photo)["failed"]
    assert somebody("testapp.view_photo").get(act_on(Photo, "reset", row)).status_code == 403
    client = somebody("testapp.change_photo", "testapp.view_photo")
    assert client.get(address(Photo)).status_code == 200
    perform(client, act_on(Photo, "reset", row), {"reason": "again"})
    assert facts(row).status == "open"
    assert "again" in LogEntry.objects.get(object_id=str(row.pk)).change_message


# Rows


@pytest.mark.parametrize("model", [ClaimOnly, UuidKey, TextKey, PrefixedOwnStatus, Child])
def test_buttons_and_actions_find_rows_by_any_key(boss: Client, model: Any) -> None:
    rows = in_states(model)
    late = boss.get(act_on(model, "release", rows["complete"]))
    assert "Nothing can be done: this is for rows in the state running." in text_of(late)
    assert '<input type="submit"' not in late.content.decode()
    perform(boss, act_on(model, "pause-rows", rows["open"]), {"reason": "r"})
    assert facts(rows["open"]).status == "paused"
    assert recorded()[-1][5] == str(rows["open"].pk)[:255]
    answer = run_action(boss, address(model), chosen("claim_reset", *rows.values()))
    assert facts(rows["failed"]).status == "open"
    assert said(answer).startswith(f"1 {model._meta.verbose_name} was reset. Left alone: ")
    assert said(answer).endswith("2 running, 1 complete, 2 paused.")


def test_a_row_in_back_off_runs_at_the_moment_that_is_typed(boss: Client) -> None:
    rows = in_states(Photo)
    assert act_on(Photo, "run", rows["open"]) not in boss.get(address(Photo)).content.decode()
    perform(boss, act_on(Photo, "run", rows["waiting"]), {"at": "2036-07-01T00:00"})
    assert facts(rows["waiting"]).not_before.year == 2036


def retry(client: Client) -> Any:
    return perform(client, photos("retry", group=group_of(client)), {"reason": "why"})


def button(client: Client) -> Any:
    return client.post(act_on(Photo, "reset"), {"reason": "why"})


def action(client: Client) -> Any:
    sent = chosen("claim_reset", Photo.objects.earliest("pk"), select_across="1")
    return run_action(client, address(Photo), sent)


@pytest.mark.parametrize("press", [retry, button, action])
def test_what_takes_too_long_goes_on_when_pressed_again(
    boss: Client, settings: Any, monkeypatch: pytest.MonkeyPatch, press: Any
) -> None:
    """No row is reset twice, and each press is recorded with its own rows."""
    settings.TASKCLAIM = {"CHUNK_SIZE": 2}
    monkeypatch.setattr(actions, "SECONDS", 0.0)
    rows = failed(5)
    before = facts(rows[0]).iteration
    while Photo.objects.failed().exists():
        answer = press(boss)
        is_left = Photo.objects.failed().exists()
        assert said(answer).endswith("The time was up; press again for the rest.") == is_left
    assert {facts(row).iteration for row in rows} == {before + 1}
    assert [act[2] for act in recorded()] == [2, 2, 1]


@pytest.mark.promise(3)
@pytest.mark.parametrize("act", ["release", "fail", "reset"])
def test_a_running_row_is_taken_only_when_the_operator_says_so(boss: Client, act: str) -> None:
    """Its holder then gets ``ClaimLost``."""
    row = in_states(Photo)["processing"]
    where, before = act_on(Photo, act, row), stored(row)
    assert "loses it, and late writes" in text_of(boss.get(where))
    answer = perform(boss, where, {"reason": "r"})
    assert act == "release" or said(answer).endswith("Left alone: 1 running.")
    page = boss.post(address(Photo), chosen(f"claim_{act.replace('-', '_')}", row))
    assert "The holder of a running row loses it" in text_of(page)
    assert stored(row) == before
    perform(boss, where, {"reason": "r", "running": "on"})
    with pytest.raises(ClaimLost):
        row.claim.complete()


def test_an_action_on_all_rows_means_those_that_the_filters_match(
    boss: Client, settings: Any
) -> None:
    """They are done in committed chunks, and the answer counts every row."""
    settings.TASKCLAIM = {"CHUNK_SIZE": 2}
    rows = make(Photo, 7, url=lambda i: "yes" if i < 5 else "no")
    Photo.objects.filter(pk=rows[0].pk).pause_rows()
    sent = chosen("claim_pause_rows", rows[0], select_across="1")
    answer = run_action(boss, f"{address(Photo)}?q=yes", sent)
    assert [facts(row).status for row in rows] == ["paused"] * 5 + ["open"] * 2
    assert said(answer) == "4 photos were paused. Left alone: 1 paused."
    assert sum(one[2] for one in recorded()) == 4


def test_a_button_leads_back_to_its_page_and_the_list_stays_filtered(boss: Client) -> None:
    """What an address has to escape is kept."""
    (row,) = failed(1, url="yes &=#")
    where = f"{address(Photo)}?q=yes+%26%3D%23&claim_state=failed"
    kept = urlencode({"_changelist_filters": where.partition("?")[2]})
    page = f"{address(Photo, 'change', row.pk)}?{kept}"
    found = [
        (shown, html.unescape(link))
        for shown in (where, page)
        for link in re.findall(r'href="([^"#]*/claim/[^"#]*)', boss.get(shown).content.decode())
    ]
    assert [shown for shown, _link in found] == [where, where, page]
    for shown, link in found:
        assert f'href="{html.escape(where)}"' in boss.get(link).content.decode()
        with undone():
            assert perform(boss, link, {"reason": ""})["Location"] == shown, link


@pytest.mark.parametrize(
    ("failed", "words"), [(0, "There are none."), (2, "2 failed"), (3, "More than 2 rows")]
)
def test_a_button_says_how_many_rows_it_is_about(
    boss: Client, monkeypatch: pytest.MonkeyPatch, failed: int, words: str
) -> None:
    """Also where the rows of the user's admin are distinct."""
    monkeypatch.setattr(actions, "MOST", 2)
    make(Photo, failed, status="failed")
    assert words in text_of(boss.get(address(Photo, "claim", "reset")))
    monkeypatch.setattr(PhotoAdmin, "get_queryset", lambda self, request: Photo.objects.distinct())
    assert words in text_of(boss.get(address(Photo, "claim", "reset")))


def test_resuming_one_model_leaves_the_pause_of_all_and_says_so(boss: Client, rows: Any) -> None:
    pause(Photo)
    pause_all(by="eve")
    boss.post(photos("resume"), {"reason": ""})
    assert world(rows)["switch"][:2] == ("*", "eve")
    assert "All models are paused by eve" in text_of(boss.get(photos()))
