"""A row that cannot be read fails alone, with the error: the others of its model are claimed and done."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import Error, connection, models
from django.db.models.signals import post_init
from django.test.utils import CaptureQueriesContext

from django_taskclaim import handler
from django_taskclaim.handlers import unregister
from django_taskclaim.querysets.claiming import Request, new_holder
from django_taskclaim.querysets.lower_bound import LowerBound
from tests.behaviour.models import Envelope, Sealed, SealedChild
from tests.behaviour.support import execute, quoted, table_of
from tests.factories import make
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db

Rule = Callable[..., None]

#: Column, and what of it nobody can read, by the kind of the fault.
FAULTS = {"field": ("secret", "'broken'", "ValueError: the seal is broken")}
if connection.vendor == "postgresql":
    FAULTS["moment"] = ("seen_at", "'infinity'", "DataError: ")
    FAULTS["long ago"] = ("seen_at", "'0044-03-15 BC'", "DataError: ")
if connection.vendor == "sqlite":
    FAULTS["text"] = ("note", "CAST(x'ff' AS TEXT)", "OperationalError: Could not decode")


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest) -> tuple[str, str, str]:
    return FAULTS[request.param]


@pytest.fixture(autouse=True)
def one_try(rule: Rule) -> None:
    rule(Sealed, max_attempts=1)


def spoil(row: Any, fault: tuple[str, str, str]) -> None:
    owner = Sealed if isinstance(row, Sealed) else type(row)
    column, value, _ = fault
    execute(f"UPDATE {table_of(owner)} SET {quoted(column)} = {value} WHERE id = %s", (row.pk,))


def state(row: Any) -> tuple[str, int, str]:
    """Return what is stored of a row's claim, without its other columns."""
    names = ("status", "attempts", "error_class", "last_error")
    status, attempts, kind, text = Sealed.objects.values_list(*names).get(pk=row.pk)
    return status, attempts, f"{kind}: {text}" if kind else ""


def keys(rows: Any) -> list[Any]:
    return [row.pk for row in rows]


WAYS = {
    "plain": lambda rows: rows,
    "ordered": lambda rows: rows.order_by("-pk"),
    "columns": lambda rows: rows.defer("counter"),
    "annotated": lambda rows: rows.annotate(twice=models.F("counter") * 2),
}


@pytest.mark.parametrize("model", [Sealed, SealedChild])
@pytest.mark.parametrize("way", WAYS)
def test_the_others_are_claimed_and_it_fails_with_the_error(
    fault: Any, model: Any, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = make(model, 6)
    spoil(rows[1], fault)
    claimed = WAYS[way](model.objects.all()).claim_batch(6)
    readable = [rows[0], *rows[2:]]
    assert keys(claimed) == keys(readable[::-1] if way == "ordered" else readable)
    assert state(rows[1])[:2] == ("failed", 1)
    assert fault[2] in state(rows[1])[2]
    assert model.objects.complete(claimed) == 5
    (told,) = [one for one in caplog.records if one.__dict__.get("event") == "unreadable"]
    assert (told.levelname, told.__dict__["keys"]) == ("ERROR", [str(rows[1].pk)])
    assert fault[2] in told.getMessage()


@pytest.mark.usefixtures("strategy")
def test_the_tries_of_its_policy_count(rule: Rule) -> None:
    rule(Sealed, max_attempts=2, backoff=lambda failures: timedelta(0))
    rows = make(Sealed, 2)
    spoil(rows[0], FAULTS["field"])
    assert keys(Sealed.objects.claim_batch(2)) == [rows[1].pk]
    assert state(rows[0])[:2] == ("open", 1)
    assert Sealed.objects.claim_batch(2) == []
    assert state(rows[0])[:2] == ("failed", 2)


def test_nothing_is_left_where_none_can_be_read(fault: Any) -> None:
    rows = make(Sealed, 3)
    for row in rows:
        spoil(row, fault)
    assert Sealed.objects.claim_batch(3) == []
    assert [state(row)[0] for row in rows] == ["failed"] * 3


def test_what_a_person_holds_comes_back_without_it(fault: Any) -> None:
    """Spoilt while it was held; the page of that person shows the others."""
    rows = make(Sealed, 4)
    me = {"claimed_by": "user:17", "include_held": True}
    Sealed.objects.claim_batch(3, **me)
    spoil(rows[1], fault)
    again = Sealed.objects.claim_batch(3, **me)
    assert keys(again) == [rows[0].pk, rows[2].pk, rows[3].pk]
    assert state(rows[1])[0] == "failed"


@pytest.mark.parametrize("way", ["select_related", "prefetch_related"])
def test_what_a_row_is_read_with_counts_as_its_own(fault: Any, way: str, rule: Rule) -> None:
    rule(Envelope, max_attempts=1)
    envelopes = [Envelope.objects.create(inside=one) for one in make(Sealed, 4)]
    spoil(envelopes[2].inside, fault)
    claimed = getattr(Envelope.objects, way)("inside").claim_batch(4)
    assert keys(claimed) == keys([*envelopes[:2], envelopes[3]])
    with CaptureQueriesContext(connection) as asked:
        assert {one.inside.secret for one in claimed} == {"fine"}
    assert len(asked) == 0
    assert Envelope.objects.failed().get().pk == envelopes[2].pk


@pytest.mark.django_db(transaction=True)
def test_a_claim_that_has_committed_by_itself_is_found_again(fault: Any) -> None:
    """As a worker's do, which go on where the one before ended."""
    rows = make(Sealed, 6)
    spoil(rows[3], fault)
    bound = LowerBound()

    def claim() -> list[Any]:
        holder, lease = new_holder("test"), timedelta(hours=1)
        request = Request(2, holder, lease, include_held=False, durable=True, bound=bound)
        return Sealed.objects.open()._claim(request)

    claimed = [key for _ in range(4) for key in keys(claim())]
    assert claimed == keys([*rows[:3], *rows[4:]])
    assert state(rows[3])[0] == "failed"
    assert Sealed.objects.filter(status="processing").count() == 5


@pytest.fixture
def raises_for() -> Iterator[Callable[[Any], None]]:
    """Have a receiver of ``post_init`` raise for one row of Photo."""
    bad: list[Any] = []

    def receive(instance: Any, **facts: Any) -> None:
        if instance.pk in bad:
            raise LookupError("no such country")

    post_init.connect(receive, sender=Photo)
    yield bad.append
    post_init.disconnect(receive, sender=Photo)


def test_an_instance_that_cannot_be_made_fails_as_well(raises_for: Any, rule: Rule) -> None:
    rule(Photo, max_attempts=1)
    rows = make(Photo, 3)
    raises_for(rows[0].pk)
    assert keys(Photo.objects.claim_batch(3)) == keys(rows[1:])
    assert Photo.objects.failed().values_list("error_class", flat=True).get() == "LookupError"


@pytest.mark.django_db(transaction=True)
def test_a_column_that_is_missing_is_no_rows_fault() -> None:
    """Code that was deployed before its migration charges nobody."""
    rows = make(Sealed, 2)
    table, column, away = table_of(Sealed), quoted("seen_at"), quoted("away")
    execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO {away}")
    try:
        for queryset in (Sealed.objects.all(), Sealed.objects.order_by("pk")):
            with pytest.raises(Error):
                queryset.claim_batch(2)
        assert [state(row) for row in rows] == [("open", 0, "")] * 2
    finally:
        execute(f"ALTER TABLE {table} RENAME COLUMN {away} TO {column}")


# A run within the test's own process leaves the sockets of its supervisor to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.django_db(transaction=True)
def test_a_worker_does_the_others(fault: Any, rule: Rule) -> None:
    rows = make(Sealed, 9)
    spoil(rows[4], fault)

    @handler(Sealed, batch_size=2, max_attempts=1, update_fields=["counter"])
    def count(row: Sealed) -> None:
        row.counter += 1

    try:
        call_command("claimworker", "testapp.Sealed", "--in-process", "--drain", "--poll", "0.1")
    finally:
        unregister(Sealed)
    assert [state(row)[0] for row in rows] == [*["complete"] * 4, "failed", *["complete"] * 4]
    assert Sealed.objects.filter(counter=1).count() == 8


def test_who_does_not_need_its_columns_does_not_read_them(fault: Any, rule: Rule) -> None:
    """It can be released, renewed, expired, failed, reset, taken over and shown, although nobody can read it."""
    (row,) = make(Sealed)
    (claimed,) = Sealed.objects.claim_batch(1)
    spoil(row, fault)
    assert Sealed.objects.renew(claimed, 600) == 1
    assert Sealed.objects.all().take_over(by="user:17", reason="mine") == 1
    assert Sealed.objects.all().take_back() == 1
    assert Sealed.objects.pause_rows() == 1
    assert Sealed.objects.resume_rows() == 1
    (again,) = Sealed.objects.only("pk").claim_batch(1, lease=0.001)
    assert Sealed.objects.release_expired() == 1
    assert again.pk == row.pk
    call_command("claimstatus", "testapp.Sealed")
    call_command("claimdoctor", "testapp.Sealed")
    assert Sealed.objects.reset(complete=True, running=True) in (0, 1)
