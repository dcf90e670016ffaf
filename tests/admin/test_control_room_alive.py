"""The control room tells the living from the dead, and what is known from what is not."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError
from django.test import Client, override_settings
from django.utils import timezone

from django_taskclaim.admin.control_room import asking, failures, figures
from django_taskclaim.control.models import ThroughputMinute
from django_taskclaim.querysets.scope import Desk
from django_taskclaim.switch import pause
from tests.admin.acting import act_on, said
from tests.admin.room import OPERATE, VIEW, failed_jobs, overview, text_of, url, worker
from tests.behaviour.support import clock, set_raw
from tests.factories import make
from tests.testapp.models import ClaimOnly, CompositeKey, Job, Photo, PrefixedOwnStatus

pytestmark = pytest.mark.django_db(databases=["default", "other"])


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    asking.forget()
    yield
    asking.forget()


def claimed_by_a_worker(n: int = 1, **facts: Any) -> str:
    """Claim rows as a worker process that reports so, and return its name."""
    rows = Job.objects.claim_batch(n, durable=False, lease=40)
    name = rows[0].claim.token.holder.partition("#")[0]
    worker(name, **facts)
    return str(name)


def silent(seconds: int = 120) -> dict[str, Any]:
    return {"seen_at": timezone.now() - timedelta(seconds=seconds)}


def throughput(process: str, done: int, *minutes_ago: int) -> None:
    """Let so much have been done in each of these minutes; the clock is read once, lest two of them be one."""
    now = timezone.now().replace(second=0, microsecond=0)
    for ago in minutes_ago:
        at = now - timedelta(minutes=ago)
        ThroughputMinute.objects.create(model="testapp.job", at=at, process=process, done=done)


# Who is alive


def test_with_no_worker_alive_nothing_runs_and_nothing_is_foretold(login: Any) -> None:
    make(Job, 10)
    for row in Job.objects.claim_batch(5, durable=False):
        row.claim.complete()
    name = claimed_by_a_worker(**silent())
    throughput(name, 60, *range(1, 10))
    client = login(*VIEW)
    for address in (url(), overview()):
        text = text_of(client.get(address))
        assert "RUNNING" not in text
        assert "READY The switch is on, and no worker is alive." in text
    assert " left" not in text_of(client.get(url()))
    worker("worker@web-2:42")
    text = text_of(client.get(url()))
    assert "RUNNING 1 worker process is alive." in text
    assert "about 5 s left" in text
    pause(Job)
    assert " left" not in text_of(client.get(url()))


def test_rows_of_a_silent_worker_return_only_where_somebody_puts_them_back(login: Any) -> None:
    make(Job, 1)
    claimed_by_a_worker(**silent())
    client = login(*VIEW)
    text = text_of(client.get(url()))
    assert "rows return" not in text
    assert "no worker is alive to put its rows back" in text
    worker("worker@web-2:42")
    text = text_of(client.get(url()))
    assert "rows return in" in text
    assert "to put its rows back" not in text


def test_releasing_the_rows_of_a_silent_worker_says_how_many_were_put_back(login: Any) -> None:
    make(Job, 3)
    name = claimed_by_a_worker(3, **silent())
    client = login(*OPERATE)
    address = f"{url('orders')}?order=release&worker={name}"
    text = text_of(client.post(address, {"reason": ""}, follow=True))
    assert f"Of the silent worker process {name}, 3 rows were put back." in text


def test_a_name_of_a_process_is_not_capitalised(login: Any) -> None:
    known = worker()
    address = f"{url('orders')}?order=drain&worker={known.name}"
    text = text_of(login(*OPERATE).post(address, {"reason": ""}, follow=True))
    assert f"The worker process {known.name} has been told." in text


def test_resuming_says_whether_anybody_works(login: Any) -> None:
    client = login(*OPERATE)
    text = text_of(client.post(url("switch"), {"turn": "on"}, follow=True))
    assert "the switch is on, and no worker is alive." in text
    assert "run again" not in text
    worker()
    text = text_of(client.post(url("switch"), {"turn": "on"}, follow=True))
    assert "run again." in text


def test_resuming_everything_says_whether_anybody_works(login: Any) -> None:
    client = login(*OPERATE)
    text = text_of(client.post(overview("resume"), {"reason": ""}, follow=True))
    assert "The switch of all models is on, and no worker is alive." in text
    worker()
    text = text_of(client.post(overview("resume"), {"reason": ""}, follow=True))
    assert "All models run again." in text


def test_the_button_on_the_list_says_so_too(boss: Client) -> None:
    text = said(boss.post(act_on(Photo, "resume"), {}))
    assert text == "Resumed, and no worker for photos is alive."
    worker(labels="testapp.Photo")
    text = said(boss.post(act_on(Photo, "resume"), {}))
    assert text.endswith("Resumed: workers claim photos again.")


def test_one_silent_worker_is_one(login: Any) -> None:
    make(Job, 1)
    worker(**silent())
    client = login(*VIEW)
    assert "1 silent worker " in text_of(client.get(overview()))
    worker("worker@web-2:42", **silent())
    assert "2 silent workers" in text_of(client.get(overview()))


# How fast


def rate_of(client: Any, name: str) -> str:
    """Return what stands in the column of rows a second for one process."""
    page = client.get(url()).content.decode()
    line = page.partition(f'<tr data-key="{name}"')[2].partition("</tr>")[0]
    return line.partition('data-th="Rows/s" class="tc-n">')[2].partition("<")[0]


def test_the_rate_of_a_young_worker_is_of_the_time_it_has_lived(login: Any) -> None:
    young = worker("worker@web-1:41", started_at=timezone.now() - timedelta(seconds=20))
    old = worker("worker@web-1:42")
    throughput(young.name, 200, 0)
    throughput(old.name, 300, 1)
    client = login(*VIEW)
    assert 4 <= float(rate_of(client, young.name)) <= 10
    assert 0.9 <= float(rate_of(client, old.name)) <= 1.3


def test_a_silent_worker_has_no_rate(login: Any) -> None:
    dead = worker(rows_done=4000, **silent())
    throughput(dead.name, 300, 1)
    assert rate_of(login(*VIEW), dead.name) == "–"


# What is known


def test_workers_are_shown_although_nothing_else_is_known(
    login: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*args: Any, **options: Any) -> Any:
        raise OperationalError("permission denied")

    monkeypatch.setattr(figures, "overview", refused)
    worker("worker@web-1:41")
    text = text_of(login(*VIEW).get(url()))
    assert "web-1" in text
    assert "None. Start one" not in text


def failure_cells(client: Client) -> list[tuple[str, ...]]:
    """Return error, hour, day and all of every group on the page."""
    page = client.get(url()).content.decode()
    name = r'class="tc-message">([^<]*).*?'
    cells = r'data-th="{}" class="tc-n">(?:<strong>)?([^<]*).*?'
    return re.findall(
        name + "".join(cells.format(span) for span in ("Hour", "Day", "All")), page, re.DOTALL
    )


def failed_at(text: str, *hours_ago: int) -> None:
    for row, ago in zip(failed_jobs(len(hours_ago), text), hours_ago, strict=True):
        set_raw(row, "claimed_at", clock(f"-{ago} hour"))


@pytest.mark.parametrize(
    ("candidates", "cells"),
    [
        (5, [("late", "2", "2", "2+"), ("middle", "0", "1", "1+")]),
        # The one that failed early in the index might as well be the latest.
        (4, [("late", "2+", "2+", "2+"), ("middle", "0+", "1+", "1+")]),
    ],
)
def test_of_more_failures_than_are_looked_at_the_latest_count(
    login: Any, monkeypatch: pytest.MonkeyPatch, candidates: int, cells: list[tuple[str, ...]]
) -> None:
    monkeypatch.setattr(failures, "MOST", 3)
    monkeypatch.setattr(failures, "CANDIDATES", candidates)
    failed_at("early", 50)
    failed_at("late", 0, 0)
    failed_at("middle", 2, 30)
    client = login(*VIEW)
    assert failure_cells(client) == cells
    assert "Among the latest 3 failed rows; there are more." in text_of(client.get(url()))


def test_all_failures_of_a_day_or_an_hour_are_told_as_such_only_where_none_was_left_out(
    login: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "MOST", 3)
    failed_at("late", 0, 0, 2, 2)
    assert failure_cells(login(*VIEW)) == [("late", "2", "3+", "3+")]


@pytest.mark.parametrize("model", [Job, ClaimOnly, PrefixedOwnStatus, CompositeKey])
def test_the_latest_failures_are_found_along_the_claim_index(model: Any) -> None:
    make(model, 3)
    desk = Desk.of(model, "default")
    found = failures.latest_in_index(desk.rows)
    fields = [*desk.columns.key, desk.columns.claimed_at]
    plan = desk.dialect.explain(desk.dialect.compiled(found, 2, fields), desk.table, may_sort=False)
    assert plan is not None
    assert not plan.sorts, plan.lines
    assert not plan.scans, plan.lines


def test_what_was_never_known_is_not_told_as_none(login: Any) -> None:
    failed_jobs(2)
    worker()
    client = login(*VIEW)
    with override_settings(TASKCLAIM={"PAGE_TIMEOUT": 0.001}):
        text = text_of(client.get(url()))
    assert text.count("The database has not answered in time yet.") >= 5
    for untrue in (
        "No row has failed.",
        "Nothing yet.",
        "Nothing was finished.",
        "None. Start one",
    ):
        assert untrue not in text
    text = text_of(client.get(url()))
    assert "The database has not answered" not in text
    assert "Nothing yet." in text
