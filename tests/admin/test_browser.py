"""The control room in a real browser: it refreshes by itself, acts, and leaves alone what is being typed."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import override_settings

from django_taskclaim.control.audit import record_action
from django_taskclaim.models import WorkerProcess
from django_taskclaim.switch import overrides_of, pause, paused_by, set_overrides
from tests.admin.browser import Browser, driver, requests_end
from tests.admin.room import command_url, failed, overview, photos, worker
from tests.testapp.models import Job, Photo
from tests.worker.conftest import Start, jobs, start_worker, states, wait_until

__all__ = ["driver", "start_worker"]  # fixtures

pytestmark = [
    pytest.mark.once,
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
]


@pytest.fixture
def room(driver: Any, live_server: Any) -> Iterator[Browser]:
    """The control room of jobs, before somebody who may do everything."""
    page = Browser(driver, live_server.url)
    with requests_end():
        page.log_in(User.objects.create_superuser("ada"))
        page.go(overview("testapp.job"))
        yield page
        complaints = page.leave()
    assert [line for line in complaints if "ERR_INTERNET_DISCONNECTED" not in line] == []


#: How wide a part of the bar is if its state has next to none of the rows.
WIDTH_OF_FEW = """
    const part = document.querySelector(".tc-bar svg")
    part.setAttribute("width", 0)
    return part.clientWidth
"""


@pytest.mark.promise(9)
def test_the_page_pauses_resumes_and_drains_a_real_worker(
    room: Browser, start_worker: Start
) -> None:
    """And shows each of it without a reload."""
    jobs(4000, "sleep:0.05")
    worker = start_worker("--batch-size", "5")
    room.reads("1 worker process is alive.")
    wait_until(lambda: states().get("complete", 0) > 5, what="rows done")
    # The bar shows a state however few its rows are.
    assert room.run(WIDTH_OF_FEW) >= 4

    room.press("Pause claiming")
    room.write("reason", "deploy")
    room.press("Pause claiming: jobs")
    room.reads("PAUSED testapp.Job is paused by ada")
    wait_until(lambda: "processing" not in states(), what="running rows finished")
    done = states()["complete"]
    before = room.text()
    wait_until(lambda: room.text() != before, what="a refresh")
    assert states()["complete"] == done

    room.press("Resume claiming")
    room.press("Resume claiming: jobs")
    room.reads("RUNNING")
    wait_until(lambda: states()["complete"] > done + 5, what="rows done again")

    room.press("Drain")
    room.reads("claims no more, and leaves.")
    room.press(f"Drain: {WorkerProcess.objects.get().name}")
    room.reads("was told to drain.")
    assert worker.wait() == 0
    assert states()["open"] > 0
    room.reads("None. Start one:")


def test_a_refresh_leaves_what_is_being_typed_and_shows_what_others_did(room: Browser) -> None:
    room.write("batch_size", "17")
    room.write("reason", "half a sent")
    focus = "return document.activeElement.name"
    assert room.run(focus) == "reason"
    set_overrides(Job, lease=93, batch_size=5, by="Grace", using="default")
    wait_until(lambda: room.value("lease") == "93s", what="the lease of somebody else")
    assert room.run(focus) == "reason"
    room.write("reason", "ence")
    assert (room.value("reason"), room.value("batch_size")) == ("half a sentence", "17")
    room.press("Set")
    room.reads("Last changed by ada")
    assert overrides_of(Job, using="default") == {"batch_size": 17, "lease": timedelta(seconds=93)}


def test_the_page_follows_others_and_works_without_scripts(room: Browser) -> None:
    pause(Job, reason="incident 7", by="Grace")
    room.reads("testapp.Job is paused by Grace")
    room.press("Resume claiming")
    room.press("Resume claiming: jobs")
    room.reads("IDLE")
    assert paused_by(Job) is None
    with room.without_scripts():
        room.go(overview("testapp.job"))
        room.press("Pause claiming")
        room.write("reason", "no script")
        room.press("Pause claiming: jobs")
        wait_until(lambda: paused_by(Job) is not None, what="the pause")
    room.reads("no script")


def test_a_refresh_that_the_database_is_late_for_keeps_what_was_known(room: Browser) -> None:
    room.reads("IDLE")
    with override_settings(TASKCLAIM={"PAGE_TIMEOUT": 0.001}):
        room.reads("some figures are older or missing")
        assert "IDLE" in room.text()
        assert "UNKNOWN" not in room.text()
    set_overrides(Job, lease=93, using="default")
    wait_until(lambda: room.value("lease") == "93s", what="a refresh with news")


def test_an_interval_chosen_during_a_refresh_begins_no_second_loop(room: Browser) -> None:
    choose = "document.getElementById('tc-every').dispatchEvent(new Event('change'))"
    during = f"(...of) => (asked.push(Date.now()) > 1 || {choose}, ask(...of))"
    room.run(f"const ask = fetch; asked = []; fetch = {during}")
    wait_until(lambda: len(room.run("return asked")) > 2, what="two more refreshes")
    _, second, third = room.run("return asked")[:3]
    assert third - second > 1000


@pytest.mark.parametrize("width", [390, 820, 1300])
def test_long_names_without_a_space_widen_no_page(
    room: Browser, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "n" * 180
    monkeypatch.setattr(Photo._meta, "verbose_name_plural", name)
    failed(1, name)
    worker(name, last_error=name)
    record_action(Photo, "pause", by=name, reason=name)
    set_overrides(Photo, lease=93, by=name, using="default")
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    room.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for page in (overview(), photos(), command_url("drain", name)):
        room.go(page)
        assert room.run("const [e] = document.children; return e.scrollWidth - e.clientWidth") == 0


def test_a_page_without_a_network_or_a_session_says_so(room: Browser) -> None:
    room.driver.set_network_conditions(offline=True, latency=0, throughput=-1)
    room.reads("not refreshed since")
    room.driver.delete_network_conditions()
    wait_until(lambda: "not refreshed" not in room.text(), what="fresh again")
    room.driver.delete_all_cookies()
    room.reads("You are signed out.")
