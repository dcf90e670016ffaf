"""What ``take`` refuses when it is called: no database is asked, and none is needed here."""

from typing import Any

import pytest
from django.core.exceptions import FieldError
from django.db import models
from django.db.models import F

from django_taskclaim import take
from django_taskclaim.exceptions import ClaimColumnError
from tests.taking.models import Letter, Writer
from tests.testapp.models import Child, CompositeKey, Photo


@pytest.mark.parametrize(
    ("rows", "limit", "options", "error"),
    [
        (lambda: Letter, 1, {}, TypeError),
        (lambda: [Letter()], 1, {}, TypeError),
        (lambda: Letter(), 1, {}, TypeError),
        (lambda: Letter.objects.all()[:3], 1, {}, TypeError),
        (lambda: Letter.objects.all().union(Letter.objects.all()), 1, {}, TypeError),
        (lambda: Letter.objects.annotate(n=models.Count("postmark")), 1, {}, TypeError),
        (lambda: Letter.objects.values("id"), 1, {}, TypeError),
        (lambda: Letter.objects.raw("SELECT 1"), 1, {}, TypeError),
        (lambda: Writer().letter_set, 1, {}, ValueError),
        (lambda: Letter.objects, 0, {}, ValueError),
        (lambda: Letter.objects, True, {}, ValueError),
        (lambda: Letter.objects, 1001, {}, ValueError),
        (lambda: Letter.objects, "3", {}, ValueError),
        (lambda: Letter.objects, 1, {"idle": 0}, ValueError),
        (lambda: Letter.objects, 1, {"update": ["sent"]}, TypeError),
        (lambda: Letter.objects, 1, {"update": {"gone": 1}}, ValueError),
        (lambda: Letter.objects, 1, {"update": {"postmark": 1}}, ValueError),
        (lambda: Letter.objects, 1, {"update": {"id": 1}}, ValueError),
        (lambda: CompositeKey.objects, 1, {"update": {"number": 1}}, ValueError),
        (lambda: Letter.objects, 1, {"update": {"sent": F("gone")}}, ValueError),
        (lambda: Letter.objects, 1, {"update": {}, "cascade": True}, ValueError),
        (lambda: Photo.objects, 1, {"update": {"status": "open"}}, ClaimColumnError),
        (lambda: Child.objects, 1, {}, TypeError),
    ],
)
def test_what_cannot_be_taken_is_refused_before_the_block(
    rows: Any, limit: Any, options: Any, error: type[Exception]
) -> None:
    with pytest.raises(error) as refusal:
        take(rows(), limit, **options)
    assert len(str(refusal.value)) > 20
    assert not isinstance(refusal.value, FieldError)
