"""What the list and the change page show of claims, whatever the model and its admin are like."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.core.paginator import Paginator
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_taskclaim import policy
from django_taskclaim.admin import counting
from django_taskclaim.completion import Clear
from django_taskclaim.control.models import ClaimEvent
from django_taskclaim.querysets.scope import Desk
from django_taskclaim.switch import pause
from tests.behaviour.support import facts, names, set_raw, stored
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

pytestmark = pytest.mark.django_db

MODELS = [Photo, ClaimOnly, UuidKey, TextKey, PrefixedOwnStatus, Child, HiddenRows]


def address(model: Any, page: str = "changelist", *args: Any) -> str:
    return reverse(f"admin:testapp_{model._meta.model_name}_{page}", args=args)


def read(client: Client, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200, answer
    return answer.content.decode()


@pytest.mark.parametrize("model", MODELS)
def test_every_state_has_its_pill_in_the_list_and_on_the_page(
    boss: Client, in_states: Any, model: Any
) -> None:
    rows = in_states(model)
    text = read(boss, address(model))
    for kind, row in rows.items():
        assert f"taskclaim-is-{kind}" in text
        page = read(boss, address(model, "change", quote(row.pk)))
        assert f"taskclaim-is-{kind}" in page


def test_holder_lease_tries_and_error_are_told_as_people_speak(
    boss: Client, in_states: Any
) -> None:
    rows = in_states(Photo)
    set_raw(rows["processing"], "claimed_by", "'worker-3@web-2:811#abc'")
    text = read(boss, address(Photo))
    assert re.search(r"held by worker-3 on web-2, (1 min|[45]\d s) left", text)
    assert "try 1 of 5" in text
    assert "tried 1 of 5, next in 4 min" in text
    assert "lease ended 1 h ago" in text
    assert "<b>LookupError</b> no such picture" in text


def test_people_are_called_by_their_names(boss: Client) -> None:
    make(Photo)
    Photo.objects.claim_batch(1, claimed_by="user:17", lease=1230)
    assert "held by user:17, 20 min left" in read(boss, address(Photo))


def test_the_traceback_is_folded_away(boss: Client, in_states: Any) -> None:
    row = in_states(Photo)["failed"]
    told = "gone\n\nTraceback (most recent call last):\n  File 'x'"
    set_raw(row, "last_error", "%s", [told])
    page = read(boss, address(Photo, "change", row.pk))
    assert "<details" in page
    assert "Traceback (most recent call last)" in page.split("<details")[-1]
    assert "Traceback (most" not in read(boss, address(Photo))


def test_without_a_history_the_timeline_tells_what_the_row_knows(
    boss: Client, in_states: Any
) -> None:
    rows = in_states(Photo)
    done = read(boss, address(Photo, "change", rows["complete"].pk))
    assert "taskclaim-timeline" in done
    assert "<b>claimed</b>" in done
    assert "<b>complete</b> after" in done
    assert "<b>due again</b> in 4 min" in read(boss, address(Photo, "change", rows["waiting"].pk))


def test_a_row_that_is_done_again_and_again_tells_when_it_last_was(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(policy._policies, Photo, policy.Policy(completion=Clear()))
    make(Photo)
    Photo.objects.complete(Photo.objects.claim_batch(1))
    (row,) = Photo.objects.claim_batch(1)
    page = read(boss, address(Photo, "change", row.pk))
    told = ("<b>last completed</b>", "<b>claimed</b>", "<b>lease ends</b>")
    places = [page.index(one) for one in told]
    assert places == sorted(places)
    assert "<b>complete</b>" not in page


def test_with_a_history_the_timeline_tells_it_all(boss: Client) -> None:
    (row,) = make(Photo)
    began = datetime(2026, 3, 1, 12, tzinfo=UTC)
    told = [
        ("claimed", 0, "worker-1@web-1:7#a", 1, ""),
        ("renewed", 30, "worker-1@web-1:7#a", 12, ""),
        ("lost", 90, "worker-1@web-1:7#a", 1, "<i>gone</i>"),
        ("claimed", 100, "worker-2@web-2:8#b", 1, ""),
        ("completed", 142, "worker-2@web-2:8#b", 1, ""),
        ("taken back", 150, "", 1, ""),
    ]
    for event, seconds, holder, times, detail in told:
        ClaimEvent.objects.create(
            model="testapp.photo",
            key=str(row.pk),
            event=event,
            holder=holder,
            at=began + timedelta(seconds=seconds),
            times=times,
            detail=detail,
        )
    page = read(boss, address(Photo, "change", row.pk))
    assert page.count('class="taskclaim-step') == len(told)
    assert "<b>claimed</b> by worker-1 on web-1</li>" in page
    assert "<b>renewed</b> by worker-1 on web-1, 12×</li>" in page
    assert "<b>lost</b> by worker-1 on web-1, after 1 min, &lt;i&gt;gone&lt;/i&gt;</li>" in page
    assert "<b>complete</b> by worker-2 on web-2, after 42 s</li>" in page


@pytest.mark.parametrize("model", MODELS)
def test_no_form_has_a_field_for_a_claim_column(boss: Client, in_states: Any, model: Any) -> None:
    row = in_states(model)["processing"]
    own = set(names(model).values()) - {"priority", "claim_priority"}
    for url in (address(model, "change", quote(row.pk)), address(model, "add"), address(model)):
        text = read(boss, url)
        fields = set(re.findall(r'name="(?:form-\d+-)?(\w+)"', text))
        assert not fields & own


@pytest.mark.parametrize("model", MODELS)
def test_a_stale_form_changes_no_claim_column(boss: Client, in_states: Any, model: Any) -> None:
    """The page was opened when the row was open; it is sent when another has claimed it, claim columns and all."""
    row = in_states(model)["processing"]
    url = address(model, "change", quote(row.pk))
    form = boss.get(url).context["adminform"].form
    data = {name: value for name, value in form.initial.items() if value is not None}
    forged = {name: "complete" if role == "status" else "0" for role, name in names(model).items()}
    before = facts(row)
    answer = boss.post(url, {**forged, **data, "note": "mine", "priority": data.get("priority", 0)})
    assert answer.status_code == 302, answer.context["errors"]
    row.refresh_from_db()
    assert row.note == "mine"
    assert facts(row) == before
    row.claim.complete()


def test_a_row_is_added_open_whatever_the_form_says(boss: Client) -> None:
    boss.post(
        address(Photo, "add"),
        {"url": "u", "counter": 0, "status": "processing", "claimed_by": "me"},
    )
    row = Photo.objects.get()
    assert (facts(row).status, facts(row).claimed_by) == ("open", None)


def test_a_list_that_is_edited_writes_what_is_the_users_only(boss: Client, in_states: Any) -> None:
    row = in_states(UuidKey)["processing"]
    before = stored(row)
    listed = boss.get(address(UuidKey)).context["cl"].formset
    data: dict[str, Any] = {"_save": "Save"}
    for form in [listed.management_form, *listed.forms]:
        data |= {form.add_prefix(name): form[name].value() for name in form.fields}
    place = next(form.prefix for form in listed.forms if form.instance.pk == row.pk)
    assert boss.post(address(UuidKey), {**data, f"{place}-note": "n"}).status_code == 302
    assert {**before, "UuidKey.note": "n"} == stored(row)


def test_the_number_of_queries_does_not_grow_with_the_rows(boss: Client, in_states: Any) -> None:
    counts = []
    for _ in range(2):
        for _ in range(3):
            in_states(Photo)
        read(boss, address(Photo))
        with CaptureQueriesContext(connection) as sent:
            read(boss, address(Photo))
        counts.append(len(sent))
    assert counts[0] == counts[1]
    assert counts[0] <= 16, "\n".join(query["sql"] for query in sent)


@pytest.mark.parametrize(
    ("query", "kinds"),
    [
        ("claim_state=failed", {"failed"}),
        ("claim_state=waiting", {"waiting"}),
        ("claim_state=expired", {"expired"}),
        ("claim_state=processing", {"processing", "expired"}),
        ("claim_state=open", {"open", "waiting"}),
        ("claim_state=nonsense", None),
        ("claim_error=LookupError", {"failed"}),
        ("claim_error=Nothing", set()),
        ("claim_age=1m", set()),
        ("claim_age=nonsense", None),
        ("claim_holder=%00", None),
    ],
)
def test_filters(boss: Client, in_states: Any, query: str, kinds: set[str] | None) -> None:
    rows = in_states(Photo)
    answer = boss.get(f"{address(Photo)}?{query}")
    found = {row.pk for row in answer.context["cl"].result_list}
    wanted = rows if kinds is None else {kind: rows[kind] for kind in kinds}
    assert found == {row.pk for row in wanted.values()}


def test_the_filter_of_holders_takes_the_batches_of_a_worker_together(boss: Client) -> None:
    make(Photo, 4)
    Photo.objects.claim_batch(1, claimed_by="user:17")
    held = Photo.objects.claim_batch(3)
    for row, holder in zip(held, ("a@x:1#1", "a@x:1#2", "b@x:2#3"), strict=True):
        set_raw(row, "claimed_by", "%s", [holder])
    answer = boss.get(address(Photo), {"claim_holder": "a@x:1#"})
    assert {row.pk for row in answer.context["cl"].result_list} == {row.pk for row in held[:2]}
    text = answer.content.decode()
    assert ">a on x</a>" in text
    assert ">user:17</a>" in text
    people = boss.get(address(Photo), {"claim_holder": "user:17"}).context["cl"].result_list
    assert len(people) == 1


def test_a_list_filtered_by_state_has_the_order_of_the_claim_index_unless_one_is_asked_for(
    boss: Client,
) -> None:
    rows = make(Photo, 3, priority=lambda i: i % 2)
    Photo.objects.pause_rows()
    keys = [row.pk for row in rows]

    def shown(query: str) -> list[int]:
        return [row.pk for row in boss.get(f"{address(Photo)}?{query}").context["cl"].result_list]

    assert shown("claim_state=paused") == [keys[1], keys[0], keys[2]]
    assert shown("") == keys[::-1]
    assert shown("claim_state=paused&o=1") == keys


@pytest.mark.parametrize("state", ["open", "processing", "complete", "failed", "paused"])
@pytest.mark.parametrize("model", [Photo, PrefixedOwnStatus])
def test_a_list_filtered_by_state_is_found_by_an_index_that_has_its_order(
    boss: Client, model: Any, state: str
) -> None:
    """PostgreSQL's claim index leaves complete rows out, so there one walks along the keys."""
    make(model, 3)
    changes = boss.get(address(model), {"claim_state": state}).context["cl"]
    desk = Desk.of(model, "default")
    statement = desk.dialect.compiled(changes.queryset, 100, model._meta.concrete_fields)
    plan = desk.dialect.explain(statement, desk.table, may_sort=False)
    assert plan is not None
    assert not plan.sorts, plan.lines
    by_key = state == "complete" and desk.dialect.leaves_out_complete
    assert by_key or not plan.scans, plan.lines


@pytest.mark.parametrize("query", ["", "claim_state=open", "claim_state=waiting", "q=photos"])
def test_a_large_table_is_not_counted(
    boss: Client, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """Every COUNT has a bound; what is beyond it is estimated, or left at the bound."""
    monkeypatch.setattr(counting, "MOST", 10)
    monkeypatch.setattr(counting, "MOST_MATCHES", 15)
    make(Photo, 20)
    with CaptureQueriesContext(connection) as sent:
        count = boss.get(f"{address(Photo)}?{query}").context["cl"].result_count
    counts = [
        one["sql"] for one in sent if "COUNT(" in one["sql"] and "testapp_photo" in one["sql"]
    ]
    counts = [one for one in counts if not one.startswith("EXPLAIN")]
    assert counts
    assert all("LIMIT" in one for one in counts)
    assert count == 0 if query == "claim_state=waiting" else count > 10


def far_pages(monkeypatch: pytest.MonkeyPatch, believed: int | None, per_page: int = 7) -> Any:
    """Return a paginator of 45 rows in an order of their own, of which so many are believed to be."""
    monkeypatch.setattr(counting, "MOST", 10)
    monkeypatch.setattr(counting, "MOST_MATCHES", 30)
    monkeypatch.setattr(counting, "_believed", lambda rows, state: believed)
    make(Photo, 45, priority=lambda i: i % 3)
    return counting.BoundedPaginator(Photo.objects.order_by("-priority", "pk"), per_page)


@pytest.mark.parametrize("per_page", [5, 7, 45])
def test_pages_far_from_the_first_are_the_same_rows_in_the_same_order(
    monkeypatch: pytest.MonkeyPatch, per_page: int
) -> None:
    pages = far_pages(monkeypatch, 45, per_page)
    usual = Paginator(pages.object_list, per_page)
    assert pages.num_pages == usual.num_pages
    for number in pages.page_range:
        assert list(pages.page(number)) == list(usual.page(number)), number
        assert pages.page(number).number == number


def test_the_last_pages_are_reached_from_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = far_pages(monkeypatch, 45)
    with CaptureQueriesContext(connection) as sent:
        for number in pages.page_range:
            list(pages.page(number))
    passed_over = [
        int(found[1]) for one in sent if (found := re.search(r"OFFSET (\d+)", one["sql"]))
    ]
    assert max(passed_over) < 45 / 2


@pytest.mark.parametrize("believed", [38, 52])
def test_the_last_page_has_the_last_rows_though_their_number_is_an_estimate(
    monkeypatch: pytest.MonkeyPatch, believed: int
) -> None:
    pages = far_pages(monkeypatch, believed)
    last = list(pages.page(pages.num_pages))
    assert last
    assert last == list(pages.object_list)[-len(last) :]


def test_where_rows_are_counted_up_to_a_bound_pages_are_reached_from_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = far_pages(monkeypatch, None)
    assert pages.count == 30
    assert list(pages.page(5)) == list(pages.object_list)[28:30]


def test_a_far_page_of_a_list_that_is_edited_in_place_is_shown(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "MOST", 10)
    monkeypatch.setattr(counting, "_believed", lambda rows, state: 130)
    make(UuidKey, 130)
    answer = boss.get(address(UuidKey), {"p": 2})
    assert answer.status_code == 200
    assert len(answer.context["cl"].result_list) == 30
    assert 'name="form-29-note"' in answer.content.decode()


def test_raw_columns_that_the_user_lists_are_told_in_words_where_they_stand(boss: Client) -> None:
    make(UuidKey)
    shown = boss.get(address(UuidKey)).context["cl"].list_display
    words = ("claim_state", "note", "claim_holder", "claim_tries", "claim_error")
    assert list(shown) == ["action_checkbox", "id", *words, "actions_holder"]


def test_columns_of_the_users_own_with_our_names_stay_theirs(boss: Client) -> None:
    make(PrefixedOwnStatus, status="draft")
    shown = boss.get(address(PrefixedOwnStatus)).context["cl"].list_display
    assert list(shown[:5]) == ["action_checkbox", "pk", "claim_told", "status", "priority"]
    assert "draft" in read(boss, address(PrefixedOwnStatus))


def test_a_base_of_the_users_own_keeps_its_filters_and_actions(boss: Client) -> None:
    (row,) = make(ClaimOnly)
    text = read(boss, address(ClaimOnly))
    assert "By counter" in text
    data = {"action": "shout", "_selected_action": [row.pk]}
    assert "1 shouted" in boss.post(address(ClaimOnly), data, follow=True).content.decode()


@pytest.mark.django_db(databases=["default", "other"])
def test_the_list_says_when_the_model_is_paused(boss: Client) -> None:
    pause(Photo, by="anna", reason="<b>deploy</b>")
    text = read(boss, address(Photo))
    assert "Paused by anna since" in text
    assert "&lt;b&gt;deploy" in text
    assert "<b>deploy" not in text


def test_scripts_in_key_holder_and_error_are_text(boss: Client) -> None:
    evil = "<script>alert(1)</script>"
    (row,) = make(TextKey, key=evil)
    (row,) = TextKey.objects.claim_batch(1)
    set_raw(row, "claimed_by", "%s", [f"{evil}@{evil}#1"])
    set_raw(row, "last_error", "%s", [f"{evil}\n\n{evil}"])
    set_raw(row, "error_class", "%s", [evil])
    pages = [address(TextKey), address(TextKey, "change", quote(row.pk))]
    pages += [address(TextKey, f"claim_{act}", quote(row.pk)) for act in ("reset", "take_back")]
    for page in pages:
        text = read(boss, page)
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert" in text
    set_raw(row, "status", "'failed'")
    for page in (*pages, f"{address(TextKey)}?claim_error={evil}&claim_holder={evil}"):
        assert "<script>alert" not in read(boss, page)


@pytest.mark.django_db(databases=["default", "other"])
@override_settings(USE_TZ=False)
def test_moments_are_told_where_the_project_keeps_naive_ones(boss: Client, in_states: Any) -> None:
    rows = in_states(Photo)
    pause(Photo, by="eve", until=600)
    assert "Paused by eve since" in read(boss, address(Photo))
    assert "paused by eve since" in read(boss, address(Photo, "claim_resume"))
    for state, told in (("complete", "complete"), ("failed", "failed"), ("expired", "lease ended")):
        page = read(boss, address(Photo, "change", rows[state].pk))
        timeline = page.partition('<ol class="taskclaim-timeline">')[2].partition("</ol>")[0]
        assert f"<b>{told}</b>" in timeline
