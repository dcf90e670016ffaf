"""An editor in a browser: a page that can be seen renews its claim, says when it is lost, and keeps every word."""

import re
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
from tests.admin.browser import Browser, driver, requests_end
from tests.contrib.conftest import address
from tests.querysets.support import clock, facts, set_raw
from tests.worker.conftest import wait_until

__all__ = ["driver"]  # a fixture

pytestmark = [
    pytest.mark.once,
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
]


@pytest.fixture
def ada(driver: Any, live_server: Any, articles: Any) -> Iterator[Browser]:
    """Ada, who has fetched articles."""
    make_editors()
    editor = Browser(driver, live_server.url)
    with requests_end():
        editor.log_in(User.objects.get(username="ada"))
        editor.go("/articles/")
        submit(editor, "more")
        wait_until(
            lambda: Article.objects.filter(status="processing").count() == 5, what="five articles"
        )
        yield editor
        complaints = editor.leave()
    assert [line for line in complaints if "409" not in line] == []


def submit(editor: Browser, act: str) -> None:
    editor.driver.find_element("css selector", f"button[value={act}]").click()


def choose(editor: Browser, verdict: str) -> None:
    editor.driver.find_element("css selector", f"input[value={verdict}]").click()


def held() -> Any:
    return Article.objects.filter(status="processing").earliest("pk")


def test_a_page_that_can_be_seen_renews_and_says_that_it_cannot_before_anything_is_sent(
    ada: Browser,
) -> None:
    row, long = held(), timedelta(minutes=20)
    for path in (address(row.pk), "/articles/"):
        set_raw(row, "expires_at", clock("+1 MINUTE"))
        ada.go(path)
        wait_until(lambda: facts(row).expires_at - timezone.now() > long, what="a renewal")
        wait_until(lambda: not re.search(r"until \d", ada.text()), what="no moment that is over")
    ada.go(address(row.pk))
    ada.write("remark", "Half a sentence")
    ada.reads("keeps it longer while you can see it")
    ben = holder_of(User.objects.get(username="ben"))
    Article.objects.filter(pk=row.pk).take_over(by=ben, reason="test")
    # As when a person comes back to the tab.
    ada.run("document.dispatchEvent(new Event('visibilitychange'))")
    ada.reads("Copy what you have written")
    assert ada.value("remark") == "Half a sentence"


def test_without_scripts_the_pages_do_all_but_renew(ada: Browser) -> None:
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
