"""What the control room records and tells of an act that gets only part of the way, or goes to several databases."""

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import InterfaceError, OperationalError, connection, router
from django.test import Client, override_settings
from django.utils import timezone

from django_taskclaim.admin.control_room import acts, asking, views
from django_taskclaim.admin.control_room.failures import group_id
from django_taskclaim.control.models import OperatorAct, WorkerOrder
from django_taskclaim.querysets import ClaimQuerySet
from django_taskclaim.switch import SwitchError
from tests.admin.test_control_room_rights import (
    OPERATE,
    admin_of,
    failed,
    group,
    order_url,
    url,
    worker,
)
from tests.factories import make
from tests.testapp.models import HiddenRows, Photo, UuidKey

pytestmark = pytest.mark.django_db(databases=["default", "other"])


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    asking.forget()
    yield
    asking.forget()


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
@override_settings(TASKCLAIM={"CHUNK_SIZE": 2})
def test_a_retry_that_breaks_off_is_recorded_as_far_as_it_got(
    login: Any, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    failed(Photo, 4)
    real, calls = ClaimQuerySet.reset, []

    def reset(self: Any, **options: Any) -> int:
        calls.append(1)
        if len(calls) == 2:
            raise kind("the server went away")
        return real(self, **options)

    monkeypatch.setattr(ClaimQuerySet, "reset", reset)
    client = login(*OPERATE)
    answer = client.post(url("retry", group=group(Photo)), {"reason": "mended"}, follow=True)
    assert "2 failed rows are open again. Then the database refused: the server" in (
        answer.content.decode()
    )
    recorded = OperatorAct.objects.get()
    said = f"group {group(Photo)} – mended"
    assert (recorded.act, recorded.rows, recorded.reason) == ("reset", 2, said)


@override_settings(TASKCLAIM={"CHUNK_SIZE": 2})
def test_a_retry_without_patience_goes_on_where_it_stopped(
    login: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed(Photo, 6, "another cause")
    failed(Photo, 1)
    monkeypatch.setattr(acts, "PATIENCE", -1)
    client, address = login(*OPERATE), url("retry", group=group(Photo))
    for _ in range(4):
        answer = client.post(address, {"reason": ""})
        address = answer.url
        assert client.get(address).status_code == 200
    assert Photo.objects.open().count() == 1


@pytest.mark.parametrize("model", [UuidKey, HiddenRows])
@override_settings(TASKCLAIM={"CHUNK_SIZE": 2})
def test_where_a_retry_stopped_counts_for_its_model_alone(
    boss: Client, monkeypatch: pytest.MonkeyPatch, model: Any
) -> None:
    rows = failed(model, 3)
    for _ in range(2):
        failed(Photo, 3)
    monkeypatch.setattr(acts, "PATIENCE", -1)
    after = boss.post(url("retry", group=group(Photo)), {"reason": ""}).url.partition("?")[2]
    monkeypatch.setattr(acts, "PATIENCE", 60)
    others = url("retry", f"testapp_{model._meta.model_name}", group=group(model))
    assert boss.post(f"{others}?{after}", {"reason": ""}).status_code == 302
    assert model.objects.open().count() == len(rows)


@pytest.mark.parametrize("page", ["first", "retry"])
def test_the_record_of_a_retry_names_what_failed_and_the_reason(login: Any, page: str) -> None:
    """By its class alone: whoever reads the record may not see the rows whose text it would be."""
    (row,) = failed(Photo, 1, "another cause")
    for one in (*make(Photo, 2), row):
        Photo.objects.filter(pk=one.pk).reset()
        (taken,) = Photo.objects.filter(pk=one.pk).claim_batch(1, durable=False)
        taken.claim.fail(ValueError(f"{one.pk * 1000} is too wide"), retry=False)
    group_ = group_id("ValueError", "# is too wide")
    login(*OPERATE).post(url(page, group=group_), {"reason": "mended"})
    said = f"ValueError, group {group_}" + (" – mended" if page == "retry" else "")
    assert (OperatorAct.objects.get().rows, OperatorAct.objects.get().reason) == (3, said)
    assert LogEntry.objects.get().change_message == f"Reset, 3 rows: {said}"


def test_a_long_reason_is_recorded_in_full(login: Any) -> None:
    failed(Photo, 1)
    login(*OPERATE).post(url("retry", group=group(Photo)), {"reason": "y" * 490})
    recorded = OperatorAct.objects.get().reason
    assert recorded.endswith(" – " + "y" * 490)
    assert len(recorded) == 500


@pytest.mark.parametrize("page", ["first", "retry"])
def test_a_retry_tells_what_it_left_alone_and_why(
    login: Any, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    kept, quick, *_others = failed(Photo, 5)
    may = lambda self, request, obj=None: obj is None or obj.pk != kept.pk  # noqa: E731
    monkeypatch.setattr(admin_of(Photo), "has_operate_permission", may)
    real = acts.failed_rows

    def somebody_is_quicker(*args: Any) -> Iterator[Any]:
        for part in real(*args):
            Photo.objects.filter(pk=quick.pk).reset()
            yield part

    monkeypatch.setattr(acts, "failed_rows", somebody_is_quicker)
    answer = login(*OPERATE).post(url(page, group=group(Photo)), {"reason": ""}, follow=True)
    assert (
        "3 failed rows are open again. Left alone: 1 that you may not change, 1 that somebody else has locked or"
        " changed meanwhile."
    ) in answer.content.decode()


def test_a_retry_that_found_nothing_says_so_as_a_warning(login: Any) -> None:
    name = "0" * 16
    answer = login(*OPERATE).post(url("first", group=name), follow=True)
    (message,) = answer.context["messages"]
    assert (message.level_tag, str(message)) == ("warning", "0 failed rows are open again.")
    assert OperatorAct.objects.get().reason == f"group {name}"


#: Hundreds of millions of rows to look at, on any database.
SLOW = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900)"
    " SELECT COUNT(*) FROM n a, n b, n c WHERE a.i * b.i + c.i = 0"
)


@pytest.mark.parametrize("page", ["first", "retry"])
@override_settings(TASKCLAIM={"CHUNK_SIZE": 2})
def test_a_retry_of_rows_that_are_slow_to_read_ends_in_a_sentence(
    login: Any, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    failed(Photo, 4)
    real = acts.failed_rows

    def slow_to_go_on(*args: Any) -> Iterator[Any]:
        yield next(real(*args))
        with connection.cursor() as cursor:
            cursor.execute(SLOW)

    monkeypatch.setattr(acts, "failed_rows", slow_to_go_on)
    monkeypatch.setattr(acts, "READING_LIMIT", timedelta(seconds=0.3))
    began = time.monotonic()
    answer = login(*OPERATE).post(url(page, group=group(Photo)), {"reason": ""}, follow=True)
    # Sooner than the usual limit, and than the statement would take.
    assert time.monotonic() - began < 15
    assert answer.status_code == 200
    assert "2 failed rows are open again. Then the database refused: " in answer.content.decode()
    assert OperatorAct.objects.get().rows == Photo.objects.open().count() == 2


def test_a_retry_does_not_go_on_from_what_others_made_up(login: Any) -> None:
    failed(Photo, 3)
    login(*OPERATE).post(url("retry", group=group(Photo)) + "?after=2:x", {"reason": ""})
    assert Photo.objects.open().count() == 3


def test_a_pause_is_recorded_on_every_database_that_it_was_done_on(login: Any) -> None:
    login(*OPERATE).post(url("switch"), {"turn": "off", "reason": "deploy"})
    for alias in ("default", "other"):
        assert OperatorAct.objects.using(alias).get().act == "pause"


@pytest.mark.parametrize("done", [["other"], []])
def test_a_pause_that_reaches_one_database_of_two_is_recorded_there(
    login: Any, monkeypatch: pytest.MonkeyPatch, done: list[str]
) -> None:
    def pause(model: Any, **options: Any) -> None:
        raise SwitchError({"default": OperationalError("away")}, done)

    monkeypatch.setattr(acts, "pause", pause)
    answer = login(*OPERATE).post(url("switch"), {"turn": "off", "reason": ""}, follow=True)
    assert "but not on default: away" in answer.content.decode()
    assert not OperatorAct.objects.exists()
    assert OperatorAct.objects.using("other").count() == len(done)


@pytest.mark.parametrize("change", [{"batch_size": "7"}, {}])
def test_where_routers_keep_the_tables_away_the_page_says_so(
    boss: Client, monkeypatch: pytest.MonkeyPatch, change: dict[str, str]
) -> None:
    monkeypatch.setattr(router, "allow_migrate", lambda *args, **hints: False)
    answer = boss.post(url("settings"), change)
    assert answer.status_code == 200
    assert "Orders and live settings need the tables of django_taskclaim.control" in (
        answer.content.decode()
    )


def test_settings_that_the_database_refuses_are_shown_again(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise OperationalError("the disk is full")

    monkeypatch.setattr(views, "change_settings", refuse)
    text = boss.post(url("settings"), {"batch_size": "7"}).content.decode()
    assert "he disk is full" in text
    assert 'value="7"' in text


def test_an_order_that_was_not_done_to_the_end_says_how_far_it_got(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = worker(seen_at=timezone.now() - timedelta(minutes=5))

    def refuse(*args: Any, **options: Any) -> int:
        raise OperationalError("the disk is full")

    monkeypatch.setattr(ClaimQuerySet, "take_back", refuse)
    answer = boss.post(order_url("release", known.name), {"reason": ""}, follow=True)
    assert (
        f"Of the silent worker process {known.name}, 0 rows were put back, and then refused: testapp.Photo:"
        " the disk is full"
    ) in answer.content.decode()
    assert WorkerOrder.objects.get().done_at is not None


@pytest.mark.parametrize("start", ["", "x;", "x\t", "x\n", "x\r"])
@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\uff1d"])
def test_no_part_of_a_cell_is_a_formula(start: str, sign: str) -> None:
    assert acts._harmless(f"{start}{sign}1") == f"{start}'{sign}1"
