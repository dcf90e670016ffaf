"""A real Chromium, driven through Debian's chromedriver: ``apt-get install chromium chromium-driver``."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from tests.worker.conftest import wait_until

#: Where pictures go when TASKCLAIM_TEST_PICTURES is set; the documentation shows them.
DOCS = Path(__file__).parents[2] / "docs" / "images"

WIDE, NARROW = (1280, 1000), (390, 844)


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
    options.add_argument("--hide-scrollbars")
    options.add_argument("--lang=en-GB")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


class Browser:
    """What a person sees and does."""

    def __init__(self, driver: webdriver.Chrome, address: str) -> None:
        self.driver = driver
        self.address = address

    def screen(self, size: tuple[int, int] = WIDE, *, dark: bool = False) -> None:
        """Look through a window of this size, in the light or the dark theme."""
        facts = {"width": size[0], "height": size[1], "deviceScaleFactor": 1}
        self.command("Emulation.setDeviceMetricsOverride", mobile=size == NARROW, **facts)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[theme])

    def command(self, name: str, **options: Any) -> Any:
        return self.driver.execute_cdp_cmd(name, options)

    def go(self, path: str) -> None:
        self.driver.get(self.address + path)

    def run(self, script: str, *given: Any) -> Any:
        return self.driver.execute_script(script, *given)

    def text(self, selector: str = "main") -> str:
        """Return what stands there, '' where the element is not there; safe against a refresh under way."""
        found = self.run(
            "const found = document.querySelector(arguments[0]); return found ? found.innerText : ''",
            selector,
        )
        return str(found)

    def has(self, selector: str) -> bool:
        return bool(self.run("return !!document.querySelector(arguments[0])", selector))

    def reads(self, words: str, selector: str = "main", seconds: float = 20) -> None:
        """Wait until *words* stand there."""
        wait_until(
            lambda: words in " ".join(self.text(selector).split()),
            seconds,
            f"{words!r} in {selector}; it says {self.text(selector)[:800]!r}",
        )

    def click(self, selector: str) -> None:
        self.driver.find_element(By.CSS_SELECTOR, selector).click()

    def follow(self, words: str) -> None:
        """Click the first link or button that says so."""
        one = f"[self::a or self::button][normalize-space()='{words}']"
        self.driver.find_element(By.XPATH, f"//main//*{one}").click()

    def write(self, selector: str, words: str) -> None:
        self.driver.find_element(By.CSS_SELECTOR, selector).send_keys(words)

    def refreshed(self, times: int = 1) -> None:
        """Wait until the page has looked again by itself."""
        before = self.refreshes()
        wait_until(lambda: self.refreshes() >= before + times, 30, "a refresh")

    def refreshes(self) -> int:
        script = "return performance.getEntriesByType('resource').filter(e => /live\\/$/.test(e.name)).length"
        return int(self.run(script))

    def complaints(self) -> list[str]:
        """Return what the browser's console has to complain about."""
        log: list[dict[str, str]] = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [line["message"] for line in log if "favicon" not in line["message"]]

    def picture(self, name: str, height: int | None = None) -> None:
        """Keep what is seen for the documentation, where that was asked for."""
        if not os.environ.get("TASKCLAIM_TEST_PICTURES"):
            return
        width = int(self.run("return innerWidth"))
        hide = "document.querySelectorAll('#nav-sidebar, #toggle-nav-sidebar').forEach(e => e.remove());"
        self.run(hide + "document.activeElement.blur(); scrollTo(0, 0)")
        whole = int(self.run("return document.documentElement.scrollHeight"))
        size = {"width": width, "height": height or whole, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        DOCS.mkdir(exist_ok=True)
        path = DOCS / f"{name}.png"
        self.driver.save_screenshot(str(path))
        small(path)


def small(path: Path) -> None:
    """Make a picture of few colours as small as it may be."""
    from PIL import Image

    with Image.open(path) as picture:
        picture.convert("RGB").quantize(200, dither=Image.Dither.NONE).save(path, optimize=True)


Open = Callable[..., Browser]
