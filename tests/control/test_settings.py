"""Live settings: what makes sense is stored and recorded, the rest is refused by name."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connections

from django_taskclaim.control.models import LiveSettings
from django_taskclaim.control.orders import change_settings, settings_of
from django_taskclaim.control.reading import acts
from django_taskclaim.db import dialect_for
from django_taskclaim.handlers import handler, unregister
from tests.querysets.support import at_once
from tests.testapp.models import Ledger, Photo

pytestmark = pytest.mark.django_db(databases="__all__")


def change(**values: Any) -> Any:
    return change_settings(Photo, values, by="ada", using="default")


def test_a_change_leaves_the_other_settings_and_is_recorded_with_what_was() -> None:
    change(batch_size=20, lease=timedelta(seconds=30))
    change(rate="100/m", batch_size="", hours="22:00-06:00", max_running="none")
    change(rate="100/m")
    assert settings_of(Photo, using="default") == {
        "batch_size": None,
        "lease": 30.0,
        "rate": "100/m",
        "max_running": 0,
        "hours": "22:00-06:00",
    }
    second, first = acts(Photo, using="default")
    assert first.reason == "batch size 20 (was default), lease 30 (was default)"
    assert "batch size default (was 20)" in second.reason
    assert "rows at once none (was default)" in second.reason
    assert first.by == "ada"


@pytest.mark.once
def test_a_value_that_makes_no_sense_is_refused_by_name() -> None:
    for values, names in (
        ({"batch_size": 1001, "max_running": "many"}, {"batch_size", "max_running"}),
        ({"rate": "100"}, {"rate"}),
        ({"hours": "06:00-06:00"}, {"hours"}),
        ({"lease": "nan"}, {"lease"}),
        ({"lease": 1}, {"lease"}),
        ({"lease": timedelta(days=2)}, {"lease"}),
    ):
        with pytest.raises(ValidationError) as refused:
            change(**values)
        assert set(refused.value.message_dict) == names
    with pytest.raises(ValidationError, match="'threads'"):
        change(threads=3)
    with pytest.raises(TypeError, match="Ledger"):
        change_settings(Ledger, {"batch_size": 3}, by="ada", using="default")
    assert not LiveSettings.objects.exists()
    assert acts(Photo, using="default") == []


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_two_people_change_different_settings_at_once() -> None:
    at_once(lambda: change(batch_size=20), lambda: change(lease=90))
    found = LiveSettings.objects.get()
    assert (found.batch_size, found.lease) == (20, 90)


@contextmanager
def handled(**options: Any) -> Iterator[None]:
    handler(Photo, **options)(print)
    try:
        yield
    finally:
        unregister(Photo)


def is_refused(**values: Any) -> bool:
    try:
        change(**values)
    except ValidationError as error:
        return set(error.message_dict) == {"lease"}
    return False


@pytest.mark.promise(14)
def test_a_lease_that_is_too_short_for_an_atomic_handler_is_refused_where_one_writes() -> None:
    """The handler may take a quarter of the lease there; elsewhere any lease will do."""
    one_writer = dialect_for(connections["default"]).has_one_writer
    change(lease=4)
    with handled(atomic=True, lease=60, timeout=10):
        assert not is_refused(batch_size=3)
        assert is_refused(lease=39.9) == one_writer
        assert not is_refused(lease=40)
    with handled(atomic=True, lease=60):
        assert is_refused(lease=59) == one_writer
    with handled(timeout=10, lease=60):
        assert not is_refused(lease=4)
