"""A real Chromium, driven through Debian's chromedriver: ``apt-get install chromium chromium-driver``."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.signals import request_finished, request_started
from django.test import Client
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from tests.worker.conftest import wait_until


def start() -> webdriver.Chrome:
    """Return a browser without a window; fails where there is none."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.fail(
            "Needs chromium and chromedriver (Debian: chromium, chromium-driver);"
            ' leave these tests out with -m "not browser".'
        )
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"):
        options.add_argument(f"--{flag}")
    options.add_argument("--lang=en-GB")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    started = start()
    yield started
    started.quit()


class Browser:
    """What a person sees and does."""

    def __init__(self, driver: webdriver.Chrome, address: str) -> None:
        self.driver = driver
        self.address = address

    def log_in(self, user: Any) -> None:
        client = Client()
        client.force_login(user)
        self.go("/static/taskclaim/claims.css")
        cookie = {"name": "sessionid", "value": client.cookies["sessionid"].value}
        self.driver.add_cookie(cookie)

    def go(self, path: str) -> None:
        self.driver.get(self.address + path)

    def run(self, script: str, *given: Any) -> Any:
        return self.driver.execute_script(script, *given)

    def text(self) -> str:
        """Return the words of the page, also while it refreshes."""
        return " ".join(str(self.run("return document.body.innerText")).split())

    def reads(self, words: str) -> None:
        """Wait until *words* are on the page."""
        wait_until(lambda: words in self.text(), 90, f"{words!r}; it says {self.text()[:800]!r}")

    def press(self, words: str) -> None:
        """Press the first button or follow the first link that says so."""
        one = f"normalize-space()='{words}' or @value='{words}'"
        path = f"//main//*[self::a or self::button or self::input][{one}]"
        self.driver.find_element(By.XPATH, path).click()

    def write(self, name: str, words: str) -> None:
        """Type into the field of this name, behind what is there."""
        self.driver.find_element(By.CSS_SELECTOR, f"main [name={name}]").send_keys(words)

    def value(self, name: str) -> str:
        return str(self.run(f"return document.querySelector('main [name={name}]').value"))

    @contextmanager
    def without_scripts(self) -> Iterator[None]:
        command, name = self.driver.execute_cdp_cmd, "Emulation.setScriptExecutionDisabled"
        command(name, {"value": True})
        try:
            yield
        finally:
            command(name, {"value": False})

    def leave(self) -> list[str]:
        """Leave the page and the session, and return what the browser's console complained about."""
        log: list[dict[str, str]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        self.driver.get("about:blank")
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        self.driver.delete_all_cookies()
        return [line["message"] for line in log if "favicon" not in line["message"]]


@contextmanager
def requests_end() -> Iterator[None]:
    """At the end wait for requests under way, which would meet the next test's database."""
    requests: list[None] = []

    def begun(**facts: Any) -> None:
        requests.append(None)

    def done(**facts: Any) -> None:
        requests.pop()

    request_started.connect(begun)
    request_finished.connect(done)
    yield
    wait_until(lambda: not requests, 90, "the last request answered")
    request_started.disconnect(begun)
    request_finished.disconnect(done)
