"""Rows in every state, and pages that wait as long as it takes and share nothing."""

from typing import Any

import pytest
from django.test import Client

from django_taskclaim import conf
from django_taskclaim.admin import actions
from django_taskclaim.admin.control_room import snapshot
from tests.admin.room import somebody
from tests.factories import make
from tests.querysets.support import clock, set_raw


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


@pytest.fixture
def in_states() -> Any:
    """Return what makes one row of a model in each state."""

    def make_them(model: Any) -> dict[str, Any]:
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

    return make_them
