"""Nothing but an allowed POST with CSRF acts in the control room, and texts of others are only text."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_taskclaim.admin.control_room import asking
from django_taskclaim.control.models import LiveSettings, OperatorAct, WorkerOrder
from django_taskclaim.models import Switch
from django_taskclaim.switch import pause
from tests.admin.room import (
    CONFIGURE,
    OPERATE,
    VIEW,
    failed_jobs,
    group_of,
    overview,
    somebody,
    text_of,
    url,
    worker,
)
from tests.factories import make
from tests.testapp.models import Job

pytestmark = pytest.mark.django_db(databases=["default", "other"])

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    asking.forget()
    yield
    asking.forget()


@pytest.fixture
def login() -> Callable[..., Client]:
    return somebody


def test_texts_of_others_are_only_text(login: Any) -> None:
    from django_taskclaim.models import Throttle

    make(Job, 2)
    first, _second = Job.objects.claim_batch(2, durable=False)
    first.claim.fail(f"bad {SCRIPT}", retry=False)
    worker(f"{SCRIPT}@h:1", last_error=SCRIPT, host=SCRIPT, version=SCRIPT)
    pause(Job, by=SCRIPT, reason=SCRIPT)
    now = timezone.now()
    facts = {"label": "testapp.job", "since_at": now, "until": now + timedelta(minutes=5)}
    Throttle.objects.create(process=SCRIPT, source=SCRIPT, reason=SCRIPT, **facts)
    OperatorAct.objects.create(
        at=now, model="testapp.job", act=SCRIPT, by=SCRIPT, reason=SCRIPT, key=SCRIPT
    )
    client = login(*OPERATE)
    addresses = [url(), url("live"), overview(), overview("live")]
    addresses += [url("orders") + f"?order=drain&worker={SCRIPT}@h:1"]
    addresses += [url("retry", group=group_of(client))]
    for address in addresses:
        page = client.get(address).content.decode()
        assert SCRIPT not in page, address
    assert "&lt;script&gt;" in client.get(url()).content.decode()


def acts(group: str = "0" * 16) -> list[tuple[str, dict[str, str], tuple[str, ...]]]:
    """Return every address that acts, with what is sent there and who may."""
    name = "worker@web-1:41"
    return [
        (url("switch"), {"turn": "off"}, OPERATE),
        (url("switch"), {"turn": "on"}, OPERATE),
        *(
            (f"{url('orders')}?order={what}&worker={name}", {"reason": ""}, OPERATE)
            for what in ("drain", "stop", "release")
        ),
        (url("first", group=group), {}, OPERATE),
        (url("retry", group=group), {"reason": ""}, OPERATE),
        (url("settings"), {"batch_size": "7"}, CONFIGURE),
        (overview("pause"), {"until": ""}, OPERATE),
        (overview("resume"), {}, OPERATE),
    ]


ACTS = range(10)


def everything() -> list[Any]:
    """Return all that an act could have changed."""
    return [
        list(Switch.objects.order_by("pk").values()),
        list(WorkerOrder.objects.values()),
        list(LiveSettings.objects.values()),
        list(OperatorAct.objects.values()),
        list(Job.objects.order_by("pk").values("pk", "status", "iteration")),
    ]


@pytest.fixture
def things() -> str:
    """Have one of everything that can be acted on, and return the group of failures."""
    failed_jobs(12)
    worker()
    root = User.objects.create_superuser("root")
    client = Client()
    client.force_login(root)
    return group_of(client)


@pytest.mark.parametrize("number", ACTS)
def test_a_get_changes_nothing(login: Any, things: str, number: int) -> None:
    before = everything()
    address, _sent, who = acts(things)[number]
    assert login(*who).get(address).status_code in (200, 405)
    assert everything() == before


@pytest.mark.parametrize("number", ACTS)
def test_a_post_without_csrf_changes_nothing(login: Any, things: str, number: int) -> None:
    before = everything()
    address, sent, who = acts(things)[number]
    assert login(*who, csrf=True).post(address, sent).status_code == 403
    assert everything() == before


DENIED = {
    "none": (),
    "view only": VIEW,
    "the model's own only": ("testapp.view_job", "testapp.change_job"),
}


@pytest.mark.parametrize("number", ACTS)
@pytest.mark.parametrize("permissions", DENIED.values(), ids=DENIED)
def test_without_the_permission_nothing_is_changed(
    login: Any, things: str, number: int, permissions: tuple[str, ...]
) -> None:
    before = everything()
    address, sent, _who = acts(things)[number]
    assert login(*permissions).post(address, sent).status_code == 403
    assert everything() == before


@pytest.mark.parametrize("number", list(ACTS)[:8])
def test_operating_on_a_model_needs_its_own_change_permission(
    login: Any, things: str, number: int
) -> None:
    before = everything()
    address, sent, _who = acts(things)[number]
    client = login(*VIEW, "taskclaim_control.operate", "taskclaim_control.configure")
    assert client.post(address, sent).status_code == 403
    assert everything() == before


def test_whoever_may_operate_may_not_configure(login: Any, things: str) -> None:
    assert login(*OPERATE).post(url("settings"), {"batch_size": 7}).status_code == 403
    assert login(*CONFIGURE).post(url("switch"), {"turn": "off"}).status_code == 403


@pytest.mark.parametrize("permissions", [(), ("testapp.view_job",), VIEW[:1]])
def test_without_the_permission_nothing_is_shown(login: Any, permissions: tuple[str, ...]) -> None:
    client = login(*permissions)
    for address in (url(), url("live"), url("export"), overview(), overview("live")):
        assert client.get(address).status_code == 403
    assert "Control room" not in text_of(client.get(reverse("admin:index")))


def test_whoever_may_only_look_is_offered_no_act(login: Any, things: str) -> None:
    page = login(*VIEW).get(url()).content.decode()
    assert "tc-switch" not in page
    assert "Drain" not in page
    assert "Retry" not in page
    assert 'class="tc-fields" disabled' in page


def test_strangers_are_sent_to_the_login() -> None:
    assert "/login/" in Client().get(url("live")).headers["Location"]
