"""The checks of handlers: their options, the order of a series, and what a completion policy needs."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.db import connection, models
from django.db.models.signals import post_delete
from django.test.utils import isolate_apps

from django_taskclaim import checks
from django_taskclaim.completion import Archive, Clear, Delete
from django_taskclaim.handlers import handler, unregister
from django_taskclaim.models import TaskMixin
from tests.checks.support import heard, ids, text
from tests.querysets.models import (
    ChildArchive,
    CompositeArchive,
    GrandChild,
    Labelled,
    Parcel,
    ParcelArchive,
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

Find = Callable[..., list[CheckMessage]]


@pytest.fixture
def find() -> Iterator[Find]:
    """Return what the registered checks say of a model with a handler of these options."""
    handled: list[Any] = []

    def look(model: Any, **options: Any) -> list[CheckMessage]:
        def work(row: Any) -> None:
            """Nothing."""

        unregister(model)
        handled.append(model)
        handler(model, **options)(work)
        return heard(run_checks(tags=[checks.TAG]))

    yield look
    for model in handled:
        unregister(model)


ONE_WRITER = ["W009"] * (connection.vendor == "sqlite")
UNFINISHED = Photo.objects.filter(width=None)


@pytest.mark.parametrize(
    ("model", "options", "expected", "part"),
    [
        (Photo, {"update_fields": ["width", "author_id"]}, ["E009"], "names author_id"),
        (Photo, {"update_fields": ["status"]}, ["E009"], "written by the verbs alone"),
        (Photo, {"update_fields": ["id"]}, ["E009"], "names id"),
        (Photo, {"queryset": Photo.objects.values("url")}, ["E010"], "values()"),
        (Photo, {"queryset": ClaimOnly.objects.all()}, ["E010"], "one of testapp.ClaimOnly"),
        (Photo, {"queryset": models.QuerySet(Photo)}, ["E010"], "without claim_batch()"),
        (Photo, {"lease": 1}, ["W003"], "one slow renewal"),
        (Photo, {"lease": timedelta(days=3)}, ["W003"], "stay stuck for 3 d"),
        (Photo, {"timeout": 0.5}, ["W004"], "0.5 s"),
        (Photo, {"atomic": True}, ONE_WRITER, "has one writer"),
        (Photo, {"atomic": True, "timeout": None}, ONE_WRITER, "timeout=15)"),
        (Photo, {"atomic": True, "timeout": 15}, [], ""),
        (Photo, {"update_fields": ["width"], "lease": 2, "queryset": UNFINISHED}, [], ""),
        (Photo, {"timeout": None}, [], ""),
        (Photo, {"serial_by": "country"}, [], ""),
        (UuidKey, {"serial_by": "counter"}, ["W010"], "order"),
        (UuidKey, {"serial_by": "counter", "order_by": ["counter"]}, [], ""),
        (CompositeKey, {"serial_by": "counter"}, [], ""),
    ],
)
def test_options(
    find: Find, model: Any, options: dict[str, Any], expected: list[str], part: str
) -> None:
    messages = find(model, **options)
    assert ids(messages) == expected
    assert not messages or part in text(messages)


# Completion policies


@pytest.mark.once
@pytest.mark.parametrize(
    ("model", "completion", "expected", "part"),
    [
        (Photo, "mark", [], ""),
        (Photo, "delete", [], ""),
        (Child, "delete", [], ""),
        (Photo, Clear(every=5), [], ""),
        (Parcel, Delete(cascade=True), [], ""),
        (Parcel, Archive(ParcelArchive, cascade=True), [], ""),
        (CompositeKey, Archive("testapp.CompositeArchive"), [], ""),
        (Child, Archive(ChildArchive), [], ""),
        (Parcel, print, [], ""),
        (
            Parcel,
            "delete",
            ["W051"],
            "testapp.Complaint.parcel (SET_NULL) and testapp.Stamp.parcel (CASCADE)",
        ),
        (Parcel, Archive(ParcelArchive), ["W051"], "testapp.Complaint.parcel"),
        (Labelled, "delete", ["W051"], "testapp.Labelled_labels.labelled (CASCADE)"),
        (Photo, Archive(Photo), ["E051"], "the table that the rows are deleted from"),
        (Child, Archive(Parent), ["E051"], "the table that the rows are deleted from"),
        (Photo, Archive(Child), ["E051"], "several tables"),
        (Photo, Archive(TaskMixin), ["E051"], "abstract"),
        (Photo, Archive(ParcelArchive), ["E053", "E053"], "url, country, width and height"),
        (UuidKey, Archive(ParcelArchive), ["E053", "E053"], "lacks id,"),
        (
            ChildOwnsClaim,
            Archive(CompositeArchive, leave_out=["id", "extra"]),
            ["E053"],
            "needs tenant and number",
        ),
        (ClaimOnly, Clear(every=60), ["E052"], "cannot wait for 60 s"),
        (ClaimOnly, "clear", ["W052"], "lowest keys"),
    ],
)
def test_completion(
    find: Find, model: Any, completion: Any, expected: list[str], part: str
) -> None:
    messages = find(model, completion=completion)
    assert ids(messages) == expected
    assert not messages or part in text(messages)


@pytest.mark.once
def test_receivers_that_deleted_rows_would_pass_by_are_named(find: Find) -> None:
    def receive(**kwargs: Any) -> None:
        """Nothing."""

    assert ids(find(Parent, completion="delete")) == []
    post_delete.connect(receive, sender=GrandChild)
    try:
        # A row of the parent may be one of the grandchild's.
        assert "receivers of post_delete" in text(find(Parent, completion="delete"))
    finally:
        post_delete.disconnect(receive, sender=GrandChild)


@pytest.mark.once
@isolate_apps("tests.testapp")
def test_relations_that_the_database_keeps_are_not_reported(find: Find) -> None:
    class Alone(TaskMixin):
        class Meta:
            app_label = "testapp"

    class Looks(models.Model):
        one = models.ForeignKey(Alone, on_delete=models.DO_NOTHING, related_name="a")
        two = models.ForeignKey(Alone, on_delete=models.PROTECT, related_name="b")

        class Meta:
            app_label = "testapp"

    assert ids(find(Alone, completion="delete")) == []
