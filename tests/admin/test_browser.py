"""The control room in a real browser, with real workers behind it."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.signals import request_finished, request_started
from django.test import Client
from django.urls import reverse
from selenium.webdriver.common.keys import Keys

from django_taskclaim import overview
from django_taskclaim.admin import sweeping
from django_taskclaim.admin.control_room import asking
from django_taskclaim.control.models import LiveSettings
from django_taskclaim.control.orders import change_settings
from django_taskclaim.switch import pause, paused_by, resume
from tests.admin import browser as browsers
from tests.admin.browser import NARROW, WIDE, Browser
from tests.admin.scene import a_day_of_work
from tests.behaviour.support import clock, set_raw
from tests.factories import make
from tests.testapp.models import Job, Photo, TextKey
from tests.worker.conftest import Worker, jobs, start_worker, states, wait_until

__all__ = ["start_worker"]  # a fixture

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(240),
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
]

Start = Callable[..., Worker]


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    started = browsers.start()
    yield started
    started.quit()


@pytest.fixture
def under_way() -> Iterator[list[None]]:
    """Return as many things as there are requests that the server has not done with."""
    requests: list[None] = []

    def begun(**facts: Any) -> None:
        requests.append(None)

    def done(**facts: Any) -> None:
        requests.pop()

    request_started.connect(begun)
    request_finished.connect(done)
    yield requests
    request_started.disconnect(begun)
    request_finished.disconnect(done)


@pytest.fixture
def page(driver: Any, live_server: Any, under_way: list[None]) -> Iterator[Browser]:
    """Return a browser in which Ada, who may do everything, is logged in."""
    asking.forget()
    seen = Browser(driver, live_server.url)
    client = Client()
    client.force_login(User.objects.create_superuser("ada", first_name="Ada"))
    seen.screen()
    seen.go("/static/taskclaim/control_room.css")
    driver.add_cookie({"name": "sessionid", "value": client.cookies["sessionid"].value})
    yield seen
    complaints = seen.complaints()
    # A page that goes on asking, and a request under way, would meet the next test's database.
    driver.get("about:blank")
    wait_until(lambda: not under_way, 20, "the last request answered")
    driver.delete_all_cookies()
    assert [line for line in complaints if "ERR_INTERNET_DISCONNECTED" not in line] == []


@pytest.fixture
def room(page: Browser) -> Browser:
    page.go(reverse("admin:testapp_job_control"))
    return page


def test_pausing_from_the_page_stops_real_workers_and_resuming_starts_them(
    room: Browser, start_worker: Start
) -> None:
    # More than get done while the browser takes its time.
    jobs(4000, "sleep:0.1")
    start_worker("--batch-size", "5")
    room.reads("1 worker process is alive.", seconds=40)
    wait_until(lambda: states().get("complete", 0) > 5, what="rows done")

    room.write("#tc-pause-reason", "deploy")
    room.click("#tc-switch")
    room.reads("“deploy”", ".tc-state")
    wait_until(lambda: "processing" not in states(), what="running rows finished")
    room.reads("PAUSED", ".tc-state")
    done = states()["complete"]
    room.refreshed(2)
    assert states()["complete"] == done

    room.follow("Resume claiming")
    room.reads("RUNNING", ".tc-state")
    wait_until(lambda: states()["complete"] > done + 5, what="rows done again")
    room.reads("resume", ".tc-acts")


def test_a_killed_worker_turns_grey_and_its_rows_return(
    room: Browser, start_worker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "ALIVE_WITHIN", timedelta(seconds=12))
    jobs(3, "sleep:60")
    # Until a second worker is up, however long that takes.
    worker = start_worker("--batch-size", "3", "--lease", "600")
    wait_until(lambda: states().get("processing") == 3, what="rows claimed")
    room.reads("1 worker process is alive.", seconds=20)

    os.killpg(worker.pid, signal.SIGKILL)
    wait_until(lambda: room.has(".tc-workers tr.is-dead"), 30, "a grey worker")
    assert "no worker is alive to put its rows back" in room.text(".tc-workers")
    start_worker("--batch-size", "3")
    room.reads("1 worker process is alive.", seconds=40)
    for row in Job.objects.all():
        set_raw(row, "expires_at", clock("+15 SECOND"))
    assert wait_until(
        lambda: re.search(r"rows return in \d+ s", room.text(".tc-workers")), 10, "a countdown"
    )
    wait_until(
        lambda: set(Job.objects.values_list("attempts", flat=True)) == {1}, 90, "all rows returned"
    )


def test_ten_of_a_group_are_retried_and_then_the_rest_after_a_question(room: Browser) -> None:
    jobs(14)
    for row in Job.objects.claim_batch(14):
        row.claim.fail(f"job {row.pk} has no width", retry=False)
    jobs(1)
    room.reads("job # has no width", ".tc-failures")
    room.follow("Retry 10 first")
    room.reads("10 failed rows are open again.")
    assert states() == {"open": 11, "failed": 4}

    room.follow("Retry all 4")
    room.reads("4 ×")
    assert states() == {"open": 11, "failed": 4}
    room.write("#id_reason", "mended")
    room.click("main [type=submit]")
    room.reads("4 failed rows are open again.")
    assert states() == {"open": 15}
    room.reads("No row has failed.", ".tc-failures")


def test_a_worker_that_is_told_to_drain_leaves(room: Browser, start_worker: Start) -> None:
    jobs(2000, "sleep:0.1")
    worker = start_worker("--batch-size", "5")
    room.reads("1 worker process is alive.", seconds=40)
    room.follow("Drain")
    room.reads("claims no more, and leaves.")
    assert worker.process.poll() is None
    room.click("main [type=submit]")
    room.reads("has been told.")
    assert worker.wait(30) == 0
    assert states()["open"] > 0
    room.reads("None. Start one:", ".tc-workers")


def test_pausing_everything_asks_first_and_can_be_left(page: Browser) -> None:
    page.go(reverse("admin:taskclaim_control_changelist"))
    page.click("#tc-everything")
    page.reads("No worker claims a row of any model")
    page.picture("control-room-confirmation", 620)
    page.screen()
    page.follow("No, take me back")
    page.reads("Pause claiming of all models …")
    assert paused_by(Job) is None

    page.click("#tc-everything")
    page.click("main [type=submit]")
    page.reads("All models are paused.")
    assert paused_by(Job) is not None
    page.click("#tc-everything")
    page.click("main [type=submit]")
    page.reads("The switch of all models is on, and no worker is alive.")
    assert paused_by(Job) is None


def test_a_refresh_leaves_focus_open_details_and_what_is_being_typed(page: Browser) -> None:
    a_day_of_work()
    page.go(reverse("admin:testapp_job_control"))
    page.click("#tc-table-hour summary")
    page.write("#tc-set-batch_size", "17")
    page.write("#tc-pause-reason", "half a sent")
    before = page.text("[data-fresh]")
    jobs(7)
    wait_until(lambda: page.text("[data-fresh]") != before, 20, "a refresh")
    page.refreshed()
    assert page.run("return document.activeElement.id") == "tc-pause-reason"
    page.write("#tc-pause-reason", "ence")
    assert page.run("return document.querySelector('#tc-pause-reason').value") == "half a sentence"
    assert page.run("return document.querySelector('#tc-set-batch_size').value") == "17"
    assert page.run("return document.querySelector('#tc-table-hour').open") is True


def test_the_switch_does_what_it_says_after_somebody_else_has_turned_it(room: Browser) -> None:
    pause(Job, reason="incident 7", by="Grace")
    room.reads("Resume", "#tc-switch")
    room.click("#tc-switch")
    wait_until(lambda: paused_by(Job) is None, what="the model running")
    room.reads("READY", ".tc-state")

    pause(Job, by="Grace")
    room.reads("Resume", "#tc-switch")
    resume(Job)
    room.reads("Pause", "#tc-switch")
    room.click("#tc-switch")
    wait_until(lambda: paused_by(Job) is not None, what="the pause")


def test_settings_follow_others_where_nobody_types_and_undo_nothing(room: Browser) -> None:
    value = "return document.querySelector('#tc-set-%s').value"
    room.write("#tc-set-batch_size", "7")
    room.run("document.activeElement.blur()")
    change_settings(Job, {"lease": 93, "batch_size": 5}, by="Grace", using="default")
    wait_until(lambda: room.run(value % "lease") == "93.0", what="the lease followed")
    assert room.run(value % "batch_size") == "7"

    # The next change comes while nothing can be refreshed.
    hide = "Object.defineProperty(document, 'hidden', {value: true});"
    room.run(hide + "document.dispatchEvent(new Event('visibilitychange'))")
    change_settings(Job, {"rate_limit": 2.5}, by="Grace", using="default")
    room.click("#tc-settings-form button")
    room.reads("Workers follow within a few seconds.", ".messagelist")
    stored = LiveSettings.objects.get()
    assert (stored.batch_size, stored.lease, stored.rate_limit) == (7, 93, 2.5)


def test_the_switch_is_turned_by_keyboard_alone(room: Browser) -> None:
    for _ in range(60):
        if room.run("return document.activeElement.id") == "tc-switch":
            break
        room.driver.switch_to.active_element.send_keys(Keys.TAB)
    ring = "return getComputedStyle(document.querySelector('#tc-switch')).outlineWidth"
    assert room.run(ring) == "3px"
    room.driver.switch_to.active_element.send_keys(Keys.ENTER)
    room.reads("PAUSED", ".tc-state")
    assert paused_by(Job) is not None


def test_a_screen_reader_is_told_what_changed_and_nothing_else(room: Browser) -> None:
    jobs(3)
    room.refreshed(2)
    assert room.run("return document.querySelector('#tc-say').textContent") == ""
    pause(Job, by="Grace", reason="disk full")
    said = "return document.querySelector('#tc-say').textContent"
    wait_until(lambda: "PAUSED" in room.run(said), 20, "the pause said")
    assert "by Grace" in room.run(said)
    assert room.run(
        "return [...document.querySelectorAll('main h2')].every(h => h.textContent.trim())"
    )


def test_without_a_network_the_page_says_how_old_it_is(room: Browser) -> None:
    room.refreshed()
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    room.command("Network.enable")
    room.command("Network.emulateNetworkConditions", offline=True, **offline)
    room.reads("not refreshed since", "[data-fresh]")
    room.command("Network.emulateNetworkConditions", offline=False, **offline)
    wait_until(lambda: "not refreshed" not in room.text("[data-fresh]"), 20, "fresh again")


def test_a_hidden_tab_asks_nothing(room: Browser) -> None:
    room.refreshed()
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
    room.run(hide % "true" + "document.dispatchEvent(new Event('visibilitychange'))")
    before = room.refreshes()
    # Longer than two refreshes would have taken.
    room.driver.set_script_timeout(20)
    room.driver.execute_async_script("setTimeout(arguments[0], 6000)")
    assert room.refreshes() <= before + 1
    room.run(hide % "false" + "document.dispatchEvent(new Event('visibilitychange'))")
    room.refreshed()


def test_the_page_works_without_scripts(page: Browser) -> None:
    page.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.go(reverse("admin:testapp_job_control"))
        page.write("#tc-pause-reason", "no script")
        page.click("#tc-switch")
        wait_until(lambda: paused_by(Job) is not None, what="the pause")
    finally:
        page.command("Emulation.setScriptExecutionDisabled", value=False)
    page.reads("“no script”", ".tc-state")


def test_a_bulk_action_goes_on_by_itself_to_its_end(
    page: Browser, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """What the browser sends again is what the next request is signed for, with any text and any keys."""
    settings.TASKCLAIM = {"CHUNK_SIZE": 1}
    monkeypatch.setattr(sweeping, "BUDGET", 0.0)
    rows = make(TextKey, 4)
    page.go(reverse("admin:testapp_textkey_changelist") + "?claim_state=open&q=")
    page.click("#action-toggle")
    page.run("document.querySelector('[name=action]').value = 'claim_fail'")
    page.click("#changelist-form button[name=index]")
    page.write("[name=reason]", " «Né» & 5 > 4  ")
    page.click(".taskclaim-answers input")
    page.reads(f"{len(rows)} rows were failed.", "body")
    assert TextKey.objects.failed().count() == len(rows)


def test_the_session_that_ended_is_told(room: Browser) -> None:
    room.refreshed()
    room.driver.delete_all_cookies()
    room.reads("You are signed out.", "[data-fresh]")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_can_be_read_in_both_themes(page: Browser, dark: bool) -> None:
    """The contrast of each text to what lies behind it is 4.5 to 1 at least."""
    a_day_of_work()
    page.screen((1100, 1000), dark=dark)
    page.go(reverse("admin:testapp_job_control"))
    assert page.run(CONTRAST) == []
    page.picture("control-room-dark" if dark else "control-room")
    if dark:
        return
    page.screen()
    page.go(reverse("admin:taskclaim_control_changelist"))
    assert page.run(CONTRAST) == []


def test_nothing_is_cut_off_on_a_phone(page: Browser) -> None:
    a_day_of_work()
    page.screen(NARROW)
    for address in ("admin:testapp_job_control", "admin:taskclaim_control_changelist"):
        page.go(reverse(address))
        assert page.run("return document.documentElement.scrollWidth") <= NARROW[0]
        assert page.run(OUTSIDE, NARROW[0]) == []
    page.go(reverse("admin:testapp_job_control"))
    page.picture("control-room-phone", 1500)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "phone"])
def test_the_buttons_of_a_row_are_in_sight_however_wide_the_list_is(
    page: Browser, size: tuple[int, int]
) -> None:
    make(Photo, 3, url=lambda i: "https://img.example/" + "wide" * 40)
    page.screen(size)
    page.go(reverse("admin:testapp_photo_changelist"))
    assert page.run("return document.documentElement.scrollWidth") <= size[0]
    assert page.run(ON_TOP, ".field-actions_holder a") is True


#: Whether an element is where a finger would meet it, without a scroll to the side.
ON_TOP = """
const one = document.querySelector(arguments[0]);
scrollTo(0, one.getBoundingClientRect().y - innerHeight / 2);
const box = one.getBoundingClientRect();
return document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2) === one;
"""

#: Elements of the page that stick out of the screen.
OUTSIDE = """
return [...document.querySelectorAll('.tc-room *')].filter(e => {
    const box = e.getBoundingClientRect();
    return box.width > 1 && box.right > arguments[0] + 1 && !e.closest('.tc-hidden, .tc-scroll, thead');
}).map(e => e.outerHTML.slice(0, 120))
"""

#: Texts whose colour is too near to that of the nearest background behind them.
CONTRAST = """
const parts = colour => (colour.match(/[\\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = e => {
    for (; e; e = e.parentElement) {
        const colour = parts(getComputedStyle(e).backgroundColor);
        if (colour.length === 3 || colour[3] > 0.99) return colour;
    }
    return [255, 255, 255];
};
return [...document.querySelectorAll('.tc-room *')].filter(e =>
    [...e.childNodes].some(n => n.nodeType === 3 && n.nodeValue.trim()) && e.getClientRects().length &&
    !e.closest('[disabled], noscript, option')
).filter(e => {
    const [a, b] = [light(parts(getComputedStyle(e).color)), light(behind(e))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
}).map(e => e.outerHTML.slice(0, 160) + getComputedStyle(e).color)
"""
