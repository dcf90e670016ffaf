"""Who may do what in the control room, where a ModelAdmin, a row or another model says otherwise."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin import site
from django.db import InterfaceError
from django.test import override_settings
from django.urls import reverse
from django.utils import timezone

from django_taskclaim.admin.control_room import asking
from django_taskclaim.admin.control_room.failures import group_id, normalised
from django_taskclaim.admin.control_room.figures import look_at
from django_taskclaim.control.models import OperatorAct, WorkerOrder
from django_taskclaim.models import Switch, WorkerProcess
from tests.behaviour.support import set_raw
from tests.factories import make
from tests.testapp.models import Job, Photo, UuidKey

pytestmark = pytest.mark.django_db(databases=["default", "other"])

VIEW = ("taskclaim_control.view_control", "testapp.view_photo", "testapp.view_job")
OPERATE = (*VIEW, "taskclaim_control.operate", "testapp.change_photo")


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    asking.forget()
    yield
    asking.forget()


def url(page: str = "", model: str = "testapp_photo", **kwargs: Any) -> str:
    return reverse(f"admin:{model}_control{'_' if page else ''}{page}", kwargs=kwargs)


def failed(model: Any, n: int, text: str = "no width") -> list[Any]:
    keys = [row.pk for row in make(model, n)]
    rows = model.objects.filter(pk__in=keys).claim_batch(n, durable=False)
    for row in rows:
        row.claim.fail(text, retry=False)
    return list(rows)


def group(model: Any, text: str = "no width") -> str:
    (error,) = set(model.objects.filter(last_error=text).values_list("error_class", flat=True))
    return group_id(error or "", normalised(text))


def worker(name: str = "worker@web-1:41", **facts: Any) -> WorkerProcess:
    now = timezone.now()
    values: dict[str, Any] = {"labels": "testapp.Photo", "host": "web-1", "pid": 41, "version": "1"}
    values |= {"started_at": now - timedelta(hours=1), "seen_at": now}
    return WorkerProcess.objects.create(name=name, **(values | facts))


def admin_of(model: Any) -> type[Any]:
    return type(site._registry[model])


# Rows of one's own model


@pytest.mark.parametrize("method", ["has_change_permission", "has_operate_permission"])
@pytest.mark.parametrize("page", ["first", "retry"])
def test_a_row_that_one_may_not_change_is_not_retried(
    login: Any, monkeypatch: pytest.MonkeyPatch, page: str, method: str
) -> None:
    kept, *others = failed(Photo, 3)
    forbid = lambda self, request, obj=None: obj is None or obj.pk != kept.pk  # noqa: E731
    monkeypatch.setattr(admin_of(Photo), method, forbid, raising=False)
    login(*OPERATE).post(url(page, group=group(Photo)), {"reason": ""})
    assert set(Photo.objects.failed()) == {kept}
    assert OperatorAct.objects.get().rows == len(others)


def test_a_modeladmin_that_lets_nobody_operate_is_obeyed(
    login: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid = lambda self, request, obj=None: False  # noqa: E731
    monkeypatch.setattr(admin_of(Photo), "has_operate_permission", forbid)
    client = login(*OPERATE)
    assert client.post(url("switch"), {"turn": "off"}).status_code == 403
    assert "tc-switch" not in client.get(url()).content.decode()
    assert not Switch.objects.exists()


# Workers that serve others as well


def order_url(what: str = "release", name: str = "worker@web-1:41") -> str:
    return f"{url('orders')}?order={what}&worker={name}"


@pytest.mark.parametrize("labels", ["testapp.Photo, testapp.Job", "testapp.job,testapp.photo"])
def test_an_order_needs_every_model_that_the_worker_serves(login: Any, labels: str) -> None:
    worker(labels=labels)
    client = login(*OPERATE)
    assert client.get(order_url()).status_code == 403
    assert client.post(order_url(), {"reason": ""}).status_code == 403
    assert not WorkerOrder.objects.exists()
    other = login(*OPERATE, "testapp.change_job", name="grace")
    assert other.post(order_url(), {"reason": ""}).status_code == 302
    assert WorkerOrder.objects.exists()


def test_the_modeladmin_of_the_other_model_is_asked(
    login: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker(labels="testapp.Photo, testapp.UuidKey")
    forbid = lambda self, request, obj=None: False  # noqa: E731
    monkeypatch.setattr(admin_of(UuidKey), "has_change_permission", forbid, raising=False)
    client = login(superuser=True)
    assert client.post(order_url(), {"reason": ""}).status_code == 403


def test_an_order_is_recorded_once_for_each_model_with_its_own_rows(login: Any) -> None:
    known = worker(
        labels="testapp.Photo, testapp.Job", seen_at=timezone.now() - timedelta(minutes=5)
    )
    for model, n in ((Photo, 2), (Job, 1)):
        make(model, n)
        for row in model.objects.claim_batch(n, durable=False):
            set_raw(row, "claimed_by", f"'{known.name}#1'")
    login(*OPERATE, "testapp.change_job").post(order_url(), {"reason": "gone"})
    recorded = OperatorAct.objects.values_list("model", "act", "rows", "key")
    assert set(recorded) == {
        ("testapp.photo", "worker order", 2, known.name),
        ("testapp.job", "worker order", 1, known.name),
    }


# What is asked for and is not there


def test_an_unknown_order_is_not_found(login: Any) -> None:
    worker()
    client = login(*OPERATE)
    for what in ("%25", "dance", ""):
        assert client.get(order_url(what)).status_code == 404
        assert client.post(order_url(what), {"reason": ""}).status_code == 404
    assert login(*VIEW, name="grace").get(order_url("%25")).status_code == 403


def test_there_are_no_orders_where_the_control_tables_are_not(
    login: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker()
    monkeypatch.setattr("django_taskclaim.admin.control_room.views.is_on", lambda using: False)
    client = login(*OPERATE)
    assert client.get(order_url()).status_code == 404
    assert client.post(order_url(), {"reason": ""}).status_code == 404


@pytest.mark.parametrize("verb", ["get", "post"])
def test_an_order_while_the_database_does_not_answer_says_so(login: Any, verb: str) -> None:
    worker()
    client = login(*OPERATE)
    with override_settings(TASKCLAIM={"PAGE_TIMEOUT": 0.001}):
        answer = getattr(client, verb)(order_url(), {"reason": ""} if verb == "post" else {})
    assert answer.status_code == 302
    assert "did not answer in time" in client.get(answer.url).content.decode()
    assert not WorkerOrder.objects.exists()


def test_an_order_that_the_database_refuses_says_so(
    login: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker()
    client = login(*OPERATE)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise InterfaceError("connection already closed")

    monkeypatch.setattr("django_taskclaim.admin.control_room.views.order", refuse)
    answer = client.post(order_url("drain"), {"reason": ""})
    assert "onnection already closed" in client.get(answer.url).content.decode()


# What was known before


def test_the_last_known_errors_are_those_of_the_same_rows() -> None:
    failed(Photo, 2, "secret of a tenant")

    def known(rows: Any, who: str = "1 on admin") -> Any:
        return look_at(Photo, "default", rows, who).failed

    assert known(Photo.objects.all()) is not None
    with override_settings(TASKCLAIM={"PAGE_TIMEOUT": 0.001}):
        assert known(Photo.objects.all()) is not None
        assert known(Photo.objects.none()) is None
        assert known(Photo.objects.filter(country="NZ")) is None
        assert known(Photo.objects.all(), "1 on own") is None


def test_only_so_many_answers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MOST", 3)
    for number in range(5):
        asking.Asking("default", "testapp.photo").ask(str(number), lambda: 1)
    assert [name for _alias, _subject, name in asking._known] == ["2", "3", "4"]
