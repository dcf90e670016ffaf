"""The admin as tests find it: who comes, the addresses, the forms, and what was said and recorded."""

import re
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any

from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode

from django_taskclaim.control.models import OperatorAct
from django_taskclaim.models import WorkerProcess
from tests.factories import make
from tests.querysets.support import clock, set_raw
from tests.testapp.models import Photo

WORKER, SILENT = "worker@web-1:41", "worker@web-2:42"

VIEW = ("taskclaim_control.view_control", "testapp.view_photo", "testapp.view_job")
OPERATE = (*VIEW, "taskclaim_control.operate", "testapp.change_photo")
CONFIGURE = (*VIEW, "taskclaim_control.configure", "testapp.change_photo")


def somebody(*permissions: str, name: str = "", csrf: bool = False, **facts: Any) -> Client:
    """Return the client of a member of staff who has these permissions and no others."""
    name = name or f"u{User.objects.count()}"
    person = User.objects.create_user(name, **{"is_staff": True, **facts})
    for one in permissions:
        app, codename = one.split(".")
        person.user_permissions.add(
            Permission.objects.get(content_type__app_label=app, codename=codename)
        )
    client = Client(enforce_csrf_checks=csrf)
    client.force_login(person)
    return client


# Addresses


def address(model: Any, page: str = "changelist", *args: Any, site: str = "admin") -> str:
    meta = model._meta
    return reverse(f"{site}:{meta.app_label}_{meta.model_name}_{page}", args=args)


def act_on(model: Any, act: str, row: Any = None) -> str:
    """Return the address of a button: of one row, or of the whole list."""
    return address(model, "claim", *(() if row is None else (quote(row.pk),)), act)


def overview(*page: str, site: str = "admin") -> str:
    """Return an address of the control room: of all models, or of one."""
    return reverse(f"{site}:taskclaim_control_changelist", args=[one for one in page if one])


def photos(page: str = "", *, site: str = "admin", **query: str) -> str:
    query_string = f"?{urlencode(query)}" if query else ""
    return overview("testapp.photo", page, site=site) + query_string


def command_url(what: str, name: str = WORKER) -> str:
    return photos(what, worker=name)


# What a browser shows and sends


def text_of(answer: Any) -> str:
    """Return the words of a page, without its tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))


def said(answer: Any) -> str:
    return " ".join(str(message) for message in get_messages(answer.wsgi_request))


class _Forms(HTMLParser):
    """Finds the forms of a page: their addresses, and what a browser would send of each."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, dict[str, list[str]]] = {}
        self._fields: dict[str, list[str]] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        if tag == "form":
            self._fields = self.found.setdefault(facts.get("action") or "", {})
        named = tag == "input" and facts.get("name")
        if named and facts.get("type") not in {"submit", "checkbox", "radio"}:
            self._fields.setdefault(str(facts["name"]), []).append(facts.get("value") or "")


def form_of(page: Any, action: str = "") -> dict[str, list[str]]:
    """Return what a browser sends of the form with this address, typed by nobody."""
    return _Forms(page.content.decode()).found.get(action, {})


def perform(client: Client, url: str, typed: dict[str, Any]) -> Any:
    """Open a page that asks, answer it, and return what came back."""
    return client.post(url, {**form_of(client.get(url)), **typed})


def chosen(action: str, *rows: Any, **more: Any) -> dict[str, Any]:
    """Return what the list sends when somebody chooses rows and an action."""
    return {"action": action, "_selected_action": [str(row.pk) for row in rows], **more}


def run_action(client: Client, url: str, sent: dict[str, Any]) -> Any:
    """Choose an action, and answer the question that it may ask."""
    page = client.post(url, sent)
    return page if page.status_code != 200 else client.post(url, {**form_of(page), **sent})


def recorded() -> list[tuple[Any, ...]]:
    """Return the recorded acts, oldest first."""
    fields = ("model", "act", "rows", "by", "reason", "key")
    return list(OperatorAct.objects.order_by("id").values_list(*fields))


# What has happened


def worker(name: str = WORKER, *, silent: bool = False, **facts: Any) -> WorkerProcess:
    """List a worker process of photos that has reported just now, or has fallen silent."""
    now = timezone.now()
    values: dict[str, Any] = {"labels": ["testapp.Photo"]}
    seen_at = now - timedelta(minutes=2 if silent else 0)
    values |= {"started_at": now - timedelta(hours=1), "seen_at": seen_at}
    return WorkerProcess.objects.create(name=name, **(values | facts))


def in_states(model: Any) -> dict[str, Any]:
    """Make one row of the model in each state."""
    paused = make(model, 6)[0]
    model.objects.filter(pk=paused.pk).pause_rows()
    complete, failed, expired, processing, waiting = model.objects.claim_batch(5)
    complete.claim.complete()
    failed.claim.fail(LookupError("no such picture"), retry=False)
    set_raw(expired, "expires_at", clock("-1 HOUR"))
    waiting.claim.fail(ValueError("try again"))
    found = {"paused": paused, "complete": complete, "failed": failed}
    found |= {"expired": expired, "processing": processing}
    if any(field.name.endswith("not_before") for field in model._meta.concrete_fields):
        set_raw(waiting, "not_before", clock("+270 SECOND"))
        found["waiting"] = waiting
    (found["open"],) = make(model)
    return found


def failed(n: int, error: Any = "no width", model: Any = Photo, **values: Any) -> list[Any]:
    """Make rows that have failed with this error."""
    keys = [row.pk for row in make(model, n, **values)]
    rows = model.objects.filter(pk__in=keys).claim_batch(n, durable=False)
    for row in rows:
        row.claim.fail(error, retry=False)
    return list(rows)


def group_of(client: Client, address: str = "") -> str:
    """Return the name of the first group of failures in the control room."""
    page = client.get(address or photos()).content.decode()
    found = re.search(r"/retry/\?group=(\w+)", page)
    assert found is not None, text_of(client.get(address or photos()))
    return found[1]
