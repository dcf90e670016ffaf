"""The checks of completion policies: what an archive lacks, what cannot wait, what deleting past Django skips."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.checks import CheckMessage
from django.db import models
from django.db.models.signals import post_delete
from django.test.utils import isolate_apps

from django_taskclaim.checks.completion import problems_of
from django_taskclaim.completion import Archive, Clear, Delete
from django_taskclaim.handlers import handler, handler_for, unregister
from django_taskclaim.models import ClaimMixin, RetryMixin, TaskMixin
from tests.behaviour.models import (
    ChildArchive,
    CompositeArchive,
    GrandChild,
    Labelled,
    Parcel,
    ParcelArchive,
    Sheet,
)
from tests.testapp.models import (
    Child,
    ChildOwnsClaim,
    ClaimOnly,
    CompositeKey,
    Parent,
    Photo,
    UuidKey,
)

APP = "testapp"

Found = Callable[..., list[CheckMessage]]


@pytest.fixture
def found() -> Iterator[Found]:
    """Return what the checks say of a model with a handler whose policy is given."""
    handled: list[Any] = []

    def look(model: Any, completion: Any) -> list[CheckMessage]:
        unregister(model)
        handled.append(model)
        handler(model, completion=completion)(work)
        registered = handler_for(model)
        assert registered is not None
        messages = list(problems_of(registered))
        assert all(message.hint for message in messages)
        return messages

    yield look
    for model in handled:
        unregister(model)


def work(row: Any) -> None:
    """Nothing."""


def said(messages: list[CheckMessage], number: str) -> str:
    """Return the one message there is, of this number."""
    (message,) = messages
    assert message.id == f"taskclaim.{number}"
    return str(message.msg)


@pytest.mark.parametrize(
    ("model", "completion"),
    [
        (Photo, "mark"),
        (Photo, "delete"),
        (Child, "delete"),
        (Sheet, "delete"),
        (Photo, "clear"),
        (Photo, Clear(every=5)),
        (Parcel, Delete(cascade=True)),
        (Parcel, Archive(ParcelArchive, cascade=True)),
        (CompositeKey, Archive("testapp.CompositeArchive")),
        (Child, Archive(ChildArchive)),
        (Parcel, print),
    ],
)
def test_what_is_right_is_quiet(found: Found, model: Any, completion: Any) -> None:
    assert found(model, completion) == []


def test_what_deleting_skips_is_named(found: Found) -> None:
    told = said(found(Parcel, "delete"), "W051")
    assert "testapp.Complaint.parcel (SET_NULL) and testapp.Stamp.parcel (CASCADE)" in told
    assert "Receipt" not in told
    assert "receivers" not in told
    assert "W051" in str(found(Parcel, Archive(ParcelArchive))[0].id)


def test_links_of_a_many_to_many_field_are_relations_too(found: Found) -> None:
    assert "testapp.Labelled_labels.labelled (CASCADE)" in said(found(Labelled, "delete"), "W051")


def test_receivers_that_would_hear_nothing_are_named(found: Found) -> None:
    def hear(**kwargs: Any) -> None:
        pass

    post_delete.connect(hear, sender=GrandChild)
    try:
        # A row of the parent may be one of the grandchild's.
        assert "receivers of post_delete" in said(found(Parent, "delete"), "W051")
    finally:
        post_delete.disconnect(hear, sender=GrandChild)
    assert found(Parent, "delete") == []


@isolate_apps("tests.testapp")
def test_relations_that_the_database_follows_are_no_concern_of_ours(found: Found) -> None:
    class Alone(TaskMixin):
        class Meta:
            app_label = APP

    class Looks(models.Model):
        one = models.ForeignKey(Alone, on_delete=models.DO_NOTHING, related_name="a")
        two = models.ForeignKey(Alone, on_delete=models.PROTECT, related_name="b")
        if hasattr(models, "DB_CASCADE"):
            three = models.ForeignKey(Alone, on_delete=models.DB_CASCADE, related_name="c")

        class Meta:
            app_label = APP

    assert found(Alone, "delete") == []


def test_columns_that_an_archive_lacks_are_named(found: Found) -> None:
    assert "lacks url, country, width and height" in said(found(Photo, Archive(lenient())), "E053")
    left_out = ["url", "country", "width", "height"]
    assert found(Photo, Archive(lenient(), leave_out=left_out)) == []
    assert "lacks extra" in said(found(Child, Archive(lenient())), "E053")


@isolate_apps("tests.testapp")
def test_a_numbered_archive_has_no_place_for_another_kind_of_key(found: Found) -> None:
    class Numbered(models.Model):
        note = models.TextField()
        counter = models.IntegerField()

        class Meta:
            app_label = APP

    assert "lacks id," in said(found(UuidKey, Archive(Numbered)), "E053")
    assert found(UuidKey, Archive(Numbered, leave_out=["id"])) == []


def test_columns_that_nothing_would_fill_are_named(found: Found) -> None:
    told = said(found(ChildOwnsClaim, Archive(CompositeArchive, leave_out=["id", "extra"])), "E053")
    assert "needs tenant and number" in told


def lenient() -> Any:
    """Return an archive with a place for what every shape keeps."""
    with isolate_apps("tests.testapp"):

        class Lenient(models.Model):
            id = models.BigIntegerField(primary_key=True)
            note = models.TextField()
            counter = models.IntegerField()

            class Meta:
                app_label = APP

    return Lenient


@pytest.mark.parametrize(
    ("model", "archive", "why"),
    [
        (Photo, "testapp.Nowhere", "cannot be found"),
        (Photo, "Nowhere", "cannot be found"),
        (Photo, Photo, "the table that the rows are deleted from"),
        (Child, Parent, "the table that the rows are deleted from"),
        (Photo, Child, "several tables"),
        (Photo, TaskMixin, "abstract"),
    ],
)
def test_what_can_be_no_archive(found: Found, model: Any, archive: Any, why: str) -> None:
    messages = [one for one in found(model, Archive(archive)) if one.id == "taskclaim.E051"]
    assert why in said(messages, "E051")


def test_a_row_without_a_waiting_time_cannot_wait(found: Found) -> None:
    assert "cannot wait for 60 s" in said(found(ClaimOnly, Clear(every=60)), "E052")


@isolate_apps("tests.testapp")
def test_rows_without_tries_are_opened_again_at_a_price(found: Found) -> None:
    class Whole(RetryMixin, ClaimMixin):
        class Meta:
            app_label = APP

    assert "lowest keys" in said(found(ClaimOnly, "clear"), "W052")
    assert found(Whole, "clear") == []
