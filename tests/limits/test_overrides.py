"""Overrides: what makes sense is stored beside the pause and recorded, the rest is refused in a sentence."""

from datetime import timedelta
from typing import Any

import pytest

from django_taskclaim.control.audit import change_overrides
from django_taskclaim.control.models import OperatorAct
from django_taskclaim.switch import overrides_of, pause, paused_by, resume, set_overrides
from tests.querysets.support import at_once
from tests.testapp.models import Ledger, Photo

pytestmark = pytest.mark.django_db(databases="__all__")

HERE = {"using": "default"}


def change(**values: Any) -> None:
    set_overrides(Photo, **values, **HERE)


def test_a_change_leaves_the_pause_and_the_other_overrides_and_is_recorded() -> None:
    values = {"batch_size": 20, "lease": "30s"}
    change_overrides(Photo, values, by="ada", reason="slow", **HERE)
    pause(Photo, reason="deploy", **HERE)
    change(rate="100/m", batch_size=None, hours="22:00-06:00", max_running=0)
    assert paused_by(Photo, **HERE) is not None
    resume(Photo, **HERE)
    lease = timedelta(seconds=30)
    stored = {"lease": lease, "rate": "100/m", "max_running": 0, "hours": "22:00-06:00"}
    assert overrides_of(Photo, **HERE) == stored
    act = OperatorAct.objects.get()
    assert (act.act, act.by, act.reason) == ("settings", "ada", "batch size 20, lease 30s: slow")


@pytest.mark.once
@pytest.mark.parametrize(
    "given",
    [
        {"batch_size": 1001},
        {"batch_size": 0},
        {"batch_size": True},
        {"lease": float("nan")},
        {"lease": 1},
        {"lease": timedelta(days=2)},
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_name(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(ValueError, match=name):
        change(**given, rate="100/m")
    assert overrides_of(Photo, **HERE) == {}


@pytest.mark.once
def test_what_cannot_be_overridden_is_refused() -> None:
    with pytest.raises(TypeError, match="threads"):
        change(threads=3)
    with pytest.raises(TypeError, match="Ledger"):
        set_overrides(Ledger, batch_size=3)


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_two_people_change_different_overrides_at_once() -> None:
    at_once(lambda: change(batch_size=20), lambda: change(lease="90s"))
    lease = timedelta(seconds=90)
    assert overrides_of(Photo, **HERE) == {"batch_size": 20, "lease": lease}
