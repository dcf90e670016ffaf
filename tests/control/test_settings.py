"""Live settings: what makes sense is stored and recorded, the rest is refused by name."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import time, timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connections

from django_taskclaim.control import orders
from django_taskclaim.control.orders import change_settings
from django_taskclaim.control.reading import acts, live_settings
from django_taskclaim.dialects import dialect_for
from django_taskclaim.handlers import handler, unregister
from tests.contention.conftest import Deadlock
from tests.testapp.models import Ledger, Photo

pytestmark = pytest.mark.django_db(databases="__all__")


def change(**values: Any) -> Any:
    return change_settings(Photo, values, by="ada", using="default")


def test_nobody_has_set_anything() -> None:
    assert live_settings(Photo, using="default") is None


def test_what_is_left_out_stays() -> None:
    change(batch_size=20, lease=timedelta(seconds=30))
    change(rate_limit="2.5", batch_size="")
    found = live_settings(Photo, using="default")
    assert found is not None
    assert (found.batch_size, found.lease, found.rate_limit) == (None, 30.0, 2.5)
    assert (found.changed_by, found.version) == ("ada", 2)


def test_a_change_is_recorded_with_what_was() -> None:
    change(batch_size=20)
    change(batch_size=10, window_from="22:00", window_to=time(6))
    change(batch_size=10)
    assert [act.reason for act in acts(Photo, using="default")] == [
        "batch size 10 (was 20), window from 22:00:00 (was none), window to 06:00:00 (was none)",
        "batch size 20 (was none)",
    ]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"batch_size": 0}, {"batch_size"}),
        ({"batch_size": 1001, "concurrency": -1}, {"batch_size", "concurrency"}),
        ({"concurrency": "many"}, {"concurrency"}),
        ({"concurrency": True}, {"concurrency"}),
        ({"rate_limit": 0}, {"rate_limit"}),
        ({"rate_limit": float("nan")}, {"rate_limit"}),
        ({"rate_limit": "nan"}, {"rate_limit"}),
        ({"lease": 1}, {"lease"}),
        ({"lease": timedelta(days=2)}, {"lease"}),
        ({"window_from": "22:00"}, {"window_to"}),
        ({"window_to": "25:00"}, {"window_to"}),
        ({"window_from": "06:00", "window_to": "06:00"}, {"window_to"}),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(values: dict[str, Any], names: set[str]) -> None:
    with pytest.raises(ValidationError) as refused:
        change(**values)
    assert set(refused.value.message_dict) == names
    assert live_settings(Photo, using="default") is None
    assert acts(Photo, using="default") == []


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_two_people_change_different_things_at_once() -> None:
    barrier = threading.Barrier(2)

    def run(**values: Any) -> None:
        barrier.wait(10)
        try:
            change(**values)
        finally:
            connections.close_all()

    values: list[dict[str, Any]] = [{"batch_size": 20}, {"concurrency": 3}]
    for _ in range(5):
        threads = [threading.Thread(target=run, kwargs=one) for one in values]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        found = live_settings(Photo, using="default")
        assert found is not None
        assert (found.batch_size, found.concurrency, found.version) == (20, 3, 2)
        type(found).objects.all().delete()


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_contention_is_met_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two who are the first to set anything may end in a deadlock, and one of them is told to try again."""
    losses, usual = [Deadlock(), Deadlock()], orders._store

    def contended(*given: Any) -> Any:
        if losses:
            raise losses.pop()
        return usual(*given)

    monkeypatch.setattr(orders, "_store", contended)
    change(batch_size=20)
    assert not losses
    found = live_settings(Photo, using="default")
    assert found is not None
    assert (found.batch_size, found.version) == (20, 1)


def test_an_unknown_setting_and_an_unclaimable_model_are_refused() -> None:
    with pytest.raises(ValidationError, match="no live setting 'threads'"):
        change(threads=3)
    with pytest.raises(TypeError, match="Ledger"):
        change_settings(Ledger, {"batch_size": 3}, by="ada", using="default")


ATOMIC = {"atomic": True, "lease": 60}


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


def test_a_lease_must_bear_the_handler() -> None:
    """Where there is one writer, an atomic handler may take a quarter of the lease; elsewhere any lease will do."""
    one_writer = dialect_for(connections["default"]).has_one_writer
    with handled(**ATOMIC, timeout=10):
        assert is_refused(lease=39.9) == one_writer
        assert not is_refused(lease=40)
        assert not is_refused(lease=None, batch_size=3)
    with handled(**ATOMIC):
        # It may take any time, so nothing shorter than its own.
        assert is_refused(lease=59) == one_writer
        assert not is_refused(lease=60)
    with handled(timeout=10, lease=60):
        assert not is_refused(lease=4)


def test_a_lease_that_no_longer_bears_the_handler_hinders_no_other_change() -> None:
    change(lease=4)
    with handled(**ATOMIC, timeout=10):
        assert not is_refused(batch_size=3)
