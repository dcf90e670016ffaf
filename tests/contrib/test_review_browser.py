"""Two editors in two browsers: an open page renews its claim, says when it is lost, and keeps every word."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from articles.models import Article
from articles.staff import make_editors
from django.contrib.auth.models import User
from django.utils import timezone
from selenium.webdriver.common.keys import Keys

from django_taskclaim.holders import holder_of
from tests.admin import browser as browsers
from tests.admin.browser import Browser
from tests.contrib.conftest import address
from tests.querysets.support import clock, facts, set_raw
from tests.worker.conftest import wait_until

pytestmark = [
    pytest.mark.once,
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
]


@pytest.fixture(scope="module")
def drivers() -> Iterator[list[Any]]:
    started = [browsers.start(), browsers.start()]
    yield started
    for driver in started:
        driver.quit()


@pytest.fixture
def two(drivers: list[Any], live_server: Any, articles: Any) -> Iterator[list[Browser]]:
    """Ada, who has fetched articles, and Ben."""
    make_editors()
    editors = [Browser(driver, live_server.url) for driver in drivers]
    with browsers.requests_end():
        for editor, name in zip(editors, ("ada", "ben"), strict=True):
            editor.log_in(User.objects.get(username=name))
        editors[0].go("/articles/")
        submit(editors[0], "more")
        wait_until(
            lambda: Article.objects.filter(status="processing").count() == 5, what="five articles"
        )
        yield editors
        complaints = [line for editor in editors for line in editor.leave()]
    assert [line for line in complaints if "409" not in line] == []


def submit(editor: Browser, act: str) -> None:
    editor.driver.find_element("css selector", f"button[value={act}]").click()


def choose(editor: Browser, verdict: str) -> None:
    editor.driver.find_element("css selector", f"input[value={verdict}]").click()


def held() -> Any:
    return Article.objects.filter(status="processing").earliest("pk")


def look_again(editor: Browser) -> None:
    """Let the page send its heartbeat now, as when a person comes back to the tab."""
    editor.run("document.dispatchEvent(new Event('visibilitychange'))")


def test_an_open_page_renews_and_says_that_the_claim_is_lost_before_anything_is_sent(
    two: list[Browser],
) -> None:
    ada, _ben = two
    row = held()
    ada.go(address(row.pk))
    ada.write("remark", "Half a sentence")
    ada.reads("min left")
    set_raw(row, "expires_at", clock("+1 MINUTE"))
    look_again(ada)
    long = timedelta(minutes=20)
    wait_until(lambda: facts(row).expires_at - timezone.now() > long, what="a renewal")
    ben = holder_of(User.objects.get(username="ben"))
    Article.objects.filter(pk=row.pk).take_over(by=ben, reason="test")
    look_again(ada)
    ada.reads("Ben Okri has held it since")
    ada.reads("nothing that you save here will be stored")
    assert ada.value("remark") == "Half a sentence"


def test_without_scripts_the_pages_do_all_but_renew(two: list[Browser]) -> None:
    ada, _ben = two
    row = held()
    with ada.without_scripts():
        ada.go(address(row.pk))
        # The Enter key saves, and does not finish.
        ada.write("remark", "Half" + Keys.ENTER)
        wait_until(lambda: Article.objects.get(pk=row.pk).remark == "Half", what="saved")
        assert facts(row).status == "processing"
        choose(ada, "keep")
        submit(ada, "finish")
        wait_until(lambda: facts(row).status == "complete", what="done")
