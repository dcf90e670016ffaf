"""Whoever comes to the admin, and rows in every state."""

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client

from django_taskclaim import conf
from django_taskclaim.admin import sweeping
from django_taskclaim.admin.control_room import acts
from tests.behaviour.support import clock, set_raw
from tests.factories import make


def permission(name: str) -> Permission:
    app, codename = name.split(".")
    return Permission.objects.get(content_type__app_label=app, codename=codename)


@pytest.fixture(autouse=True)
def _nobody_is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no page show half of what there is because the machine was busy; tests of impatience set it themselves."""
    monkeypatch.setitem(conf.DEFAULTS, "PAGE_TIMEOUT", 60.0)
    monkeypatch.setattr(sweeping, "BUDGET", 60.0)
    monkeypatch.setattr(acts, "PATIENCE", 60.0)


@pytest.fixture
def login(db: None) -> Any:
    """Return what logs a member of the staff in, with the permissions named and no others."""

    def log_in(*names: str, superuser: bool = False, name: str = "ada") -> Client:
        user = User.objects.create_user(name, password="x", is_staff=True, is_superuser=superuser)
        user.user_permissions.set([permission(one) for one in names])
        client = Client()
        client.force_login(user)
        return client

    return log_in


@pytest.fixture
def boss(login: Any) -> Client:
    """A superuser."""
    client: Client = login(superuser=True, name="boss")
    return client


@pytest.fixture
def in_states() -> Any:
    """Return what makes one row of a model in each state, by the words of the pills."""

    def make_them(model: Any) -> dict[str, Any]:
        rows = make(model, 6)
        paused = rows[0]
        model.objects.filter(pk=paused.pk).pause_rows()
        taken = model.objects.claim_batch(5)
        complete, failed, expired, processing, waiting = taken
        complete.claim.complete()
        failed.claim.fail(LookupError("no such picture"), retry=False)
        set_raw(expired, "expires_at", clock("-1 HOUR"))
        waiting.claim.fail(ValueError("try again"))
        found = {
            "paused": paused,
            "complete": complete,
            "failed": failed,
            "expired": expired,
            "processing": processing,
        }
        if any(field.name.endswith("not_before") for field in model._meta.concrete_fields):
            set_raw(waiting, "not_before", clock("+270 SECOND"))  # told as 4 min for a while
            found["waiting"] = waiting
        (found["open"],) = make(model)
        return found

    return make_them


def is_postgresql() -> bool:
    return connection.vendor == "postgresql"
