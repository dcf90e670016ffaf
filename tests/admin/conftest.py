"""Pages that wait as long as it takes and share nothing."""

import pytest
from django.test import Client

from django_taskclaim import conf
from django_taskclaim.admin import actions
from django_taskclaim.admin.control_room import snapshot
from tests.admin.room import somebody


@pytest.fixture(autouse=True)
def _patient_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(conf.DEFAULTS, "PAGE_TIMEOUT", 60.0)
    monkeypatch.setattr(snapshot, "SHARED_FOR", -1.0)
    snapshot._recent.clear()
    monkeypatch.setattr(actions, "SECONDS", 60.0)


@pytest.fixture
def boss(db: None) -> Client:
    """A superuser."""
    return somebody(name="boss", is_superuser=True)
