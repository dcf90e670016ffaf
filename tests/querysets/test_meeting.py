"""Claims that meet: a stampede of claimers, servers with hostile plans, transactions that stay open."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.db.models import Exists, OuterRef

from django_taskclaim.db import dialect_for
from django_taskclaim.exceptions import ClaimLost
from tests.factories import make, make_claimed
from tests.querysets.support import (
    DEADLINE,
    ROW_LOCKS,
    at_once,
    claimable_rows,
    elsewhere,
    execute,
    fresh,
    held_open,
    table_of,
)
from tests.testapp.models import Child, CompositeKey, Photo

pytestmark = pytest.mark.django_db(transaction=True)


# The stampede


def work_until_nothing_is_left(model: Any, seed: int) -> list[Any]:
    """Claim batches of random sizes, finish each, and return the keys claimed."""
    chance = random.Random(seed)
    mine: list[Any] = []
    while rows := model.objects.claim_batch(chance.randint(1, 60)):
        mine += [row.pk for row in rows]
        for row in rows:
            row.counter += 1
        if chance.random() < 0.2:
            model.objects.renew(rows)
        model.objects.complete(rows, update_fields=["counter"])
    return mine


def assert_each_once(claimed: list[list[Any]], rows: int) -> None:
    counted = Counter(key for keys in claimed for key in keys)
    assert (len(counted), max(counted.values())) == (rows, 1)


@pytest.mark.promise(1)
@pytest.mark.parametrize("model", [Photo, Child, CompositeKey])
def test_claimers_that_meet_never_claim_a_row_twice(strategy: str, model: Any) -> None:
    if model is Photo:
        claimable_rows(Photo, 600)
    else:
        make(model, 100)
    rows = model.objects.count()
    claimed = at_once(*[lambda n=n: work_until_nothing_is_left(model, n) for n in range(6)])
    assert_each_once(claimed, rows)
    assert model.objects.filter(status="complete", counter=1).count() == rows


@pytest.mark.promise(1)
def test_claims_with_orders_of_their_own_meet_without_harm(strategy: str) -> None:
    """Row locks taken in the order asked for would deadlock; here they meet from both ends."""
    claimable_rows(Photo, 200, country="NZ")
    wanted = Photo.objects.filter(country="NZ")

    def from_one_end(order: str) -> list[Any]:
        mine: list[Any] = []
        while rows := wanted.order_by(order).claim_batch(7):
            mine += [row.pk for row in rows]
        return mine

    ends = ["pk", "-pk", "note", "?"]
    assert_each_once(at_once(*[lambda order=order: from_one_end(order) for order in ends]), 200)


@pytest.mark.promise(1, 3, 4)
@pytest.mark.parametrize("completion", ["mark", "delete"])
def test_completions_claims_and_the_reaper_meet_without_harm(rule: Any, completion: str) -> None:
    """Every row is completed exactly once, however often the reaper puts it back in between."""
    rule(Photo, max_attempts=10**6, completion=completion)
    claimable_rows(Photo, 100)
    end = time.monotonic() + 2 * DEADLINE

    def left() -> bool:
        return time.monotonic() < end and Photo.objects.exclude(status="complete").exists()

    def worker(seed: int) -> list[Any]:
        chance, mine = random.Random(seed), []
        while left():
            # Every other lease has lapsed before anything can be done under it.
            rows = Photo.objects.claim_batch(20, lease=chance.choice([0.000001, 60]))
            try:
                Photo.objects.complete(rows)
                written = rows
            except ClaimLost as lost:
                written = lost.written
            mine += [row.pk for row in written]
        return mine

    def reaper() -> list[Any]:
        while left():
            Photo.objects.release_expired(limit=20)
        return []

    workers = [lambda seed=seed: worker(seed) for seed in range(3)]
    assert_each_once(at_once(*workers, reaper), 100)
    assert Photo.objects.count() == (100 if completion == "mark" else 0)


# Hostile plans

#: Without these the planner is left with a nested loop that runs a sub-select again for every row.
HOSTILE = ["hashjoin", "mergejoin", "hashagg", "material", "sort"]

#: ``filter(pk__in=rows[:5]).update()`` is this statement.
NAIVE = """
    UPDATE testapp_photo SET status = 'processing' WHERE id IN (
        SELECT id FROM testapp_photo WHERE status = 'open'
        ORDER BY priority DESC, not_before, id LIMIT 5 FOR UPDATE SKIP LOCKED
    )"""

NARROW: dict[str, Any] = {
    "all": lambda rows: rows,
    "filter": lambda rows: rows.filter(note=""),
    "sub-select": lambda rows: rows.filter(pk__in=rows.model.objects.filter(note="").values("pk")),
    "exists": lambda rows: rows.filter(Exists(Photo.objects.filter(pk=OuterRef("pk")))),
    "order": lambda rows: rows.order_by("-pk"),
    "distinct": lambda rows: rows.filter(note="").distinct(),
}


@pytest.mark.promise(2)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="plans by hash and merge join")
def test_a_hostile_plan_makes_no_verb_write_more_rows_than_its_limit() -> None:
    """The naive statement claims the whole table under such a plan, which shows that the trap is set."""
    execute("ANALYZE testapp_photo")
    claimable_rows(Photo, 200)
    for way in HOSTILE:
        execute(f"SET enable_{way} = off")
    try:
        with transaction.atomic():
            assert execute(NAIVE) > 5
            transaction.set_rollback(True)
        for name, narrow in NARROW.items():
            assert len(narrow(Photo.objects.all()).claim_batch(5)) == 5, name
            assert Photo.objects.filter(status="processing").count() == 5, name
            Photo.objects.reset(running=True)
        Photo.objects.claim_batch(50)
        Photo._base_manager.update(expires_at=None)
        assert Photo.objects.release_expired(limit=5) == 5
        some = Photo.objects.open().values("pk")[:7]
        assert Photo.objects.filter(pk__in=some).pause_rows() == 7
    finally:
        connection.close()


# Isolation levels


@pytest.fixture
def repeatable_read() -> Iterator[None]:
    """What OPTIONS may ask for, and what every connection of the test then has."""
    if connection.vendor == "sqlite":
        pytest.skip("one isolation level only")
    level: Any = "repeatable read"
    if connection.vendor == "postgresql":
        from django.db.backends.postgresql.psycopg_any import IsolationLevel

        level = IsolationLevel.REPEATABLE_READ
    options = connections.settings["default"]["OPTIONS"]
    connection.close()
    options["isolation_level"] = level
    del connections["default"]
    yield
    connection.close()
    del options["isolation_level"]
    del connections["default"]


@pytest.mark.promise(1, 3)
@pytest.mark.usefixtures("repeatable_read", "strategy")
@pytest.mark.parametrize("limit", [{}, {"max_running": 300}])
def test_under_repeatable_read_claims_meet_and_losses_are_found(rule: Any, limit: Any) -> None:
    rule(Photo, **limit)
    claimable_rows(Photo, 300)
    claimed = at_once(*[lambda n=n: work_until_nothing_is_left(Photo, n) for n in range(4)])
    assert_each_once(claimed, 300)
    (row,) = make_claimed(Photo)
    row.note = "late"
    with transaction.atomic():
        assert Photo.objects.get(pk=row.pk).status == "processing"
        elsewhere(lambda: Photo.objects.reset(running=True)).result(DEADLINE)
        with pytest.raises(RuntimeError, match="READ COMMITTED"):
            Photo.objects.claim_batch(1, claimed_by="me", include_held=True, durable=False)
        # PostgreSQL refuses to look past an old snapshot: there the caller's transaction must be repeated.
        kind = OperationalError if connection.vendor == "postgresql" else ClaimLost
        with pytest.raises(kind):
            Photo.objects.complete([row], update_fields=["note"])
        transaction.set_rollback(True)
    assert (fresh(row).status, fresh(row).note) == ("open", "")
    with pytest.raises(ClaimLost):
        Photo.objects.complete([row])


@pytest.mark.skipif(
    connection.vendor != "postgresql",
    reason="needs a default level of the server that Django leaves alone",
)
@pytest.mark.promise(1, 12)
def test_a_session_that_begins_at_another_level_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failover may lead to a server of another default."""
    dialect = dialect_for(connection)
    assert dialect.can_autocommit
    level = "-c default_transaction_isolation=serializable"
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "options", level)
    connection.close()
    with dialect.own_transaction():
        assert dialect.sees_new_commits()
    connection.close()


# Starvation


@pytest.mark.skipif(not ROW_LOCKS, reason="no row locks: one writer at a time")
@pytest.mark.parametrize("order", [[], ["-pk"], ["note", "pk"]])
def test_a_second_worker_is_never_starved_by_an_open_claim(order: Any) -> None:
    """Nor by an order that no index serves."""
    claimable_rows(Photo, 200)
    execute(f"ANALYZE {'' if connection.vendor == 'postgresql' else 'TABLE '}{table_of(Photo)}")
    rows = Photo.objects.order_by(*order)
    with held_open(lambda: rows.claim_batch(20, durable=False)) as first:
        second = elsewhere(lambda: rows.claim_batch(20)).result(DEADLINE)
    assert (len(first), len(second)) == (20, 20)
    assert not {row.pk for row in first} & {row.pk for row in second}
