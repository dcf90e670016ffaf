"""The control room's pages: what they show and to whom, also where a database is slow."""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone, translation

from django_taskclaim.admin.control_room import asking, words
from django_taskclaim.admin.control_room.figures import _open_orders
from django_taskclaim.control.models import WorkerOrder
from django_taskclaim.switch import pause
from tests.admin.room import OPERATE, VIEW, failed_jobs, overview, somebody, text_of, url, worker
from tests.behaviour.support import facts
from tests.factories import make
from tests.testapp.models import Job

pytestmark = pytest.mark.django_db(databases=["default", "other"])

# With its day in the minutes before and after midnight.
CLOCK = r"(\w+\.? \d+, \d{4} )?\d\d:\d\d"


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    asking.forget()
    yield
    asking.forget()


@pytest.fixture
def login() -> Callable[..., Client]:
    return somebody


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
    # The reaper's interval, and a quarter of the default lease.
    client, back_at = login(*VIEW), facts(row).expires_at + timedelta(seconds=10 + 15)
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
    (row,) = Job.objects.claim_batch(1, durable=False, lease=4065)
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
