"""What the control room shows of rows, workers, pauses, failures and settings."""

import re
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation

from django_taskclaim.admin.control_room import failures, snapshot
from django_taskclaim.control.audit import record_action
from django_taskclaim.control.models import ThroughputMinute
from django_taskclaim.querysets.writes import stop_everyone
from django_taskclaim.switch import (
    claimable_models,
    describe_pause,
    overrides_of,
    pause,
    pause_all,
    resume,
    set_overrides,
)
from django_taskclaim.tables import EVERY_MODEL, Switch, WorkerProcess
from tests.admin.room import (
    SILENT,
    VIEW,
    address,
    chosen,
    command_url,
    failed,
    form_of,
    group_of,
    overview,
    perform,
    photos,
    recorded,
    run_action,
    said,
    somebody,
    text_of,
    worker,
)
from tests.commands import run
from tests.control.test_throughput import minute
from tests.doctor.support import handling
from tests.factories import make
from tests.limits.conftest import beside
from tests.querysets.support import set_raw
from tests.testapp.models import Parent, Photo, UuidKey

pytestmark = [pytest.mark.once, pytest.mark.django_db(databases=["default", "other"])]

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def looks(db: None) -> Client:
    """Somebody who may only look."""
    return somebody(*VIEW)


def held() -> str:
    """Claim a photo as a worker process that has fallen silent, and return its name."""
    (row,) = Photo.objects.claim_batch(1, durable=False, lease=40)
    name = str(row.claim.token.holder.partition("#")[0])
    worker(name, silent=True)
    return name


# Rows


def test_every_claimable_model_has_a_page_and_is_in_the_overview(boss: Client) -> None:
    page = boss.get(overview()).content.decode()
    # Other tests define models after the addresses were made.
    known = [model for model in claimable_models() if model.__module__ == Photo.__module__]
    assert len(known) > 10
    for model in known:
        where = overview(model._meta.label_lower)
        assert f'href="{where}"' in page
        if model._meta.managed:
            assert boss.get(where).status_code == 200, model


def statements(client: Client, page: str) -> int:
    """Return how many statements the database gets for a page, beside those for the session and its user."""
    with CaptureQueriesContext(connection) as sent:
        client.get(page)
    return sum("session" not in one["sql"] and "auth_user" not in one["sql"] for one in sent)


def test_more_rows_workers_and_failures_cost_no_more_statements(boss: Client) -> None:
    failed(1)
    worker()
    make(Photo, 1)
    Photo.objects.claim_batch(1, claimed_by="user:1", durable=False)
    few = statements(boss, photos())
    assert few <= 15
    for number in range(5):
        failed(3, "abcdef"[number] * 5)
        worker(f"worker@web-2:{number}")
    assert statements(boss, photos()) == few
    assert statements(boss, photos("live")) == few


@pytest.mark.parametrize("where", [photos, overview])
def test_ten_who_look_within_two_seconds_share_what_is_read(
    boss: Client, where: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the buttons; and who has just acted sees it done. A model costs the overview three statements."""
    make(Photo, 1)
    ten = [boss, *(somebody(*VIEW) for _ in range(9))]
    monkeypatch.setattr(snapshot, "SHARED_FOR", 60.0)
    first, second, *others = [statements(one, where()) for one in ten]
    # The overview of the others has the models that they may see.
    most = (15, 0) if where is photos else (6 + 3 * len(claimable_models()), 10)
    assert (first <= most[0], second <= most[1]) == (True, True)
    assert sum(others) == 0
    for page in (where(), where("live")):
        shown = [text_of(one.get(page)).count("Pause claiming") for one in ten]
        assert shown == [1] + [0] * 9
    with monkeypatch.context() as elsewhere:
        # As django-tenants says whose tables a request is about.
        elsewhere.setattr(connection, "schema_name", "acme", raising=False)
        assert statements(ten[1], where()) > 0
    perform(boss, where("pause"), {"reason": "deploy"})
    assert "paused by boss" in text_of(boss.get(where()))
    assert "paused by boss" in text_of(somebody(is_superuser=True).get(where("live")))


def test_the_figures_above_a_list_are_shared_but_not_with_who_has_just_acted(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, where = failed(2), address(Photo)
    monkeypatch.setattr(snapshot, "SHARED_FOR", 60.0)
    first, second = statements(boss, where), statements(somebody(is_superuser=True), where)
    assert first - second >= 2
    run_action(boss, where, chosen("claim_reset", *rows))
    assert "open 2" in text_of(boss.get(where))


def test_the_percentage_is_of_complete_rows(looks: Client) -> None:
    failed(4)
    for page in (photos(), overview()):
        text = text_of(looks.get(page))
        assert re.search(r"\b0 of 4 \(?0\.0 %", text), text


def test_a_status_that_no_verb_writes_is_named_on_the_page_of_its_model(boss: Client) -> None:
    set_raw(make(Photo, 2)[0], "status", "'done'")
    assert "1 row of testapp.Photo with a status that" in text_of(boss.get(photos()))
    assert {boss.get(page).status_code for page in (overview(), address(Photo))} == {200}


def test_a_login_after_the_session_ended_leads_back_to_the_page(boss: Client) -> None:
    """The login form sends a GET to the address of the form that was lost."""
    where = photos("settings")
    assert Client().post(where).status_code == 302
    assert boss.get(where)["Location"] == photos()
    assert recorded() == []


def test_a_refresh_without_news_sends_a_token_and_no_page(boss: Client) -> None:
    make(Photo, 1)
    known = {"If-None-Match": boss.get(photos("live"))["ETag"]}
    same = boss.get(photos("live"), headers=known)
    assert (same.status_code, same.content, bool(same["Taskclaim-Token"])) == (304, b"", True)
    make(Photo, 1)
    assert boss.get(photos("live"), headers=known).status_code == 200


def test_what_runs_is_listed_the_longest_first_and_people_by_their_names(boss: Client) -> None:
    """Not those whose lease has ended, which would hide the others."""
    set_raw(*Photo.objects.filter(pk=make(Photo)[0].pk).claim_batch(1), "expires_at", "NULL")
    make(Photo, 10)
    for who in (f"user:{boss.session['_auth_user_id']}", "user:017", "user:nobody", *[None] * 7):
        Photo.objects.claim_batch(1, claimed_by=who, durable=False)
    page = text_of(boss.get(photos()))
    assert re.search(r"longest first \(8 of 10\) .*boss \(you\) .*user:017 .*nobody ", page)


# The switch


def test_a_pause_is_shown_with_who_why_and_what_still_runs(
    looks: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for workers and not for people."""
    make(Photo, 3)
    Photo.objects.claim_batch(1, claimed_by="user:17", durable=False)
    assert "OPEN Rows wait for people" in text_of(looks.get(photos()))
    pause(Photo, by="Ada", reason="deploy")
    page = text_of(looks.get(photos()))
    assert re.search("PAUSED testapp.Photo is paused by Ada .*: deploy 1 row held by people", page)
    resume(Photo)
    Photo.objects.claim_batch(2, durable=False)
    pause(Photo, by="Ada", reason="deploy")
    page = text_of(looks.get(photos()))
    assert re.search(r"PAUSING testapp.Photo is paused by Ada since .*: deploy", page)
    assert "Rows are still running." in page
    pause_all(by="Grace")
    assert "All models are paused by Grace" in text_of(looks.get(photos()))
    monkeypatch.setattr(translation._trans, "gettext", lambda text: text.replace("All", "Alle"))
    assert describe_pause(Switch.objects.get(scope=EVERY_MODEL)).startswith("Alle models are")


def test_a_model_that_a_pause_of_its_parent_stops_is_resumed_there(boss: Client) -> None:
    pause(Parent, by="eve")
    page = boss.get(overview("testapp.child")).content.decode()
    assert overview("testapp.child", "resume") not in page
    assert f'Resume it on the page of <a href="{overview("testapp.parent")}">' in page
    answer = perform(boss, overview("testapp.child", "resume"), {"reason": ""})
    assert "claiming stays paused. testapp.Parent is paused by eve since" in said(answer)
    assert "resumed" not in said(answer)


def test_a_model_with_nothing_to_do_is_idle(looks: Client) -> None:
    failed(1)
    worker()
    make(UuidKey, 1)
    UuidKey.objects.claim_batch(1, durable=False)[0].claim.complete()
    assert "IDLE" in text_of(looks.get(photos()))
    page = text_of(somebody(is_superuser=True).get(overview()))
    assert page.index("IDLE") < page.index("DONE"), "the worst first"


def throttled(reason: str) -> list[dict[str, str]]:
    """Return the throttle of a worker process as it reports that."""
    until = (datetime.now(UTC) + timedelta(days=2)).isoformat()
    return [{"label": "testapp.photo", "source": reason, "reason": reason, "until": until}]


@pytest.mark.parametrize("use_tz", [True, False])
def test_a_throttle_of_every_worker_is_shown(looks: Client, use_tz: bool, settings: Any) -> None:
    closed = beside(1, 2)
    settings.USE_TZ = use_tz
    make(Photo, 1)
    worker(throttles=throttled("replica lag 31 s"))
    assert re.search(r"THROTTLED until .*replica lag 31 s", text_of(looks.get(photos())))
    worker(SILENT, labels=["testapp.Photo", "testapp.Job"], rows_done=4711)
    assert re.search("RUNNING.* 4,711 all its models", text_of(looks.get(photos())))
    stop_everyone(Photo, "default", timedelta(minutes=9), "the API said 429")
    assert re.search(r"THROTTLED until .*everyone: the API said 429", text_of(looks.get(photos())))
    set_overrides(Photo, hours=closed)
    assert re.search(r"THROTTLED until .*hours: outside the hours", text_of(looks.get(photos())))
    WorkerProcess.objects.all().delete()
    for serves, workers in ((handling(Photo), "Start one"), (nullcontext(), "none is needed")):
        with serves:
            page = text_of(looks.get(photos()))
        assert re.search(f"THROTTLED until .*hours: outside the hours.*{workers}", page)


# Workers


def test_a_page_without_a_living_worker_promises_nothing(looks: Client) -> None:
    make(Photo, 10)
    for row in Photo.objects.claim_batch(5, durable=False):
        row.claim.complete()
    name, now = held(), timezone.now().replace(second=0, microsecond=0)
    for ago in range(1, 10):
        minute(now, ago, process=name, done=60)
    for act in ("reset", *["export"] * 12):
        record_action(Photo, act, by="ada", reason="mended")
    with handling(Photo):
        page = text_of(looks.get(photos(range="6h")))
    assert "reset, ada “mended”" in page, "the flag of the chart"
    assert re.search("NO WORKER Rows are due, and no worker is alive.* 5 of 10 ", page)
    for promise in ("RUNNING", " left", "rows/s"):
        assert promise not in page
    worker(SILENT)
    page = text_of(looks.get(photos()))
    assert re.search(r"1 worker process is alive.* about 5 s left .*silent.* \d+ s left", page)
    # The minute in which work began was not filled.
    ThroughputMinute.objects.filter(at__lt=now - timedelta(minutes=2)).delete()
    ThroughputMinute.objects.filter(at__lt=now - timedelta(minutes=1)).update(counts={"done": 6})
    assert "about 5 s left" in text_of(looks.get(photos()))
    stop_everyone(Photo, "default", timedelta(minutes=9), "the API said 429")
    assert "about 5 s left" not in text_of(looks.get(photos()))


def test_an_order_is_asked_about_and_then_shown_beside_the_worker(boss: Client) -> None:
    worker()
    assert "It finishes the rows that it holds" in text_of(boss.get(command_url("drain")))
    boss.post(command_url("drain"), {"reason": "old version"})
    assert re.search("told to.*old version", text_of(boss.get(photos())))
    answer = boss.post(command_url("drain", "left@h:1"), {"reason": ""})
    assert answer.status_code == 302
    assert "No living worker is listed as 'left@h:1'." in said(answer)
    worker(SILENT, silent=True)
    assert command_url("drain", SILENT) not in boss.get(photos()).content.decode()
    assert "Rows of one that is silent" in said(
        boss.post(command_url("drain", SILENT), {"reason": ""})
    )


# Failures


def test_what_is_counted_leads_to_the_rows(boss: Client) -> None:
    make(Photo, 2)
    failed(3, ValueError("no width"))
    page = boss.get(photos()).content.decode()
    links = re.findall(r'<a href="([^"]+\?claim_(?:state=failed|error=[^"]+))"', page)
    assert len(links) == 3, "of the bar, the list below it, the group"
    assert len(boss.get(f"{address(Photo)}?status__in=open,processing").context["cl"].queryset) == 2
    for link in links:
        rows: Any = boss.get(link).context["cl"].result_list
        assert [row.status for row in rows] == ["failed"] * 3


def test_some_of_a_group_are_retried_first_and_then_all(boss: Client, settings: Any) -> None:
    _, new, group = failed(4, "job 7 is bad"), failed(10, "job 8 is bad"), group_of(boss)
    failed(2, "the disk is full")
    assert "14 × job # is bad" in text_of(boss.get(photos("retry", group=group)))
    form = {**form_of(boss.get(photos("retry", group=group))), "first": "on"}
    for _ in range(2):  # A second click sends the same form.
        boss.post(photos("retry", group=group), form)
        assert list(Photo.objects.open().order_by("pk")) == new, "the latest"
    settings.USE_TZ = False
    perform(boss, photos("retry", group=group), {"reason": "mended"})
    assert Photo.objects.open().count() == 14
    assert {row.last_error for row in Photo.objects.failed()} == {"the disk is full"}
    assert recorded()[-1][4] == "job # is bad – mended"


def test_failures_are_grouped_by_what_went_wrong(boss: Client) -> None:
    for group in (
        ("job 17 has no width", "job 4,711 has no width"),
        ("no such file: '/srv/a.png'", "no such file: '/srv/b.png'"),
        ("HTTP 404",),
        ("HTTP 503",),
        *([letter * 5] for letter in "abcdefghij"),
    ):
        for error in group:
            failed(1, error)
    assert "and 2 more kinds of errors" in text_of(boss.get(photos())), "twelve are shown"


def test_a_group_is_marked_as_known_until_the_note_is_taken_away(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed(3, OSError("the disk is full"))
    group = group_of(boss)
    perform(boss, photos("known", group=group), {"reason": "ticket 12"})
    page = text_of(boss.get(photos()))
    assert "Known: “ticket 12” (boss)" in page
    assert "OSError: failures marked as known" in text_of(boss.get("/admin/"))
    failed(2, ValueError("no width"))
    with monkeypatch.context() as patch:
        patch.setattr(failures, "MOST", 1)
        page = text_of(boss.get(photos()))
    assert "failures marked as known OSError “ticket 12”" in page, "beyond the rows looked at"
    assert said(perform(boss, photos("known", group=group), {"reason": ""})) == "The note is gone."
    assert "ticket 12”" not in text_of(boss.get(photos())).partition("What people did")[0]
    assert "No row has failed like this" in said(boss.get(photos("known", group="x")))


def test_the_export_has_no_cell_that_a_spreadsheet_runs(looks: Client) -> None:
    for sign in ("=", "+", "-", "@", "\t=", ";=", "\uff1d"):
        failed(1, f"{sign}HYPERLINK(1)")
    answer: Any = looks.post(photos("export"))
    assert answer["Content-Type"].startswith("text/csv")
    body = answer.content.decode("utf-8-sig")
    assert len(re.findall(r"'[\t;]?[=+@\uff1d-]HYPERLINK", body)) == 7, body


def test_an_export_is_named_marked_where_it_is_cut_and_recorded(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed(1, "no width " + "x" * 900)
    group = group_of(boss)
    answer: Any = boss.post(photos("export"), {"group": group})
    assert f'filename="photo-failures-{group}.csv"' in answer["Content-Disposition"]
    assert "xx…" in answer.content.decode()
    assert "Only the last" not in answer.content.decode()
    monkeypatch.setattr("django_taskclaim.admin.control_room.failures.EXPORTED", 0)
    cut: Any = boss.post(photos("export"))
    assert "Only the last 0 failed rows were read." in cut.content.decode()
    assert "No row has failed" in said(boss.post(photos("export"), {"group": 'x"\r\nX: y'}))
    assert ("testapp.photo", "export", 1, "boss", f"no width {'x' * 50}…", "") in recorded()


# Settings


def test_settings_are_shown_with_who_changed_them(boss: Client) -> None:
    """Those that make no sense are shown again and not stored."""
    boss.post(photos("settings"), {"batch_size": "7", "lease": "90s", "reason": "gently"})
    run("claimlimit", "testapp.Photo", "--rate", "100/m", "--max-running", "3", "--by", "eve")
    page = boss.get(photos())
    form = form_of(page, photos("settings"))
    shown = {name: form[name][0] for name in ("batch_size", "lease", "rate", "max_running")}
    assert shown == {"batch_size": "7", "lease": "90s", "rate": "100/m", "max_running": "3"}
    assert re.search("Last changed by eve.*batch size 7, lease 90s: gently", text_of(page))
    blind = somebody("taskclaim_control.configure", "testapp.change_photo")
    # A page with the errors of the form would show all that is on it.
    assert blind.post(photos("settings"), {"lease": "0"}).status_code == 403
    page = boss.post(photos("settings"), {"batch_size": "100000", "lease": "0"})
    assert form_of(page, photos("settings"))["batch_size"] == ["100000"]
    assert "batch_size must be a whole number from 1 to 1000" in text_of(page)
    assert "lease must be from 2 seconds to 1 day" in text_of(page)
    assert overrides_of(Photo, using="default")["batch_size"] == 7
    done = boss.post(photos("settings"), form_of(boss.get(photos()), photos("settings")))
    assert said(done).endswith("Nothing was changed.")


def test_an_empty_field_shows_what_holds_without_it(boss: Client) -> None:
    with handling(Photo, batch_size=30, rate="5/s"):
        page = boss.get(photos()).content.decode()
    assert re.findall(r'der="([^"]+)" id="tc-set', page) == ["30", "60s", "5/s", "none", "none"]


# Texts of others


def test_texts_of_others_stay_text_on_every_page(boss: Client) -> None:
    failed(1, f"bad {SCRIPT}")
    worker(f"{SCRIPT}@h:1", last_error=SCRIPT, throttles=throttled(SCRIPT))
    pause(Photo, by=SCRIPT, reason=SCRIPT)
    record_action(Photo, SCRIPT, by=SCRIPT, reason=SCRIPT, key=SCRIPT)
    addresses = [photos(), photos("live"), overview(), overview("live"), overview("pause")]
    addresses += [command_url("drain", f"{SCRIPT}@h:1"), photos("retry", group=group_of(boss))]
    addresses += [address(Photo), photos("resume")]
    for where in addresses:
        assert SCRIPT not in boss.get(where).content.decode(), where
    assert "&lt;script&gt;" in boss.get(photos()).content.decode()
