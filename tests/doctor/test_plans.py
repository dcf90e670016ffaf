"""Indexes and plans: what the doctor advises mends what it found, and a right table is in order."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, models
from django.db.backends.signals import connection_created

from django_taskclaim.db import dialect_for
from django_taskclaim.doctor.plans import claim_statements
from django_taskclaim.fields import QUARANTINED
from tests.doctor.support import (
    changes_tables,
    count,
    doctor,
    doctor_text,
    handling,
    indexes_advised,
    many,
    problems,
    send,
    without_index,
)
from tests.factories import SHAPES, make
from tests.testapp.apps import statements_to
from tests.testapp.models import Child, PercentNames, Photo

pytestmark = pytest.mark.django_db(databases="__all__")


@pytest.mark.parametrize("model", SHAPES)
def test_every_shape_is_in_order(model: type[models.Model]) -> None:
    """Whether the table is new or has a few rows."""
    assert problems(model) == []
    make(model, 60)
    assert problems(model) == []


@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs a planner that can be told")
@pytest.mark.parametrize("model", SHAPES)
def test_every_claim_can_do_without_a_sort_and_a_scan(
    model: type[models.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few rows there are: the index gives what is asked for, in its order."""
    make(model, 60)
    count(model)
    monkeypatch.setattr("django_taskclaim.monitoring.server.postgresql.LARGE", 3)
    for dear in ("seqscan", "bitmapscan", "hashjoin", "mergejoin", "sort"):
        send(f"SET LOCAL enable_{dear} = off")
    assert problems(model) == []


@changes_tables
@pytest.mark.parametrize("model", [Photo, Child, PercentNames])
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


@changes_tables
def test_with_many_rows_each_claim_uses_an_index_that_fits_its_order() -> None:
    """EXPLAIN finds no sort and no scan of the table, unless the index is missing or the order is the handler's."""
    many(Photo)
    assert problems(Photo) == []
    with without_index(Photo):
        plans = "\n".join(finding.msg for finding in problems(Photo))
        assert "The claim sorts rows" in plans
        assert "reads the whole table" in plans
    with handling(Photo, order_by=["url"]):
        (found,) = problems(Photo)
        assert "sorts rows" in found.msg
        assert "an order of its own" in found.hint


# What is explained


@pytest.mark.parametrize("strategy", ["auto", "update_limit"])
def test_what_is_explained_is_what_is_sent(strategy: str, settings: Any) -> None:
    if strategy not in dialect_for(connection).strategies:
        pytest.skip(f"the database cannot claim by {strategy}")
    settings.TASKCLAIM = {"CLAIM_STRATEGY": strategy}
    make(Photo, 60)
    explained = {without_numbers(one.text) for one in claim_statements(Photo, "default")}
    sent: set[str] = set()

    def note(execute: Callable[..., Any], text: str, *rest: Any) -> Any:
        if Photo._meta.db_table in text and text.startswith(("UPDATE", "WITH")):
            sent.add(without_numbers(text))
        return execute(text, *rest)

    with connection.execute_wrapper(note):
        assert len(Photo.objects.claim_batch(50)) == 50
    assert sent
    assert sent <= explained


@pytest.mark.django_db(transaction=True, databases="__all__")
def test_every_form_of_claim_that_a_worker_sends_is_explained(tmp_path: Path) -> None:
    """Behind the last row claimed, for urgent, retried and quarantined rows, and everywhere."""
    make(Photo, 60)
    make(Photo, 2, not_before=QUARANTINED)
    note = statements_to(str(tmp_path / "statements"))
    with handling(Photo, batch_size=2):
        explained = {without_numbers(one.text) for one in claim_statements(Photo, "default")}
        connection_created.connect(note)
        try:
            call_command("claimworker", "testapp.Photo", "--in-process", "--drain")
        finally:
            connection_created.disconnect(note)
    assert Photo.objects.progress().complete == 62
    lines = (tmp_path / "statements").read_text().splitlines()
    of_claims = {line.partition(": ")[2] for line in lines if "taskclaim_switch" in line}
    # A quarantined row is then asked for by its key alone, for which no claim index is needed.
    named = re.compile(r"\Wid\W = %s AND")
    ours = {one for one in of_claims if Photo._meta.db_table in one and not named.search(one)}
    sent = {without_numbers(one) for one in ours}
    assert len(sent) >= 3
    assert sent <= {" ".join(one.split()) for one in explained}


def without_numbers(text: str) -> str:
    """Return a statement without its limit and the number of its keys."""
    return re.sub(r"\((%s|\d+)(, (%s|\d+))*\)", "(keys)", re.sub(r" LIMIT \d+", "", text))


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
