"""The control room on a project's own AdminSite, with a ModelAdmin whose rules count, and with a table that hangs."""

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.http import HttpRequest
from django.test import Client, override_settings
from django.urls import path, reverse
from django.utils import timezone

from django_taskclaim.admin import ClaimAdminMixin
from django_taskclaim.admin.control_room import asking
from django_taskclaim.admin.control_room.mounting import register
from django_taskclaim.models import WorkerProcess
from tests.factories import make
from tests.testapp.models import Photo, UuidKey
from tests.urls import urlpatterns as project

site = AdminSite("own")


class OursAdmin(ClaimAdminMixin, ModelAdmin):  # type: ignore[type-arg]
    """Its users see the photos of New Zealand, and only Ada may change any."""

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).filter(country="NZ")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.get_username() == "ada"


site.register(Photo, OursAdmin)
register(site)
urlpatterns = [*project, path("own/", site.urls)]


@pytest.fixture(autouse=True)
def _routes() -> Iterator[None]:
    asking.forget()
    with override_settings(ROOT_URLCONF=__name__):
        yield
    asking.forget()


def client_of(name: str) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser(name))
    return client


def url(page: str = "", **kwargs: Any) -> str:
    return reverse(f"own:testapp_photo_control{'_' if page else ''}{page}", kwargs=kwargs)


def failed_photos() -> None:
    """Make six failed photos of New Zealand and four of Australia."""
    for country, n in (("NZ", 6), ("AU", 4)):
        make(Photo, n, country=country)
        for row in Photo.objects.filter(country=country).claim_batch(n, durable=False):
            row.claim.fail(f"no picture of {country.lower()}", retry=False)


@pytest.mark.django_db
def test_another_site_has_a_control_room_of_its_own() -> None:
    assert url() == "/own/testapp/photo/control/"
    page = client_of("ada").get("/own/taskclaim/control/").content.decode()
    assert 'href="/own/testapp/photo/control/"' in page
    assert 'href="/own/taskclaim/control/testapp.job/"' in page
    assert "/admin/taskclaim" not in page


@pytest.mark.django_db
def test_errors_of_rows_that_one_may_not_see_are_not_shown_exported_or_retried() -> None:
    failed_photos()
    client = client_of("ada")
    page = client.get(url()).content.decode()
    assert "no picture of nz" in page
    assert "no picture of au" not in page
    exported = b"".join(client.get(url("export")).streaming_content).decode()
    assert exported.count("no picture of nz") == 6
    assert "no picture of au" not in exported

    hidden = group("no picture of au")
    client.post(url("retry", group=hidden), {"reason": ""})
    client.post(url("first", group=hidden))
    assert Photo.objects.failed().count() == 10
    client.post(url("retry", group=group("no picture of nz")), {"reason": ""})
    assert set(Photo.objects.failed().values_list("country", flat=True)) == {"AU"}


@pytest.mark.django_db
def test_a_workers_last_error_is_named_only_where_its_row_may_be_another() -> None:
    now = timezone.now()
    WorkerProcess.objects.create(
        name="worker@web-1:41",
        labels="testapp.Photo",
        host="web-1",
        pid=41,
        started_at=now,
        seen_at=now,
        last_error="ValueError: no picture of au",
    )
    page = client_of("ada").get(url()).content.decode()
    assert "ValueError" in page
    assert "no picture of au" not in page
    everything = reverse("admin:testapp_photo_control")
    assert "no picture of au" in client_of("root").get(everything).content.decode()


def group(message: str) -> str:
    from django_taskclaim.admin.control_room.failures import group_id

    (error,) = set(
        Photo.objects.filter(last_error__startswith=message).values_list("error_class", flat=True)
    )
    return group_id(error or "", message)


@pytest.mark.django_db(databases=["default", "other"])
def test_the_rules_of_the_modeladmin_count() -> None:
    client = client_of("grace")
    assert "tc-switch" not in client.get(url()).content.decode()
    assert client.post(url("switch"), {"turn": "off"}).status_code == 403
    assert client.post(url("settings"), {"batch_size": 3}).status_code == 403
    assert client_of("ada").post(url("switch"), {"turn": "off"}).status_code == 302


@pytest.mark.django_db
def test_rows_link_to_their_own_page() -> None:
    make(UuidKey, 1)
    (row,) = UuidKey.objects.claim_batch(1, durable=False)
    row.claim.fail("no", retry=False)
    page = client_of("ada").get(reverse("admin:testapp_uuidkey_control")).content.decode()
    assert f'<a href="/admin/testapp/uuidkey/{row.pk}/change/">' in page


@pytest.mark.django_db(transaction=True)
def test_a_table_that_hangs_is_shown_as_it_was() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("needs table locks that readers wait for")
    make(Photo, 3)
    client = client_of("ada")
    client.get(url())
    locked, leave = threading.Event(), threading.Event()

    def lock() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("LOCK TABLE testapp_photo IN ACCESS EXCLUSIVE MODE")
            locked.set()
            leave.wait(60)
        connection.close()

    holder = threading.Thread(target=lock)
    holder.start()
    try:
        assert locked.wait(20)
        with override_settings(TASKCLAIM={"PAGE_TIMEOUT": 0.4}):
            answer = client.get(url("live"))
    finally:
        leave.set()
        holder.join()
    page = answer.content.decode()
    assert answer.status_code == 200
    assert re.search(r"Some figures are as of \d\d:\d\d:\d\d", page)
    assert "READY" in page
    assert "Some figures" not in client.get(url("live")).content.decode()
