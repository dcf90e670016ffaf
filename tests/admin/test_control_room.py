"""The control room's pages: what they show and to whom, and that nothing but an allowed POST with CSRF acts."""

import re
from collections.abc import Callable, Iterator
from datetime import time, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone, translation

from django_taskclaim.admin.control_room import asking, words
from django_taskclaim.admin.control_room.figures import _open_orders
from django_taskclaim.control.models import LiveSettings, OperatorAct, WorkerOrder
from django_taskclaim.control.orders import change_settings
from django_taskclaim.models import Switch, WorkerProcess
from django_taskclaim.switch import pause, pause_all, paused_by
from tests.behaviour.support import facts
from tests.factories import make
from tests.testapp.models import CompositeKey, Job

pytestmark = pytest.mark.django_db(databases=["default", "other"])

SCRIPT = "<script>alert(1)</script>"
# With its day in the minutes before and after midnight.
CLOCK = r"(\w+\.? \d+, \d{4} )?\d\d:\d\d"


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    asking.forget()
    yield
    asking.forget()


@pytest.fixture
def login() -> Callable[..., Client]:
    def login(*permissions: str, csrf: bool = False, **user: Any) -> Client:
        """Return the client of a member of staff who has these permissions."""
        person = User.objects.create_user(
            f"u{User.objects.count()}", is_staff=True, first_name="Ada", **user
        )
        for name in permissions:
            app, codename = name.split(".")
            person.user_permissions.add(
                Permission.objects.get(content_type__app_label=app, codename=codename)
            )
        client = Client(enforce_csrf_checks=csrf)
        client.force_login(person)
        return client

    return login


VIEW = ("taskclaim_control.view_control", "testapp.view_job")
OPERATE = (*VIEW, "taskclaim_control.operate", "testapp.change_job")
CONFIGURE = (*VIEW, "taskclaim_control.configure", "testapp.change_job")


def url(page: str = "", model: str = "testapp_job", **kwargs: Any) -> str:
    return reverse(f"admin:{model}_control{'_' if page else ''}{page}", kwargs=kwargs)


def overview(page: str = "") -> str:
    return reverse(
        f"admin:taskclaim_control_{page}" if page else "admin:taskclaim_control_changelist"
    )


def worker(name: str = "worker@web-1:41", **facts: Any) -> WorkerProcess:
    now = timezone.now()
    values: dict[str, Any] = {"labels": "testapp.Job", "host": "web-1", "pid": 41, "version": "1"}
    values |= {"started_at": now - timedelta(hours=1), "seen_at": now}
    return WorkerProcess.objects.create(name=name, **(values | facts))


def failed_jobs(n: int, text: str = "job 7 has no width") -> list[Any]:
    rows = make(Job, n)
    for row in Job.objects.filter(pk__in=[row.pk for row in rows]).claim_batch(n, durable=False):
        row.claim.fail(text, retry=False)
    return rows


def group_of(client: Client) -> str:
    found = re.search(r'<tr data-key="([0-9a-f]{16})"', client.get(url()).content.decode())
    assert found is not None
    return found[1]


def text_of(answer: Any) -> str:
    """Return the words of a page, without its tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))


# What is shown


def test_the_page_tells_how_far_the_rows_have_got(login: Any) -> None:
    make(Job, 3)
    for row in Job.objects.claim_batch(2, durable=False):
        row.claim.complete()
    text = text_of(login(*VIEW).get(url()))
    assert "2 of 3" in text
    assert "66.6 %" in text
    assert "complete 2" in text
    assert "waiting 1" in text


def test_the_fragment_is_the_part_that_changes(login: Any) -> None:
    make(Job, 1)
    answer = login(*VIEW).get(url("live"))
    assert answer.status_code == 200
    assert b"<html" not in answer.content
    assert b'id="tc-progress-h"' in answer.content


def test_numbers_are_in_the_locale_of_whoever_looks(login: Any) -> None:
    Job.objects.bulk_create([Job() for _ in range(1204)])
    client = login(*VIEW)
    assert "waiting 1,204" in text_of(client.get(url()))
    with translation.override("de"):
        assert "1.204" in text_of(client.get(url()))


@pytest.mark.parametrize(
    ("running", "word"), [(0, "PAUSED"), (2, "PAUSING")], ids=["nothing runs", "rows run"]
)
def test_a_pause_is_told_with_who_since_when_why_and_what_still_runs(
    login: Any, running: int, word: str
) -> None:
    make(Job, 3)
    if running:
        Job.objects.claim_batch(running, durable=False)
    pause(Job, by="Ada", reason="deploy")
    text = text_of(login(*VIEW).get(url()))
    assert re.search(rf"{word} by Ada since {CLOCK} “deploy”", text)
    assert ("2 rows still running" in text) == bool(running)


def test_a_throttle_on_every_worker_is_told_as_held(login: Any) -> None:
    from django_taskclaim.models import Throttle

    make(Job, 1)
    known, until = worker(), timezone.now() + timedelta(minutes=5)
    facts = {"label": "testapp.job", "source": "ReplicaLag", "since_at": timezone.now()}
    Throttle.objects.create(process=known.name, reason="replica lag 31 s", until=until, **facts)
    text = text_of(login(*VIEW).get(url()))
    assert re.search(rf"HELD until {CLOCK} .*replica lag 31 s", text)
    worker("worker@web-2:42")
    assert "RUNNING" in text_of(login(*VIEW).get(url()))


def test_what_all_workers_keep_to_is_told(login: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from django_taskclaim.limits import set_limits
    from django_taskclaim.querysets import fleet

    monkeypatch.setattr(fleet, "_stored", set())
    set_limits(Job, rate="100/m", max_running=3, by="ada", using="default")
    told = "All together keep to: a rate of 100/m, 3 running at once, set by ada"
    client = login(*VIEW)
    assert told in text_of(client.get(url()))
    worker()
    assert told in text_of(client.get(url()))
    pause(Job, by="Ada")
    paused = text_of(client.get(url()))
    assert "PAUSED by Ada" in paused
    assert told in paused


def test_a_page_reads_the_hour_and_the_day_once_each(login: Any) -> None:
    client = login(*VIEW)
    with CaptureQueriesContext(connection) as sent:
        assert client.get(url()).status_code == 200
    assert len([one for one in sent if "durations" in one["sql"]]) == 2


def test_held_is_told_until_the_first_process_may_claim_again(login: Any) -> None:
    """Each is held until the last of its own throttles ends; those of the dead hold nobody."""
    from django_taskclaim.models import Throttle

    now = timezone.now()
    names = {"a": worker("worker@web-1:1").name, "b": worker("worker@web-2:2").name}
    names["dead"] = worker("worker@web-3:3", seen_at=now - timedelta(hours=1)).name
    ends = {}
    for process, source, minutes in (
        ("a", "ReplicaLag", 60),
        ("a", "circuit breaker", 120),
        ("b", "ReplicaLag", 180),
        ("b", "circuit breaker", 60),
        ("dead", "LongTransactions", 10),
        ("dead", "ReplicaLag", 600),
    ):
        until = ends[process, source] = now + timedelta(minutes=minutes)
        facts = {"label": "testapp.job", "since_at": now, "source": source, "reason": "so"}
        Throttle.objects.create(process=names[process], until=until, **facts)
    text = text_of(login(*VIEW).get(url()))
    earliest = words.clock(ends["a", "circuit breaker"])
    assert f"HELD until {earliest} " in text
    assert f"by ReplicaLag on all processes: so, until {words.clock(ends['b', 'ReplicaLag'])}" in (
        text
    )
    assert "LongTransactions on" not in text.partition("Why is nothing")[0]


def test_a_silent_worker_is_greyed_and_says_when_its_rows_return(login: Any) -> None:
    make(Job, 1)
    (row,) = Job.objects.claim_batch(1, durable=False, lease=40)
    holder = row.claim.token.holder.partition("#")[0]
    worker(holder, seen_at=timezone.now() - timedelta(minutes=2))
    worker("worker@web-2:42")
    client, back_at = login(*VIEW), facts(row).expires_at + timedelta(seconds=10)
    most = back_at - timezone.now()
    page = client.get(url())
    least = back_at - timezone.now()
    assert b'class="is-dead"' in page.content
    told = re.search(r"rows return in (\d+) s", text_of(page))
    assert told is not None
    # Rounded, and by two clocks of one machine.
    second = timedelta(seconds=1)
    assert least - second < timedelta(seconds=int(told[1])) < most + second


@override_settings(USE_THOUSAND_SEPARATOR=True)
def test_what_programs_read_and_names_of_processes_have_no_separators(login: Any) -> None:
    make(Job, 1)
    (row,) = Job.objects.claim_batch(1, durable=False, lease=4080)
    holder = row.claim.token.holder.partition("#")[0]
    worker(holder, pid=40711, seen_at=timezone.now() - timedelta(minutes=2))
    worker("another@web-9:1")
    page = login(*VIEW).get(url())
    assert "pid 40711 " in text_of(page)
    content = page.content.decode()
    assert re.search(r"<span data-countdown>40[3-9]\d</span>", content)
    assert 'data-every="2500"' in content


def test_the_doctors_sentences_are_on_the_page(login: Any) -> None:
    make(Job, 2)
    assert "2 rows are due, and no worker for testapp.Job is alive." in text_of(
        login(*VIEW).get(url())
    )


def test_every_claimable_model_has_a_page_and_stands_in_the_overview(login: Any) -> None:
    from django_taskclaim.switch import claimable_models

    User.objects.create_superuser("root")
    client = Client()
    client.force_login(User.objects.get(username="root"))
    page = client.get(overview()).content.decode()
    # Other tests define models once the addresses are known.
    known = [model for model in claimable_models() if model.__module__ == Job.__module__]
    assert len(known) > 10
    for model in known:
        address = url(model=f"{model._meta.app_label}_{model._meta.model_name}")
        assert f'href="{address}"' in page
        if model._meta.managed:
            assert client.get(address).status_code == 200, model


def test_the_overview_shows_only_what_one_may_see(login: Any) -> None:
    page = text_of(login(*VIEW).get(overview()))
    assert "testapp.Job" in page
    assert "testapp.Photo" not in page


def test_a_slow_database_leaves_the_last_known_figures(login: Any) -> None:
    make(Job, 3)
    client = login(*VIEW)
    client.get(url())
    make(Job, 4)
    with override_settings(TASKCLAIM={"PAGE_TIMEOUT": 0.001}):
        text = text_of(client.get(url()))
    assert "waiting 3" in text
    assert re.search(r"Some figures are as of \d\d:\d\d:\d\d", text)


def test_a_database_that_has_never_answered_in_time_is_no_error(login: Any) -> None:
    with override_settings(TASKCLAIM={"PAGE_TIMEOUT": 0.001}):
        answers = [login(*VIEW).get(address) for address in (url(), url("live"), overview())]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert "UNKNOWN" in text_of(answers[0])


# What may hurt


def test_texts_of_others_are_only_text(login: Any) -> None:
    from django_taskclaim.models import Throttle

    make(Job, 2)
    first, _second = Job.objects.claim_batch(2, durable=False)
    first.claim.fail(f"bad {SCRIPT}", retry=False)
    worker(f"{SCRIPT}@h:1", last_error=SCRIPT, host=SCRIPT, version=SCRIPT)
    pause(Job, by=SCRIPT, reason=SCRIPT)
    now = timezone.now()
    facts = {"label": "testapp.job", "since_at": now, "until": now + timedelta(minutes=5)}
    Throttle.objects.create(process=SCRIPT, source=SCRIPT, reason=SCRIPT, **facts)
    OperatorAct.objects.create(
        at=now, model="testapp.job", act=SCRIPT, by=SCRIPT, reason=SCRIPT, key=SCRIPT
    )
    client = login(*OPERATE)
    addresses = [url(), url("live"), overview(), overview("live")]
    addresses += [url("orders") + f"?order=drain&worker={SCRIPT}@h:1"]
    addresses += [url("retry", group=group_of(client))]
    for address in addresses:
        page = client.get(address).content.decode()
        assert SCRIPT not in page, address
    assert "&lt;script&gt;" in client.get(url()).content.decode()


def acts(group: str = "0" * 16) -> list[tuple[str, dict[str, str], tuple[str, ...]]]:
    """Return every address that acts, with what is sent there and who may."""
    name = "worker@web-1:41"
    return [
        (url("switch"), {"turn": "off"}, OPERATE),
        (url("switch"), {"turn": "on"}, OPERATE),
        *(
            (f"{url('orders')}?order={what}&worker={name}", {"reason": ""}, OPERATE)
            for what in ("drain", "stop", "release")
        ),
        (url("first", group=group), {}, OPERATE),
        (url("retry", group=group), {"reason": ""}, OPERATE),
        (url("settings"), {"batch_size": "7"}, CONFIGURE),
        (overview("pause"), {"until": ""}, OPERATE),
        (overview("resume"), {}, OPERATE),
    ]


ACTS = range(10)


def everything() -> list[Any]:
    """Return all that an act could have changed."""
    return [
        list(Switch.objects.order_by("pk").values()),
        list(WorkerOrder.objects.values()),
        list(LiveSettings.objects.values()),
        list(OperatorAct.objects.values()),
        list(Job.objects.order_by("pk").values("pk", "status", "iteration")),
    ]


@pytest.fixture
def things() -> str:
    """Have one of everything that can be acted on, and return the group of failures."""
    failed_jobs(12)
    worker()
    root = User.objects.create_superuser("root")
    client = Client()
    client.force_login(root)
    return group_of(client)


@pytest.mark.parametrize("number", ACTS)
def test_a_get_changes_nothing(login: Any, things: str, number: int) -> None:
    before = everything()
    address, _sent, who = acts(things)[number]
    assert login(*who).get(address).status_code in (200, 405)
    assert everything() == before


@pytest.mark.parametrize("number", ACTS)
def test_a_post_without_csrf_changes_nothing(login: Any, things: str, number: int) -> None:
    before = everything()
    address, sent, who = acts(things)[number]
    assert login(*who, csrf=True).post(address, sent).status_code == 403
    assert everything() == before


DENIED = {
    "none": (),
    "view only": VIEW,
    "the model's own only": ("testapp.view_job", "testapp.change_job"),
}


@pytest.mark.parametrize("number", ACTS)
@pytest.mark.parametrize("permissions", DENIED.values(), ids=DENIED)
def test_without_the_permission_nothing_is_changed(
    login: Any, things: str, number: int, permissions: tuple[str, ...]
) -> None:
    before = everything()
    address, sent, _who = acts(things)[number]
    assert login(*permissions).post(address, sent).status_code == 403
    assert everything() == before


@pytest.mark.parametrize("number", list(ACTS)[:8])
def test_operating_on_a_model_needs_its_own_change_permission(
    login: Any, things: str, number: int
) -> None:
    before = everything()
    address, sent, _who = acts(things)[number]
    client = login(*VIEW, "taskclaim_control.operate", "taskclaim_control.configure")
    assert client.post(address, sent).status_code == 403
    assert everything() == before


def test_whoever_may_operate_may_not_configure(login: Any, things: str) -> None:
    assert login(*OPERATE).post(url("settings"), {"batch_size": 7}).status_code == 403
    assert login(*CONFIGURE).post(url("switch"), {"turn": "off"}).status_code == 403


@pytest.mark.parametrize("permissions", [(), ("testapp.view_job",), VIEW[:1]])
def test_without_the_permission_nothing_is_shown(login: Any, permissions: tuple[str, ...]) -> None:
    client = login(*permissions)
    for address in (url(), url("live"), url("export"), overview(), overview("live")):
        assert client.get(address).status_code == 403
    assert "Control room" not in text_of(client.get(reverse("admin:index")))


def test_whoever_may_only_look_is_offered_no_act(login: Any, things: str) -> None:
    page = login(*VIEW).get(url()).content.decode()
    assert "tc-switch" not in page
    assert "Drain" not in page
    assert "Retry" not in page
    assert 'class="tc-fields" disabled' in page


def test_strangers_are_sent_to_the_login() -> None:
    assert "/login/" in Client().get(url("live")).headers["Location"]


# What acts do


def test_pause_and_resume_from_the_page_are_recorded(login: Any) -> None:
    client = login(*OPERATE)
    client.post(url("switch"), {"turn": "off", "reason": "deploy", "until": "900"})
    switch = paused_by(Job)
    assert switch is not None
    assert (switch.by, switch.reason) == ("u0", "deploy")
    assert switch.until is not None
    client.post(url("switch"), {"turn": "on"})
    assert paused_by(Job) is None
    assert list(OperatorAct.objects.order_by("pk").values_list("act", "by", "reason")) == [
        ("pause", "u0", "deploy for 15 min"),
        ("resume", "u0", ""),
    ]
    text = text_of(client.get(url()))
    assert "u0 resumed claiming" in text
    assert "u0 paused claiming “deploy for 15 min”" in text


def test_pausing_everything_asks_first_and_is_shown_on_every_page(login: Any) -> None:
    client = login(*OPERATE)
    assert "Pause claiming of all models" in text_of(client.get(overview("pause")))
    assert paused_by(Job) is None
    client.post(overview("pause"), {"reason": "fire", "until": ""})
    switch = paused_by(Job)
    assert switch is not None
    assert switch.scope == "*"
    assert "All models are paused, not only this one." in text_of(client.get(url()))
    client.post(overview("resume"), {"reason": ""})
    assert paused_by(Job) is None


def test_resuming_one_model_leaves_the_pause_of_all(login: Any) -> None:
    pause_all()
    login(*OPERATE).post(url("switch"), {"turn": "on"})
    assert paused_by(Job) is not None


@pytest.mark.parametrize("what", ["drain", "stop", "release"])
def test_an_order_is_asked_about_and_given(login: Any, what: str) -> None:
    known, client = worker(), login(*OPERATE)
    address = f"{url('orders')}?order={what}&worker={known.name}"
    assert known.name in text_of(client.get(address))
    client.post(address, {"reason": "old version"})
    assert WorkerOrder.objects.get().order == what
    assert WorkerOrder.objects.get().by == "u0"
    assert "told to" in text_of(client.get(url()))


def test_a_worker_of_another_model_is_not_this_pages_to_order(login: Any) -> None:
    known = worker(labels="testapp.Photo")
    address = f"{url('orders')}?order=stop&worker={known.name}"
    assert login(*OPERATE).post(address, {"reason": ""}).status_code == 403


def test_ten_of_a_group_are_retried_first_and_then_all(login: Any) -> None:
    failed_jobs(12, "job 7 has no width")
    failed_jobs(2, "the disk is full")
    client = login(*OPERATE)
    group = group_of(client)
    client.post(url("first", group=group))
    assert Job.objects.open().count() == 10
    client.post(url("retry", group=group), {"reason": "mended"})
    assert Job.objects.open().count() == 12
    assert set(Job.objects.failed().values_list("last_error", flat=True)) == {"the disk is full"}
    latest = OperatorAct.objects.latest("pk")
    assert (latest.act, latest.rows, latest.by, latest.reason) == (
        "reset",
        2,
        "u0",
        f"group {group} – mended",
    )


def test_rows_of_a_composite_key_are_retried_too() -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    make(CompositeKey, 3)
    for row in CompositeKey.objects.claim_batch(3, durable=False):
        row.claim.fail("no", retry=False)
    page = client.get(url(model="testapp_compositekey")).content.decode()
    found = re.search(r'<tr data-key="([0-9a-f]{16})"', page)
    assert found is not None
    client.post(url("retry", model="testapp_compositekey", group=found[1]), {"reason": ""})
    assert CompositeKey.objects.open().count() == 3


def test_the_export_is_csv_that_no_spreadsheet_takes_for_a_formula(login: Any) -> None:
    (row,) = failed_jobs(1, "=HYPERLINK(1)")
    answer = login(*VIEW).get(url("export"))
    body = b"".join(answer.streaming_content).decode("utf-8-sig")
    assert answer["Content-Type"].startswith("text/csv")
    lines = body.splitlines()
    assert lines[0] == "key,error,message,last tried at (UTC)"
    assert lines[1].startswith(f"{row.pk},")
    assert ",'=HYPERLINK(1)," in lines[1]


def test_settings_are_stored_recorded_and_shown(login: Any) -> None:
    client = login(*CONFIGURE)
    client.post(url("settings"), {"batch_size": "7", "rate_limit": "2.5", "reason": "gently"})
    stored = LiveSettings.objects.get()
    assert (stored.batch_size, stored.rate_limit, stored.changed_by) == (7, 2.5, "u0")
    page = client.get(url())
    assert 'value="7"' in page.content.decode()
    assert "Last changed by u0" in text_of(page)
    assert "gently" in text_of(page)


def sent(page: Any, **typed: str) -> dict[str, str]:
    """Return what a browser sends of the settings form, hidden inputs among it, after *typed* was typed."""
    (form,) = re.findall(r'id="tc-settings-form".*?</form>', page.content.decode(), re.S)
    inputs = [
        dict(re.findall(r'([\w-]+)="([^"]*)"', one)) for one in re.findall("<input.*?>", form)
    ]
    return {one["name"]: one.get("value", "") for one in inputs} | typed


def test_settings_from_an_old_page_undo_nobody_elses(login: Any) -> None:
    client = login(*CONFIGURE)
    night = {"lease": 60, "window_from": time(22, 0, 30), "window_to": time(6), "batch_size": 9}
    change_settings(Job, night, by="Ada", using="default")
    page = client.get(url())
    change_settings(Job, {"lease": 90, "rate_limit": 2.5}, by="Grace", using="default")

    client.post(url("settings"), sent(page, concurrency="4", batch_size=""))
    stored = LiveSettings.objects.get()
    assert (stored.lease, stored.rate_limit) == (90, 2.5)
    assert (stored.window_from, stored.window_to) == (time(22, 0, 30), time(6))
    assert (stored.concurrency, stored.batch_size) == (4, None)


def test_a_form_that_was_shown_again_still_knows_what_it_showed_first(login: Any) -> None:
    client = login(*CONFIGURE)
    change_settings(Job, {"lease": 60}, by="Ada", using="default")
    again = client.post(url("settings"), sent(client.get(url()), batch_size="100000"))
    assert "errorlist" in again.content.decode()
    change_settings(Job, {"lease": 90}, by="Grace", using="default")
    client.post(url("settings"), sent(again, batch_size="7"))
    stored = LiveSettings.objects.get()
    assert (stored.lease, stored.batch_size) == (90, 7)


def test_settings_that_make_no_sense_are_shown_again(login: Any) -> None:
    answer = login(*CONFIGURE).post(
        url("settings"), {"batch_size": "100000", "window_from": "8:00"}
    )
    assert answer.status_code == 200
    assert 'value="100000"' in answer.content.decode()
    assert "errorlist" in answer.content.decode()
    assert not LiveSettings.objects.exists()


def test_more_rows_workers_and_failures_cost_no_more_questions(login: Any) -> None:
    client = login(*OPERATE)

    def questions() -> int:
        with CaptureQueriesContext(connection) as asked:
            client.get(url("live"))
        return len(asked)

    failed_jobs(1)
    worker()
    few = questions()
    for number in range(5):
        failed_jobs(3, "abcdef"[number] * 5)
        worker(f"worker@web-2:{number}")
    assert questions() == few


def test_what_an_earlier_process_of_the_name_was_told_is_not_shown() -> None:
    now = timezone.now()
    known = worker(started_at=now - timedelta(minutes=1))
    given = {"worker": known.name, "by": "Ada"}
    WorkerOrder.objects.create(order="drain", at=now - timedelta(minutes=2), **given)
    assert _open_orders("default") == {}
    WorkerOrder.objects.create(order="stop", at=now, **given)
    assert _open_orders("default") == {known.name: "stop"}
