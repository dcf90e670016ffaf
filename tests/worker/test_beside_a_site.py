"""A site on SQLite, used in a browser, while cron starts a worker every few seconds: nobody waits for it.

``TASKCLAIM_TEST_SECONDS`` is how long each half takes (20 without, 60 for the figures of the documentation).
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from tests.admin.browser import Browser, start
from tests.testapp.models import Job
from tests.worker.conftest import Worker, states, wait_until

pytestmark = [
    pytest.mark.long,
    pytest.mark.browser,
    pytest.mark.timeout(900),
    pytest.mark.skipif(connection.vendor != "sqlite", reason="needs a database with one writer"),
    pytest.mark.django_db(transaction=True, databases="__all__"),
]

SECONDS = float(os.environ.get("TASKCLAIM_TEST_SECONDS", "20"))
EVERY = 3.0

#: What a visitor's browser does all the time: look, add, take a breath; each with how long it took.
VISIT = """
window.took = []; window.wrong = []; window.visiting = true;
(async () => {
  while (window.visiting) {
    for (const path of ["/latest/", "/add/"]) {
      const began = performance.now();
      const answer = await fetch(path, {method: path === "/add/" ? "POST" : "GET"});
      const text = await answer.text();
      window.took.push(performance.now() - began);
      if (!answer.ok) window.wrong.push(answer.status + " " + text.slice(0, 300));
    }
    await new Promise(done => setTimeout(done, 20));
  }
  window.stopped = true;
})();
"""


@pytest.fixture
def site(process_env: dict[str, str]) -> Iterator[str]:
    """A process of its own that serves the site."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = process_env | {"DJANGO_SETTINGS_MODULE": "tests.worker.site_settings"}
    words = [sys.executable, "-m", "django", "runserver", f"127.0.0.1:{port}", "--noreload"]
    with subprocess.Popen(
        words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            wait_until(lambda: _answers(port), 60, "the site answers")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def visit(site: str, meanwhile: Callable[[float], None]) -> tuple[list[float], list[str]]:
    """Let a browser use the site for a while; return the milliseconds of its requests, and what went wrong."""
    driver = start()
    try:
        browser = Browser(driver, site)
        browser.go("/")
        browser.run(VISIT)
        meanwhile(time.monotonic() + SECONDS)
        browser.run("window.visiting = false")
        wait_until(lambda: browser.run("return !!window.stopped"), 60)
        took: list[Any] = browser.run("return window.took")
        return sorted(map(float, took)), browser.run("return window.wrong")
    finally:
        driver.quit()


def centile(took: list[float], share: float) -> float:
    return took[min(len(took) - 1, int(len(took) * share))]


def test_a_visitor_does_not_wait_for_cron(site: str, start_worker: Callable[..., Worker]) -> None:
    """No request fails, and at p99 none takes 200 ms longer than without workers."""
    alone, wrong = visit(site, lambda end: time.sleep(max(0.0, end - time.monotonic())))
    assert wrong == []
    Job.objects.all().delete()
    Job.objects.bulk_create([Job() for _ in range(2000)])
    runs: list[Worker] = []

    def cron(end: float) -> None:
        while time.monotonic() < end:
            runs.append(start_worker("--in-process", "--drain", "--max-time", "5"))
            time.sleep(EVERY)

    beside, wrong = visit(site, cron)
    assert wrong == []
    assert {run.wait() for run in runs} == {0}
    for name, took in (("alone", alone), ("beside", beside)):
        print(
            f"{name}: {len(took)} requests, p50 {centile(took, 0.5):.1f}, p99 {centile(took, 0.99):.1f},"
            f" longest {took[-1]:.1f} ms"
        )
    print(f"{len(runs)} runs; {states()}")
    assert not [event for run in runs for event in run.events("trouble")]
    assert states()["complete"] > 1000
    assert centile(beside, 0.99) - centile(alone, 0.99) < 200
