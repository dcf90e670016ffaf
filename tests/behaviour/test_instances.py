"""Claimed instances are those that Django would make, and whoever takes part in making one still does."""

import gc
import weakref
from typing import Any, Self

import pytest
from django.db import connections
from django.db.models.signals import post_init, pre_init
from django.test.utils import isolate_apps

from django_taskclaim.querysets import instances
from tests.behaviour.support import elsewhere
from tests.factories import make
from tests.testapp.models import Photo, UuidKey

pytestmark = pytest.mark.django_db


def test_a_claimed_instance_holds_what_a_loaded_one_does(shape: Any) -> None:
    make(shape, 1)
    (claimed,) = shape.objects.claim_batch(1)
    loaded = shape.objects.get(pk=claimed.pk)
    for field in shape._meta.concrete_fields:
        assert getattr(claimed, field.attname) == getattr(loaded, field.attname)
    assert claimed == loaded
    assert not claimed._state.adding
    assert claimed._state.db == loaded._state.db


def test_no_two_instances_share_their_state(shape: Any) -> None:
    make(shape, 2)
    one, other = shape.objects.claim_batch(2)
    assert one._state is not other._state
    assert one.__dict__ is not other.__dict__


@pytest.mark.parametrize("signal", [pre_init, post_init])
def test_receivers_hear_of_each_instance(signal: Any) -> None:
    make(Photo, 2)
    heard: list[Any] = []

    def receive(**facts: Any) -> None:
        heard.append(facts)

    signal.connect(receive, sender=Photo)
    try:
        rows = Photo.objects.claim_batch(2)
    finally:
        signal.disconnect(receive, sender=Photo)
    assert len(heard) == len(rows) == 2


@isolate_apps("tests.testapp")
def test_methods_of_the_model_that_take_part_are_called() -> None:
    class Initialised(Photo):
        class Meta:
            proxy = True
            app_label = "testapp"

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.seen = True

    class FromDatabase(Photo):
        class Meta:
            proxy = True
            app_label = "testapp"

        @classmethod
        def from_db(cls, *args: Any, **kwargs: Any) -> Self:
            row = super().from_db(*args, **kwargs)
            row.seen = True
            return row

    class Observed:
        def __init__(self) -> None:
            super().__init__()
            self.seen = True

    class Mixed(Photo, Observed):
        class Meta:
            proxy = True
            app_label = "testapp"

    make(Photo, 3)
    proxies: list[Any] = [Initialised, FromDatabase, Mixed]
    for proxy in proxies:
        (row,) = proxy.objects.claim_batch(1)
        assert row.seen


@isolate_apps("tests.testapp")
def test_values_go_through_a_descriptor_that_listens() -> None:
    class Descriptor:
        def __get__(self, row: Any, owner: Any = None) -> Any:
            return self if row is None else row.__dict__["url"].upper()

        def __set__(self, row: Any, value: str) -> None:
            row.__dict__["url"] = f"set {value}"

    class Described(Photo):
        class Meta:
            proxy = True
            app_label = "testapp"

    setattr(Described, "url", Descriptor())  # noqa: B010
    make(Photo, 1)
    rows: Any = Described
    (row,) = rows.objects.claim_batch(1)
    assert row.url.startswith("SET ")


def test_values_of_an_ordinary_model_are_laid_out() -> None:
    """Else nothing of the above would be of any use."""
    assert instances._is_plain(Photo)


@pytest.mark.django_db(transaction=True)
def test_nothing_keeps_a_connection_whose_thread_has_ended() -> None:
    make(UuidKey, 2)

    def claim_and_complete() -> Any:
        UuidKey.objects.complete(UuidKey.objects.claim_batch(1))
        return weakref.ref(connections["default"])

    known = [elsewhere(claim_and_complete).result() for _ in range(2)]
    gc.collect()
    assert [one() for one in known] == [None, None]
