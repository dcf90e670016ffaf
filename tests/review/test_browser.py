"""Two editors in two browsers, on the pages of the example."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from articles.corpus import texts
from articles.models import Article
from articles.staff import make_editors
from django.contrib.auth.models import User
from django.core.signals import request_finished, request_started
from django.test import Client
from django.utils import timezone
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from django_taskclaim.people import holder_of
from tests.admin import browser as browsers
from tests.admin.browser import NARROW, WIDE, Browser
from tests.behaviour.support import clock, facts, set_raw
from tests.worker.conftest import wait_until

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(240),
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
]

SHAPES = [("wide", WIDE, False), ("wide-dark", WIDE, True), ("phone", NARROW, False)]
SHAPES.append(("phone-dark", NARROW, True))


@pytest.fixture(scope="module")
def drivers() -> Iterator[list[Any]]:
    started = [browsers.start(), browsers.start()]
    yield started
    for driver in started:
        driver.quit()


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


class Editor(Browser):
    """One of the two, in a browser of their own."""

    def __init__(self, driver: Any, address: str, name: str) -> None:
        super().__init__(driver, address)
        self.user = User.objects.get(username=name)
        self.who = holder_of(self.user)
        client = Client()
        client.force_login(self.user)
        self.screen()
        self.go("/static/taskclaim/review/review.css")
        driver.add_cookie({"name": "sessionid", "value": client.cookies["sessionid"].value})

    def desk(self) -> list[str]:
        self.go("/articles/")
        return self.shown()

    def shown(self) -> list[str]:
        keys = "[...document.querySelectorAll('li[data-taskclaim-pk]')].map(e => e.dataset.taskclaimPk)"
        return [str(key) for key in self.run(f"return {keys}")]

    def fetch(self) -> list[str]:
        """Ask for more, and return what the page shows then."""
        before = self.shown()
        self.click("button[value=more]")
        wait_until(lambda: self.shown() != before, 30, "more rows")
        return self.shown()

    def edit(self, pk: str, **fields: str) -> None:
        self.go(f"/articles/{pk}/")
        for name, words in fields.items():
            self.driver.find_element(By.NAME, name).clear()
            self.write(f"[name={name}]", words)

    def finish(self) -> None:
        self.click("input[value=mend]")
        self.click("button[value=finish]")


@pytest.fixture
def two(drivers: list[Any], live_server: Any, under_way: list[None]) -> Iterator[Callable[[], Any]]:
    Article.objects.bulk_create(
        Article(source=one.source, title=one.title, text=one.text) for one in list(texts())[:8]
    )
    make_editors()
    editors = [
        Editor(driver, live_server.url, name)
        for driver, name in zip(drivers, ("ada", "ben"), strict=True)
    ]
    yield lambda: editors
    for editor in editors:
        complaints = editor.complaints()
        editor.driver.get("about:blank")
        editor.driver.delete_all_cookies()
        assert [line for line in complaints if "409" not in line] == []
    wait_until(lambda: not under_way, 20, "the last request answered")


def pictures(editor: Editor, name: str, folder: Path) -> None:
    """Look at the page in every shape; the pictures are for whoever runs the test."""
    for shape, size, dark in SHAPES:
        editor.screen(size, dark=dark)
        whole = int(editor.run("return document.documentElement.scrollHeight"))
        too_wide = editor.run("return document.documentElement.scrollWidth - innerWidth")
        editor.command(
            "Emulation.setDeviceMetricsOverride",
            width=size[0],
            height=max(whole, 400),
            deviceScaleFactor=1,
            mobile=size == NARROW,
        )
        editor.driver.save_screenshot(str(folder / f"{name}-{shape}.png"))
        assert too_wide <= 0, f"{name} is too wide for {shape}"
    editor.screen()


def test_two_editors_never_see_one_article_and_a_reload_keeps_the_set(
    two: Any, tmp_path: Path
) -> None:
    ada, ben = two()
    pictures(ada, "empty", tmp_path) if ada.desk() == [] else pytest.fail("nothing was claimed yet")
    mine, theirs = ada.fetch(), (ben.desk(), ben.fetch())[1]
    assert (len(mine), len(theirs)) == (5, 3)
    assert not set(mine) & set(theirs)
    assert ada.desk() == mine
    assert ben.desk() == theirs
    ben.go("/articles/?asked")
    ben.reads("5 are held by others, next free")
    pictures(ben, "list", tmp_path)
    ben.picture("people-list")
    ben.go(f"/articles/{mine[0]}/")
    ben.reads("Ada Lovelace has held it")
    pictures(ben, "others", tmp_path)


def test_an_expired_article_moves_on(two: Any, under_way: list[None]) -> None:
    ada, ben = two()
    ada.desk()
    mine = ada.fetch()
    ada.driver.get("about:blank")
    # Else a ping of the page that was just left would renew what has lapsed.
    wait_until(lambda: not under_way, 20, "the last ping answered")
    for pk in mine[:2]:
        set_raw(Article.objects.get(pk=pk), "expires_at", clock("-1 MINUTE"))
    ben.desk()
    theirs = ben.fetch()
    assert set(mine[:2]) <= set(theirs)
    assert ada.desk() == [pk for pk in mine if pk not in theirs]


def test_a_late_save_is_refused_and_shows_both_texts(two: Any, tmp_path: Path) -> None:
    ada, ben = two()
    ada.desk()
    pk = ada.fetch()[0]
    ada.edit(pk, remark="Ada read it twice.", title="A title of Ada's")
    pictures(ada, "form", tmp_path)
    ben.go(f"/articles/{pk}/")
    ben.click("summary")
    ben.write("#taskclaim_reason", "Ada has gone home")
    ben.click("button[value=take_over]")
    ben.reads("Yours while this page is open")
    ben.edit(pk, remark="Ben read it once.")
    ben.finish()
    wait_until(lambda: facts(Article.objects.get(pk=pk)).status == "complete", what="Ben is done")
    before = Article.objects.values().get(pk=pk)

    ada.finish()
    ada.reads("nothing was written")
    ada.reads("Ben Okri finished it at")
    ada.reads("2 fields differ")
    assert Article.objects.values().get(pk=pk) == before
    mine = [one.get_attribute("value") for one in ada.driver.find_elements(By.TAG_NAME, "textarea")]
    assert mine == ["A title of Ada's", "Ada read it twice."]
    pictures(ada, "late", tmp_path)
    ada.picture("people-late")


def test_an_open_page_renews_and_tells_of_a_loss_before_anything_is_sent(
    two: Any, tmp_path: Path
) -> None:
    ada, ben = two()
    ada.desk()
    pk = ada.fetch()[0]
    row = Article.objects.get(pk=pk)
    ada.edit(pk, remark="Half a sentence")
    ada.reads("min left", "[data-taskclaim-left]")
    set_raw(row, "expires_at", clock("+1 MINUTE"))
    ada.run("document.dispatchEvent(new Event('visibilitychange'))")
    wait_until(
        lambda: facts(row).expires_at - timezone.now() > timedelta(minutes=20), 20, "a renewal"
    )
    Article.objects.filter(pk=pk).take_over(by=ben.who, reason="test")
    ada.run("document.dispatchEvent(new Event('visibilitychange'))")
    ada.reads("Ben Okri has held it since")
    ada.reads("nothing that you save here will be stored", "[data-taskclaim-notice]")
    assert ada.run("return document.querySelector('[name=remark]').value") == "Half a sentence"
    pictures(ada, "lost", tmp_path)


def test_a_permission_that_is_taken_away_is_told_and_costs_no_word(
    two: Any, tmp_path: Path
) -> None:
    ada, _ben = two()
    ada.desk()
    pk = ada.fetch()[0]
    ada.edit(pk, remark="Half a sentence")
    ada.user.groups.clear()
    ada.run("document.dispatchEvent(new Event('visibilitychange'))")
    ada.reads("You may not change it.")
    ada.click("button[value=save]")
    ada.reads("Nothing was written. You may not change articles.")
    sent = [one.get_attribute("value") for one in ada.driver.find_elements(By.TAG_NAME, "textarea")]
    assert (sent[0], sent[-1]) == (Article.objects.get(pk=pk).title, "Half a sentence")
    pictures(ada, "refused", tmp_path)
    assert all("403" in line for line in ada.complaints())
    assert Article.objects.get(pk=pk).remark == ""


def test_without_javascript_the_pages_do_all_but_renew(two: Any) -> None:
    ada, _ben = two()
    ada.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        ada.go("/articles/")
        pk = ada.fetch()[0]
        ada.go(f"/articles/{pk}/")
        # The Enter key saves, and does not finish.
        ada.write("[name=remark]", "Half" + Keys.ENTER)
        row = Article.objects.get(pk=pk)
        wait_until(lambda: Article.objects.get(pk=pk).remark == "Half", what="saved")
        assert facts(row).status == "processing"
        ada.click("input[value=keep]")
        ada.click("button[value=finish]")
        wait_until(lambda: facts(Article.objects.get(pk=pk)).status == "complete", what="done")
    finally:
        ada.command("Emulation.setScriptExecutionDisabled", value=False)
