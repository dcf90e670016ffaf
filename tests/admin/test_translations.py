"""No word on a page of the admin that a catalogue could not translate, and no number or date of another locale."""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from socket import gethostname
from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin.utils import quote
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_taskclaim import census, conf
from django_taskclaim.admin import sweeping
from django_taskclaim.admin.control_room import asking
from django_taskclaim.control.acts import record_act
from django_taskclaim.control.models import ThroughputMinute
from django_taskclaim.control.orders import order
from django_taskclaim.fields import ClaimColumn, PriorityField
from django_taskclaim.models import Throttle
from django_taskclaim.switch import pause, pause_all, resume_all
from tests.admin import scene
from tests.behaviour.support import clock, set_raw
from tests.factories import make
from tests.marking import reading_marks, unmarked
from tests.testapp.models import ClaimOnly, IntRange, IntSource, Job, Photo

pytestmark = [
    pytest.mark.django_db(databases=["default", "other"]),
    # Every page in a language of its own takes its time, and a tenth of that of all tests.
    pytest.mark.skipif(
        connection.vendor != "sqlite", reason="words are the same whatever database the rows are on"
    ),
]

#: What the project and its users have named: models, people, processes, errors, keys; and names from statistics.
THEIRS = [
    r"manage\.py [\w ]+ (testapp\.\w+( --rows)?|--all)",
    r"\w+\.objects\.\w+\(\)(\.reset\(\))?",
    r"@handler\(\w+\)|queryset=|claims\.py",
    r"\w+ object \(\S+\)",
    r"\w+@[\w-]+(:\d+)?(#\w+)?",
    rf"web-\d|\b{re.escape(gethostname())}\b",
    r"Ada Lovelace|boss|user:\d+",
    r"(builtins\.)?(ConnectionRefused|Value|Lookup)Error",
    r"no such picture|try again|job # has no width|URL refused # tries|connection to \S+ refused",
    r"https://\S+",
    # The id of a group of failures.
    r"\b[0-9a-f]{16}\b",
    r"deploy \d\.\d|mended|deploy|fire|lag \d+ s|ReplicaLag",
    r"\b[Tt]estapp\b(?!\.)|\bother\b|\bShout\b",
    r"\b(CSV|UTC|p50|p95|FailedByOperator)\b",
    # Django's own, which no catalogue knows.
    r"\bSearch\b",
]


def names_of_the_project() -> list[str]:
    """Return what other apps than ours call themselves, their models and their fields."""
    others = [one for one in apps.get_app_configs() if not one.name.startswith("django_taskclaim")]
    metas = [model._meta for app in others for model in app.get_models()]
    names = {app.verbose_name for app in others} | {meta.label for meta in metas}
    names |= {name for meta in metas for name in (meta.verbose_name, meta.verbose_name_plural)}
    fields = [field for meta in metas for field in meta.fields]
    names |= {
        one.verbose_name for one in fields if not isinstance(one, (ClaimColumn, PriorityField))
    }
    spelled = sorted(map(str, names), key=len, reverse=True)
    return [rf"(?i:\b{re.escape(name)}\b)" for name in spelled]


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    asking.forget()
    yield
    asking.forget()


def room(page: str = "", model: Any = Job, **kwargs: Any) -> str:
    meta = model._meta
    name = f"admin:{meta.app_label}_{meta.model_name}_control{'_' if page else ''}{page}"
    return reverse(name, kwargs=kwargs)


def overview(page: str = "changelist") -> str:
    return reverse(f"admin:taskclaim_control_{page}")


def address(model: Any, page: str = "changelist", *args: Any) -> str:
    return reverse(f"admin:testapp_{model._meta.model_name}_{page}", args=args)


@pytest.fixture
def left_in_english(boss: Client) -> Callable[..., list[str]]:
    """Return what opens pages, or posts to them, and says what is in no catalogue there."""

    def read(*addresses: str, sent: Any = None) -> list[str]:
        with reading_marks():
            answers = [
                boss.get(one) if sent is None else boss.post(one, sent, follow=True)
                for one in addresses
            ]
        pages = [answer.content.decode() for answer in answers]
        assert [answer.status_code for answer in answers] == [200] * len(pages)
        theirs = [*THEIRS, *names_of_the_project()]
        found = sorted({text for page in pages for text in unmarked(page, theirs)})
        return found + [number for page in pages for number in re.findall(r"\b\d+,\d{3}\b", page)]

    return read


# The control room


def a_quiet_day() -> None:
    """Nothing has been done, and nobody works."""


def a_busy_day() -> None:
    """Rows in every state, workers alive and dead, and all that somebody can do to them."""
    scene.a_day_of_work()
    record_everything()
    busy = ThroughputMinute.objects.order_by("-at")[3]
    busy.errors, busy.failed, busy.stopped = 4711, 1204, "lag 31 s"
    busy.save()


def record_everything() -> None:
    facts: dict[str, Any] = {"by": "Ada Lovelace", "using": "default"}
    for act in ("fail", "release", "release expired", "pause rows", "resume rows", "take over"):
        record_act(Job, act, rows=1204, key="17", **facts)
    record_act(None, "pause", **facts)
    with reading_marks():
        for known in (scene.BUSY, scene.LIVING):
            order(known, "drain", reason="mended", **facts)
        order(scene.DEAD, "release", **facts)


def a_pause() -> None:
    make(Job, 3)
    Job.objects.claim_batch(2)
    pause(Job, by="Ada Lovelace", reason="deploy", until=3 * 86400)


def a_pause_of_everything() -> None:
    make(Job, 3)
    pause_all()


def a_throttle() -> None:
    make(Job, 3)
    scene._workers()
    throttle(scene.BUSY)


def throttles_on_everybody() -> None:
    for process in (scene.BUSY, scene.LIVING):
        throttle(process)


def throttle(process: str) -> None:
    now = timezone.now()
    facts = {"label": "testapp.job", "source": "ReplicaLag", "reason": "lag 31 s"}
    until = now + timedelta(days=2)
    Throttle.objects.create(process=process, since_at=now, until=until, **facts)


def leases_that_ended() -> None:
    make(Job, 2)
    for row in Job.objects.claim_batch(2):
        set_raw(row, "expires_at", clock("-1 HOUR"))


def rows_that_wait() -> None:
    make(Job, 2)
    Job.objects.release(Job.objects.claim_batch(2), delay=3700)


def rows_that_people_hold() -> None:
    make(Job, 7)
    for number in range(7):
        Job.objects.claim_batch(1, claimed_by=f"user:{number}", lease=3700)


def everything_done() -> None:
    make(Job, 2)
    Job.objects.complete(Job.objects.claim_batch(2))


SCENES = [
    a_quiet_day,
    a_busy_day,
    a_pause,
    a_pause_of_everything,
    a_throttle,
    leases_that_ended,
    rows_that_wait,
    rows_that_people_hold,
    everything_done,
]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_the_control_room(left_in_english: Any, scene: Any) -> None:
    scene()
    assert left_in_english(room(), room("live"), overview(), overview("live")) == []


def test_the_control_room_of_ranges(left_in_english: Any) -> None:
    IntSource.objects.bulk_create(IntSource() for _ in range(2500))
    IntRange.objects.plan(chunk_size=1000)
    assert left_in_english(room(model=IntRange)) == []


def test_estimates(left_in_english: Any, monkeypatch: pytest.MonkeyPatch, boss: Client) -> None:
    monkeypatch.setattr(census, "SMALL", 100)
    monkeypatch.setattr(census, "MOST", 50)
    a_large_table()
    assert "≈" in boss.get(room()).content.decode()
    assert left_in_english(room(), overview()) == []


def a_large_table() -> None:
    states = [("open", 3000), ("complete", 1000), ("failed", 700), ("paused", 700)]
    Job.objects.bulk_create(Job(status=status) for status, n in states for _ in range(n))


def test_a_database_that_does_not_answer_in_time(
    left_in_english: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_busy_day()
    monkeypatch.setitem(conf.DEFAULTS, "PAGE_TIMEOUT", 0.0)
    assert left_in_english(room(), overview()) == []
    monkeypatch.setitem(conf.DEFAULTS, "PAGE_TIMEOUT", 60.0)
    assert left_in_english(room()) == []
    monkeypatch.setitem(conf.DEFAULTS, "PAGE_TIMEOUT", 0.0)
    assert left_in_english(room(), overview()) == []


def test_nobody_is_told_late_what_was_said_in_another_language(
    boss: Client, left_in_english: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_busy_day()
    assert "set aside one by one" in boss.get(room()).content.decode()
    monkeypatch.setitem(conf.DEFAULTS, "PAGE_TIMEOUT", 0.0)
    assert left_in_english(room()) == []


@pytest.mark.parametrize("what", ["drain", "stop", "release"])
def test_an_order(left_in_english: Any, what: str) -> None:
    a_busy_day()
    for worker in (scene.BUSY, scene.DEAD):
        address = f"{room('orders')}?worker={worker}&order={what}"
        assert left_in_english(address) == []
        assert left_in_english(address, sent={"reason": "mended"}) == []


def test_retrying_failures(left_in_english: Any, boss: Client) -> None:
    a_busy_day()
    found = re.search(r'<tr data-key="([0-9a-f]{16})"', boss.get(room()).content.decode())
    assert found is not None
    group = found[1]
    assert left_in_english(room("retry", group=group)) == []
    assert left_in_english(room("first", group=group), sent={}) == []
    assert left_in_english(room("retry", group=group), sent={"reason": ""}) == []


def test_the_switches(left_in_english: Any) -> None:
    a_busy_day()
    for sent in ({"turn": "off", "until": "900"}, {"turn": "on"}, {}):
        assert left_in_english(room("switch"), sent=sent) == []
    for page in ("pause", "resume"):
        assert left_in_english(overview(page)) == []
        assert left_in_english(overview(page), sent={"reason": "fire", "until": ""}) == []


@pytest.mark.parametrize(
    "sent",
    [
        {"batch_size": "7", "rate_limit": "2.5", "window_from": "22:00", "window_to": "06:00"},
        {"batch_size": "7", "reason": "mended"},
        {"window_from": "22:00"},
        {"window_from": "22:00", "window_to": "22:00"},
        {"batch_size": "100000", "lease": "nan", "concurrency": "x"},
    ],
    ids=lambda sent: " ".join(sent),
)
def test_live_settings(left_in_english: Any, sent: dict[str, str]) -> None:
    assert left_in_english(room("settings"), sent=sent) == []
    assert left_in_english(room()) == []


def test_the_export_of_failures(boss: Client) -> None:
    scene.a_day_of_work()
    with reading_marks():
        answer: Any = boss.get(room("export"))
    # As a server does it that sends the lines once the request is over.
    head = next(iter(answer.streaming_content)).decode("utf-8-sig")
    assert unmarked(head, THEIRS) == []


# The list and the change page


@pytest.mark.parametrize("model", [Photo, ClaimOnly])
@pytest.mark.parametrize("stop", [None, pause, pause_all])
def test_the_list_and_the_page_of_a_row(
    left_in_english: Any, in_states: Any, model: Any, stop: Any
) -> None:
    rows = in_states(model)
    if stop is not None:
        stop(
            *([model] if stop is pause else []), by="Ada Lovelace", reason="deploy", until=3 * 86400
        )
    pages = [address(model, "change", quote(row.pk)) for row in rows.values()]
    filters = [f"?claim_state={kind}" for kind in rows]
    lists = [address(model) + one for one in ("", *filters)]
    try:
        assert left_in_english(*pages, *lists, address(model, "add")) == []
    finally:
        resume_all()


def test_the_timeline_of_a_row(left_in_english: Any, settings: Any) -> None:
    settings.TASKCLAIM = {"HISTORY": ["testapp.Photo"]}
    (photo,) = make(Photo)
    rows = Photo.objects.filter(pk=photo.pk)

    def claimed(**options: Any) -> Any:
        (row,) = rows.claim_batch(1, **options)
        return row

    claimed().claim.release()
    claimed().claim.fail(LookupError("no such picture"), retry=True)
    rows.reset()
    for _fate in range(6):
        set_raw(photo, "not_before", clock("-1 HOUR"))
        set_raw(claimed(), "expires_at", clock("-1 HOUR"))
        rows.release_expired()
    rows.reset()
    claimed(claimed_by="user:17").claim.hand_over("user:18")
    rows.take_over(by="user:17", reason="deploy")
    rows.take_back()
    rows.pause_rows()
    rows.resume_rows()
    rows.fail_rows("mended")
    assert left_in_english(address(Photo, "change", photo.pk)) == []


ROW_ACTS = ["reset", "pause-row", "resume-row", "take-back", "fail"]


@pytest.mark.parametrize("act", ROW_ACTS)
def test_the_buttons_of_a_row(left_in_english: Any, in_states: Any, act: str) -> None:
    for row in in_states(Photo).values():
        page = f"{address(Photo)}{quote(row.pk)}/claim/{act}/"
        assert left_in_english(page) == []
        assert left_in_english(page, sent={"taskclaim_confirmed": "yes"}) == []


@pytest.mark.parametrize("act", ["pause", "resume", "release-expired", "reset-failed"])
def test_the_buttons_of_a_list(left_in_english: Any, in_states: Any, act: str) -> None:
    in_states(Photo)
    page = f"{address(Photo)}claim/{act}/"
    for stop in (None, pause_all):
        if stop is not None:
            stop()
        assert left_in_english(page) == []
        assert left_in_english(page, sent={"reason": "mended", "lasts": "1h"}) == []


ACTIONS = [
    "reset_failed",
    "reset",
    "pause_rows",
    "resume_rows",
    "release_expired",
    "take_back",
    "fail",
]


@pytest.mark.parametrize("action", ACTIONS)
def test_actions_on_chosen_rows(left_in_english: Any, in_states: Any, action: str) -> None:
    chosen = [row.pk for row in in_states(Photo).values()]
    sent = {"action": f"claim_{action}", "_selected_action": chosen, "reason": "mended"}
    assert left_in_english(address(Photo), sent=sent) == []
    assert left_in_english(address(Photo), sent={**sent, "taskclaim_confirmed": "yes"}) == []


def test_an_act_that_goes_on_by_itself(
    left_in_english: Any, in_states: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "BUDGET", 0.0)
    in_states(Photo)
    page = f"{address(Photo)}claim/reset-failed/"
    assert left_in_english(page, sent={"reason": ""}) == []


def test_what_the_admin_remembers_of_acts(left_in_english: Any, in_states: Any) -> None:
    failed = in_states(Photo)["failed"]
    left_in_english(f"{address(Photo)}claim/pause/", sent={"reason": "mended"})
    left_in_english(f"{address(Photo)}claim/reset-failed/", sent={"reason": "mended"})
    left_in_english(overview("pause"), sent={"reason": "mended", "until": ""})
    page = f"{address(Photo)}{quote(failed.pk)}/claim/pause-row/"
    left_in_english(page, sent={"taskclaim_confirmed": "yes"})
    assert left_in_english(reverse("admin:index"), address(Photo, "history", failed.pk)) == []
