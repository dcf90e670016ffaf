"""Rows that something other than a verb wrote: each kind is counted, with a command or a statement that corrects it."""

from typing import Any

import pytest
from django.core.management import call_command
from django.db import models

from django_taskclaim.doctor import examine
from tests.doctor.support import doctor_text, send
from tests.factories import make
from tests.querysets.support import clock, facts, set_raw
from tests.testapp.models import Child, Photo, PrefixedOwnStatus

pytestmark = pytest.mark.django_db(databases="__all__")


def corrections(model: type[models.Model]) -> list[str]:
    found = [one for one in examine(model, "default") if "other than a verb" in one.msg]
    assert all(one.is_serious() for one in found)
    return [one.hint for one in found]


@pytest.mark.parametrize("model", [Photo, Child, PrefixedOwnStatus])
def test_each_kind_is_corrected_by_what_the_doctor_prints(model: Any) -> None:
    endless, held, paused, done, strange = make(model, 5)
    model.objects.filter(pk=endless.pk).claim_batch(1)
    set_raw(endless, "expires_at", "NULL")
    set_raw(held, "claimed_by", "'somebody'")
    set_raw(paused, "status", "'paused'")
    set_raw(paused, "claimed_at", clock("-1 HOUR"))
    set_raw(done, "status", "'complete'")
    set_raw(done, "expires_at", clock("+1 HOUR"))
    set_raw(strange, "status", "'done'")
    statements = corrections(model)
    assert len(statements) == 3
    assert f"manage.py release_expired {model._meta.label}" in doctor_text(model)
    call_command("release_expired", model._meta.label)
    for statement in statements:
        send(statement)
    assert corrections(model) == []
    assert model.objects.open().filter(pk__in=[endless.pk, held.pk]).count() == 2
    assert (facts(strange).status, facts(strange).iteration) == ("paused", 1)
