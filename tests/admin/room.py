"""The control room as tests find it: who comes and what they may, its addresses, and what has happened in it."""

import re
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_taskclaim.models import WorkerProcess
from tests.factories import make
from tests.testapp.models import Job


def somebody(*permissions: str, csrf: bool = False, **user: Any) -> Client:
    """Return the client of a member of staff who has these permissions."""
    person = User.objects.create_user(
        f"u{User.objects.count()}", is_staff=True, first_name="Ada", **user
    )
    for name in permissions:
        app, codename = name.split(".")
        person.user_permissions.add(
            Permission.objects.get(content_type__app_label=app, codename=codename)
        )
    client = Client(enforce_csrf_checks=csrf)
    client.force_login(person)
    return client


VIEW = ("taskclaim_control.view_control", "testapp.view_job")
OPERATE = (*VIEW, "taskclaim_control.operate", "testapp.change_job")
CONFIGURE = (*VIEW, "taskclaim_control.configure", "testapp.change_job")


def url(page: str = "", model: str = "testapp_job", **kwargs: Any) -> str:
    return reverse(f"admin:{model}_control{'_' if page else ''}{page}", kwargs=kwargs)


def overview(page: str = "") -> str:
    return reverse(
        f"admin:taskclaim_control_{page}" if page else "admin:taskclaim_control_changelist"
    )


def worker(name: str = "worker@web-1:41", **facts: Any) -> WorkerProcess:
    now = timezone.now()
    values: dict[str, Any] = {"labels": "testapp.Job", "host": "web-1", "pid": 41, "version": "1"}
    values |= {"started_at": now - timedelta(hours=1), "seen_at": now}
    return WorkerProcess.objects.create(name=name, **(values | facts))


def failed_jobs(n: int, text: str = "job 7 has no width") -> list[Any]:
    rows = make(Job, n)
    for row in Job.objects.filter(pk__in=[row.pk for row in rows]).claim_batch(n, durable=False):
        row.claim.fail(text, retry=False)
    return rows


def group_of(client: Client) -> str:
    found = re.search(r'<tr data-key="([0-9a-f]{16})"', client.get(url()).content.decode())
    assert found is not None
    return found[1]


def text_of(answer: Any) -> str:
    """Return the words of a page, without its tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))
