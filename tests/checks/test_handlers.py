"""The checks of handlers: their options, the order of a series, and what a completion policy needs."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.db import connection

from django_taskclaim import checks
from django_taskclaim.completion import Archive, Clear
from django_taskclaim.exceptions import ClaimColumnError
from django_taskclaim.models import TaskMixin
from tests.checks.support import ids, text
from tests.doctor.support import handling
from tests.querysets.models import ChildArchive, Labelled, Parcel, ParcelArchive
from tests.testapp.models import Child, ClaimOnly, Parent, Photo


def find(model: Any, **options: Any) -> list[CheckMessage]:
    """Return what the registered checks say of a model with a handler of these options."""
    with handling(model, **options):
        return run_checks(tags=[checks.TAG])


ONE_WRITER = ["W009"] * (connection.vendor == "sqlite")
UNFINISHED = Photo.objects.filter(width=None)


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        (Photo, {"lease": 1}, ["W003"]),
        (Photo, {"lease": timedelta(days=3)}, []),
        (Photo, {"atomic": True}, ONE_WRITER),
        (Photo, {"atomic": True, "timeout": None}, ONE_WRITER),
        (Photo, {"atomic": True, "timeout": 15}, []),
        (Photo, {"update_fields": {"width"}, "lease": 2, "queryset": UNFINISHED}, []),
        (Photo, {"serial_by": "country"}, []),
    ],
)
def test_options(model: Any, options: dict[str, Any], expected: list[str]) -> None:
    assert ids(find(model, **options)) == expected


@pytest.mark.once
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"update_fields": ["width", "author_id"]}, "no column to write named author_id"),
        *(
            ({"update_fields": names}, "is a list of names")
            for names in ("width", None, [3], (name for name in ["width"]))
        ),
        ({"update_fields": ["status"]}, "written by the verbs alone"),
        ({"queryset": Photo.objects.values("url")}, "through values()"),
        ({"queryset": ClaimOnly.objects.all()}, "a queryset of testapp.ClaimOnly"),
        ({"model": ClaimOnly, "completion": "clear"}, "needs RetryMixin"),
        ({"completion": Archive(Photo)}, "on another table"),
        ({"model": Child, "completion": Archive(Parent)}, "on another table"),
    ],
)
def test_what_could_be_neither_claimed_nor_written_is_refused_at_once(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises((TypeError, ValueError, ClaimColumnError), match=re.escape(said)):
        find(**{"model": Photo, **options})


# Completion policies


@pytest.mark.once
@pytest.mark.parametrize("to", [Child, TaskMixin, "testapp.Photo"])
def test_an_archive_is_a_model_on_one_table(to: Any) -> None:
    with pytest.raises(TypeError, match="a model on one table"):
        Archive(to)


@pytest.mark.once
@pytest.mark.parametrize(
    ("model", "completion", "expected", "part"),
    [
        (Child, "delete", [], ""),
        (Photo, Clear(every=5), [], ""),
        (ClaimOnly, Archive(ParcelArchive), [], ""),
        (Labelled, Archive(ParcelArchive), ["W051"], "LogEntry and rows of testapp.Labelled_l"),
        (Child, Archive(ChildArchive), ["W051"], "lacks rows of testapp.GrandChild, which"),
        (Parcel, Archive(ChildArchive), ["W051"], "lacks rows of testapp.Stamp, sender, n"),
    ],
)
def test_completion(model: Any, completion: Any, expected: list[str], part: str) -> None:
    messages = find(model, completion=completion)
    assert ids(messages) == expected
    assert part in text(messages)
