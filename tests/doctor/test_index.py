"""What the doctor advises brings a missing index, and a right table is in order."""

from typing import Any

import pytest
from django.db import models

from tests.doctor.support import (
    changes_tables,
    doctor,
    doctor_text,
    handling,
    indexes_advised,
    problems,
    send,
    without_index,
)
from tests.factories import SHAPES, make
from tests.testapp.models import Child, Photo

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.mark.parametrize("model", SHAPES)
def test_every_shape_is_in_order(model: type[models.Model]) -> None:
    assert problems(model) == []


@changes_tables
@pytest.mark.parametrize("model", [Photo, Child])
def test_a_missing_index_is_reported_with_the_statement_that_mends_it(model: Any) -> None:
    """The command exits with 1 and prints the statement; once that is executed it exits with 0."""
    make(model, 30)
    label = model._meta.label
    with without_index(model):
        code, text = doctor(label)
        statement = indexes_advised(model)[0]
        assert code == 1
        assert statement in text
        send(statement)
        code, text = doctor(label)
        assert code == 0, text
        assert "CREATE INDEX" not in text


@pytest.mark.parametrize(("model", "completion"), [(Photo, "mark"), (Child, "delete")])
def test_examining_changes_nothing(model: Any, completion: str) -> None:
    """Not even rows that are expired or due."""
    make(model, 30)
    model.objects.claim_batch(5, lease=0.001)
    model.objects.claim_batch(5)
    before = list(model._base_manager.order_by("pk").values())
    with handling(model, completion=completion):
        doctor_text(model)
    assert list(model._base_manager.order_by("pk").values()) == before
    assert len(model.objects.claim_batch(50)) == 20
