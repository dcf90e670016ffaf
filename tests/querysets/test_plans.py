"""No claim sorts rows or reads a whole table, and rows in hand are found by their keys: each statement is explained."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, models
from django.db.backends.signals import connection_created

from django_taskclaim.columns import claim_columns
from django_taskclaim.fields import QUARANTINED
from django_taskclaim.handlers import handler_for
from tests.doctor.support import handling, many, without_index
from tests.factories import SHAPES, make
from tests.meanwhile import connected
from tests.querysets.support import owner_of
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db(transaction=True, databases="__all__")

WORDS = {
    "postgresql": "EXPLAIN",
    "mysql": "EXPLAIN FORMAT=TRADITIONAL",
    "sqlite": "EXPLAIN QUERY PLAN",
}
#: However few rows there are, PostgreSQL then uses an index that gives what is asked for, in its order.
DEAR = ("seqscan", "bitmapscan", "hashjoin", "mergejoin", "sort")
#: MySQL takes the few rows of a child's table first, or does not, by what it guesses of rows that were just deleted.
SETTINGS = {
    "postgresql": "; ".join(f"SET enable_{dear} = off" for dear in DEAR),
    "mysql": "SET optimizer_switch = 'semijoin=off'",
}


def faults(table: str, steps: list[dict[str, Any]]) -> list[str]:
    """Return the steps of a plan that sort, or that read all rows of the table."""
    if connection.vendor == "mysql":
        full = [one for one in steps if one["table"] == table and one["type"] in {"ALL", "index"}]
        return [str(one) for one in steps if one in full or "filesort" in (one["extra"] or "")]
    lines = [str(list(one.values())[-1]) for one in steps]
    bad = re.compile(
        rf'\bSort\b|Seq Scan on "?{table}\b|TEMP B-TREE FOR ORDER|SCAN (TABLE )?{table}\b'
    )
    return [line for line in lines if bad.search(line)]


@contextmanager
def explaining(
    model: type[models.Model],
    *,
    told: bool = True,
    which: str = "taskclaim_switch",
    faults: Callable[[str, list[dict[str, Any]]], list[str]] = faults,
) -> Iterator[dict[str, list[str]]]:
    """Explain what is sent with *which* words on a connection that is opened meanwhile; yields it with its faults."""
    found: dict[str, list[str]] = {}
    table = owner_of(model)._meta.db_table.strip('"`')
    word = "EXPLAIN" if getattr(connection, "mysql_is_mariadb", False) else WORDS[connection.vendor]

    def explain(execute: Any, text: str, params: Any, many: bool, context: Any) -> Any:
        if which in text and owner_of(model)._meta.db_table in text:
            execute(f"{word} {text}", params, many, context)
            cursor = context["cursor"]
            names = [column[0].lower() for column in cursor.description]
            steps = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            found[text] = faults(table, steps)
        return execute(text, params, many, context)

    def follow(connection: Any, **kwargs: Any) -> None:
        if told and connection.vendor in SETTINGS:
            with connection.cursor() as cursor:
                cursor.execute(SETTINGS[connection.vendor])
        connection.execute_wrappers.append(explain)

    with connected(connection_created, follow):
        yield found


def claims(model: type[models.Model], *options: str) -> None:
    call_command("claimworker", model._meta.label, "--in-process", "--batch-size", "2", *options)


@pytest.mark.parametrize("model", SHAPES)
def test_every_claim_of_a_worker_follows_an_index(model: type[models.Model]) -> None:
    """Behind the last row claimed, for urgent, retried and quarantined rows, and everywhere."""
    make(model, 60)
    waits = claim_columns(model).not_before
    if waits is not None:
        make(model, 2, **{waits.name: QUARANTINED})
    registered = nullcontext() if handler_for(model) else handling(model)
    with registered, explaining(model) as found:
        claims(model, "--drain")
    assert len(found) >= (1 if waits is None else 4)
    assert {text: bad for text, bad in found.items() if bad} == {}


def test_with_many_rows_the_index_is_chosen_unless_it_is_missing() -> None:
    many(Photo)
    with handling(Photo):
        with explaining(Photo, told=False) as found:
            claims(Photo, "--max-rows", "60")
        assert len(found) >= 3
        assert {text: bad for text, bad in found.items() if bad} == {}
        with without_index(Photo), explaining(Photo, told=False) as found:
            claims(Photo, "--max-rows", "2")
        assert any(found.values())


def uses_of_the_claim_index(table: str, steps: list[dict[str, Any]]) -> list[str]:
    return [str(one) for one in steps if "_clm" in str({**one, "possible_keys": ""})]


def test_held_rows_are_found_by_their_keys_by_statistics_of_a_time_without_claims() -> None:
    """By their status, each completion would read the index entries of all rows done since the last vacuum."""
    many(Photo)
    connection.close()
    fence = ".`claimed_by` = " if connection.vendor == "mysql" else '."claimed_by" = '
    with explaining(Photo, told=False, which=fence, faults=uses_of_the_claim_index) as found:
        for size in (1, 30):
            photos = Photo.objects.claim_batch(size)
            Photo.objects.renew(photos)
            photos[0].save()
            Photo.objects.complete(photos, update_fields=["counter"])
    assert len(found) >= 5
    assert {text: bad for text, bad in found.items() if bad} == {}
