"""The list and the change page show claims of any model, and no form writes a claim column."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.utils import quote
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext

from django_taskclaim.admin import mixin
from django_taskclaim.admin.display import STATES
from django_taskclaim.control.models import ClaimEvent
from tests.admin.room import act_on, address, in_states, overview, perform, text_of
from tests.factories import make
from tests.querysets.support import facts, names, set_raw, stored
from tests.testapp.admin import PrefixedAdmin
from tests.testapp.models import Child, ClaimOnly, Photo, PrefixedOwnStatus, TextKey, UuidKey

pytestmark = [pytest.mark.once, pytest.mark.django_db(databases=["default", "other"])]

MODELS = [Photo, ClaimOnly, UuidKey, TextKey, PrefixedOwnStatus, Child]


def listed(client: Client, query: str = "") -> list[Any]:
    return [row.pk for row in client.get(f"{address(Photo)}?{query}").context["cl"].result_list]


# What is shown


@pytest.mark.parametrize("model", MODELS)
def test_every_state_is_shown_in_the_list_and_on_the_page(boss: Client, model: Any) -> None:
    rows = in_states(model)
    page = text_of(boss.get(address(model)))
    for kind, row in rows.items():
        assert str(STATES[kind]) in page
        assert str(STATES[kind]) in text_of(boss.get(address(model, "change", quote(row.pk))))


@pytest.mark.parametrize("use_tz", [True, False])
def test_holder_lease_tries_and_error_are_shown_in_plain_words(boss: Client, use_tz: bool) -> None:
    with override_settings(USE_TZ=use_tz):
        rows = in_states(Photo)
        set_raw(rows["processing"], "claimed_by", "'worker-3@web-2:811#abc'")
        set_raw(rows["failed"], "last_error", "%s", ["gone\n\nTraceback (most recent call last):"])
        set_raw(rows["waiting"], "last_error", "%s", [f"{'x' * 99} to its end"])
        page = text_of(boss.get(address(Photo)))
        for words in (
            r"open 2 waiting running 2 expired complete 1 failed 1 paused 1 ",
            r"Failed with LookupError ",
            r"Reset all failed rows Control room ",
            r"held by worker-3@web-2:811, \d+ (min|s) left",
            r"try 1 of 5",
            r"tried 1 of 5 next in \d min",
            r"lease ended 1 h ago",
            r"LookupError gone",
        ):
            assert re.search(words, page), words
        assert "Traceback" not in page
        for state, words in (
            ("complete", "Claimed at .*Completed at "),
            ("failed", "failed LookupError gone .*Reset .*Traceback.* Url"),
            ("expired", "Claimed at .*Expires at "),
            ("waiting", r"next in \d min .*x to its end"),
        ):
            page = text_of(boss.get(address(Photo, "change", rows[state].pk)))
            assert ("Traceback" in page) == (state == "failed")
            assert re.search(words, page), words


@pytest.mark.parametrize("named", [["testapp.Photo"], []])
def test_a_stored_history_is_shown_step_by_step(
    boss: Client, django_capture_on_commit_callbacks: Any, settings: Any, named: list[str]
) -> None:
    """An act in the same words whether all of the history is kept, or acts alone."""
    settings.TASKCLAIM = {"HISTORY": named}
    (row,) = make(Photo)
    began = datetime(2026, 3, 1, 12, tzinfo=UTC)
    facts = {"model": "testapp.photo", "key": str(row.pk), "holder": "worker-1@web-1:7#a"}
    for event, seconds, detail in (("claimed", 0, ""), ("lost", 90, "<i>gone</i>")):
        at = began + timedelta(seconds=seconds)
        ClaimEvent.objects.create(event=event, at=at, detail=detail, **facts)
    with django_capture_on_commit_callbacks(execute=True):
        perform(boss, act_on(Photo, "pause-rows", row), {"reason": "too large"})
    page = text_of(boss.get(address(Photo, "change", row.pk)))
    for step in ("claimed by worker-1@web-1:7", "lost by worker-1@web-1:7, after 1 min 30 s"):
        assert step in page
    assert "&lt;i&gt;gone" in page
    assert "paused by boss, too large" in page


def test_a_row_whose_key_is_a_word_of_our_addresses_has_its_page(boss: Client) -> None:
    make(TextKey, key="claim")
    assert boss.get(address(TextKey, "change", "claim")).status_code == 200


def test_a_row_with_an_empty_key_is_listed(boss: Client) -> None:
    make(TextKey, 2, key=lambda i: "b" * i)
    assert "2 text keys" in text_of(boss.get(address(TextKey)))


def test_scripts_in_key_holder_error_and_reason_stay_text(boss: Client) -> None:
    evil = "<script>alert(1)</script>"
    (row,) = make(TextKey, key=evil)
    TextKey.objects.claim_batch(1)
    set_raw(row, "claimed_by", "%s", [f"{evil}@{evil}#1"])
    set_raw(row, "last_error", "%s", [f"{evil}\n\n{evil}"])
    set_raw(row, "error_class", "%s", [evil])
    boss.post(overview("testapp.textkey", "pause"), {"reason": evil})
    pages = [address(TextKey), address(TextKey, "change", quote(row.pk))]
    pages += [act_on(TextKey, act, row) for act in ("reset", "release")]
    for page in pages:
        text = boss.get(page).content.decode()
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert" in text
    TextKey.objects.filter(pk=row.pk).fail_rows(evil, running=True)
    pages += [address(TextKey, "history", quote(row.pk)), "/admin/"]
    for page in (*pages, f"{address(TextKey)}?claim_error={evil}"):
        assert "<script>alert" not in boss.get(page).content.decode()


# Forms


@pytest.mark.promise(3)
@pytest.mark.parametrize("model", MODELS)
def test_a_stale_or_forged_form_changes_no_claim_column(boss: Client, model: Any) -> None:
    """The page was opened when the row was open and is sent, claim columns added, when another holds it."""
    row = in_states(model)["processing"]
    url = address(model, "change", quote(row.pk))
    form = boss.get(url).context["adminform"].form
    assert not set(form.fields) & (set(names(model).values()) - {"priority", "claim_priority"})
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
    sent = {"url": "u", "counter": 0, "status": "processing", "claimed_by": "me"}
    boss.post(address(Photo, "add"), sent)
    row = Photo.objects.get()
    assert (facts(row).status, facts(row).claimed_by) == ("open", None)


def test_an_edited_list_writes_the_users_columns_only(boss: Client) -> None:
    row = in_states(UuidKey)["processing"]
    before = stored(row)
    formset = boss.get(address(UuidKey)).context["cl"].formset
    data: dict[str, Any] = {"_save": "Save"}
    for form in [formset.management_form, *formset.forms]:
        data |= {form.add_prefix(name): form[name].value() for name in form.fields}
    place = next(form.prefix for form in formset.forms if form.instance.pk == row.pk)
    assert boss.post(address(UuidKey), {**data, f"{place}-note": "n"}).status_code == 302
    assert stored(row) == {**before, "UuidKey.note": "n"}


# Lists of any length


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
        ("claim_error=%00", None),
    ],
)
def test_a_filter_shows_the_rows_that_it_names(
    boss: Client, query: str, kinds: set[str] | None
) -> None:
    rows = in_states(Photo)
    wanted = rows if kinds is None else {kind: rows[kind] for kind in kinds}
    assert set(listed(boss, query)) == {row.pk for row in wanted.values()}


def test_a_filter_by_an_error_that_no_row_has_any_more_shows_no_row(boss: Client) -> None:
    make(Photo, 2)
    assert listed(boss, "claim_error=LookupError") == []


def test_a_filter_of_the_users_stays_beside_ours(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(PrefixedOwnStatus, 3, claim_priority=lambda i: i)
    monkeypatch.setattr(PrefixedAdmin, "list_filter", ["claim_priority"])
    page = boss.get(f"{address(PrefixedOwnStatus)}?claim_priority=2&claim_state=open")
    assert "?claim_priority=2&amp;claim_state=failed" in page.content.decode()
    assert "open 3" not in text_of(page)


def test_a_list_that_is_searched_has_no_counts_of_states(boss: Client) -> None:
    in_states(Photo)
    for query, words in (
        ("?_facets=True", "failed 1 paused 1 Failed with LookupError Reset all failed rows"),
        ("?q=nothing", "failed paused Failed with LookupError Reset all failed rows"),
    ):
        assert words in text_of(boss.get(address(Photo) + query))


def test_a_list_of_one_state_has_the_order_in_which_rows_are_claimed(boss: Client) -> None:
    first, second, third = (row.pk for row in make(Photo, 3, priority=lambda i: i % 2))
    Photo.objects.pause_rows()
    assert listed(boss, "claim_state=paused") == [second, first, third]
    assert listed(boss) == [third, second, first]
    assert listed(boss, "claim_state=paused&o=1") == [first, second, third]


@pytest.mark.parametrize("query", ["", "claim_state=open", "q=photos"])
def test_a_large_table_is_never_counted_to_its_end(
    boss: Client, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """Then its size is nowhere shown as exact."""
    monkeypatch.setattr(mixin, "MOST_COUNTED", 15)
    make(Photo, 20)
    with CaptureQueriesContext(connection) as sent:
        page = boss.get(f"{address(Photo)}?{query}")
    assert "Select all more than 15 photos" in text_of(page)
    assert not re.search("(?<!more than )15 (photos|results|selected)", text_of(page))
    counts = [one["sql"] for one in sent if "COUNT(" in one["sql"]]
    # Those by state are estimated where the table is large.
    counts = [one for one in counts if "testapp_photo" in one and "GROUP BY" not in one]
    assert counts
    assert all("LIMIT" in one for one in counts)
