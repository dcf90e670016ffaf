"""Claims that meet: a stampede of claimers, servers with hostile plans, transactions that stay open."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.db.models import Exists, OuterRef

from django_taskclaim.exceptions import ClaimLost
from tests.behaviour.support import (
    DEADLINE,
    ROW_LOCKS,
    Rival,
    at_once,
    claimable_rows,
    elsewhere,
    execute,
    held_open,
    table_of,
)
from tests.factories import make
from tests.testapp.models import Child, CompositeKey, Photo

pytestmark = pytest.mark.django_db(transaction=True)

POSTGRESQL = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="plans by hash and merge join"
)
LOCKS = pytest.mark.skipif(not ROW_LOCKS, reason="no row locks: one writer at a time")


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


def workers(model: Any, n: int) -> Counter[Any]:
    """Let *n* workers empty the table at once, and count how often each key was claimed."""
    seeds = range(n)
    claimed = at_once(
        *[lambda seed=seed: work_until_nothing_is_left(model, seed) for seed in seeds]
    )
    return Counter(key for keys in claimed for key in keys)


def test_eight_claimers_never_claim_a_row_twice(strategy: str) -> None:
    rows = 2000 if strategy == "auto" else 500
    claimable_rows(Photo, rows)
    counted = workers(Photo, 8)
    assert (len(counted), max(counted.values())) == (rows, 1)
    assert Photo.objects.filter(status="complete", counter=1).count() == rows


@pytest.mark.parametrize("model", [Child, CompositeKey])
def test_nor_do_they_on_tables_of_other_shapes(model: Any) -> None:
    make(model, 200)
    counted = workers(model, 4)
    assert (len(counted), max(counted.values())) == (200, 1)


def test_claims_with_an_order_and_a_filter_of_their_own_meet_without_harm(strategy: str) -> None:
    """Row locks taken in the order of the user's would deadlock; here they meet from both ends."""
    if strategy == "compare_and_swap":
        pytest.skip(
            "it takes row by row in the order asked for, and leaves deadlocks to the retries"
        )
    claimable_rows(Photo, 300, country="NZ")
    wanted = Photo.objects.filter(country="NZ")

    def from_one_end(order: str) -> list[Any]:
        mine: list[Any] = []
        while rows := wanted.order_by(order).claim_batch(7):
            mine += [row.pk for row in rows]
        return mine

    ends = ["pk", "-pk", "note", "?"]
    claimed = at_once(*[lambda order=order: from_one_end(order) for order in ends])
    counted = Counter(key for keys in claimed for key in keys)
    assert (len(counted), max(counted.values())) == (300, 1)


@pytest.mark.parametrize("completion", ["mark", "delete"])
def test_completions_claims_and_the_reaper_meet_without_harm(rule: Any, completion: str) -> None:
    """Every row is completed exactly once, however often the reaper puts it back in between."""
    rule(Photo, max_attempts=10**6, completion=completion)
    claimable_rows(Photo, 200)
    # Half of the claims are in vain, so it takes its time.
    end = time.monotonic() + 4 * DEADLINE

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
    completed = at_once(*workers, reaper, seconds=5 * DEADLINE)
    counted = Counter(key for keys in completed for key in keys)
    assert (len(counted), max(counted.values())) == (200, 1)
    assert Photo.objects.count() == (200 if completion == "mark" else 0)
    assert not Photo.objects.exclude(status="complete").exists()


# Hostile plans

#: Without these the planner is left with a nested loop that runs a sub-select again for every row.
HOSTILE = ["hashjoin", "mergejoin", "hashagg", "material", "sort"]

NAIVE = """
    UPDATE testapp_photo SET status = 'processing' WHERE id IN (
        SELECT id FROM testapp_photo WHERE status = 'open'
        ORDER BY priority DESC, not_before, id LIMIT 5 FOR UPDATE SKIP LOCKED
    )"""


@pytest.fixture(params=["stale", "fresh"])
def hostile_plans(request: pytest.FixtureRequest) -> Iterator[None]:
    """Two hundred rows, and a planner that has nothing good to choose from."""
    if request.param == "stale":
        execute("ANALYZE testapp_photo")
    claimable_rows(Photo, 200)
    if request.param == "fresh":
        execute("ANALYZE testapp_photo")
    for way in HOSTILE:
        execute(f"SET enable_{way} = off")
    yield
    connection.close()


@POSTGRESQL
@pytest.mark.usefixtures("hostile_plans")
class TestHostilePlans:
    def test_the_trap_is_set(self) -> None:
        """``filter(pk__in=qs[:5]).update()`` is this statement, and it claims the whole table.

        All of it only where the rows lie in the order of their keys, which dead rows of earlier tests may prevent.
        """
        assert execute(NAIVE) > 5

    def test_a_claim_takes_no_more_than_its_limit(self, strategy: str) -> None:
        assert len(Photo.objects.claim_batch(5)) == 5
        assert Photo.objects.filter(status="processing").count() == 5

    @pytest.mark.parametrize(
        "narrow",
        [
            lambda rows: rows.filter(note=""),
            lambda rows: rows.filter(pk__in=rows.model.objects.filter(note="").values("pk")),
            lambda rows: rows.filter(Exists(Photo.objects.filter(pk=OuterRef("pk")))),
            lambda rows: rows.order_by("-pk"),
            lambda rows: rows.filter(note="").distinct(),
        ],
    )
    def test_nor_does_one_with_a_filter_or_an_order(self, narrow: Any) -> None:
        assert len(narrow(Photo.objects.all()).claim_batch(5)) == 5
        assert Photo.objects.filter(status="processing").count() == 5

    def test_nor_do_the_reaper_and_the_operators_verbs(self) -> None:
        Photo.objects.claim_batch(50)
        Photo._base_manager.update(expires_at=None)
        assert Photo.objects.release_expired(limit=5) == 5
        assert Photo.objects.filter(pk__in=Photo.objects.open().values("pk")[:7]).pause_rows() == 7


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


def note_level(
    seen: list[list[int]],
    rival: Rival,
    execute: Any,
    sql: str,
    params: Any,
    many: bool,
    context: dict[str, Any],
) -> Any:
    """Look, after each write of ours, what its transaction sees of another one."""
    result = execute(sql, params, many, context)
    if "UPDATE" in sql and "SELECT" not in sql.partition("UPDATE")[0]:
        assert connection.in_atomic_block
        seen.append(seen_of_another_insert(rival))
    return result


def seen_of_another_insert(rival: Rival) -> list[int]:
    """Return how many more rows are seen while another session's insert is open, and once it has committed.

    By what a level does, not by its name: MariaDB and MySQL tell that in a view of the whole server, which they do not
    renew as long as anybody, in any database, reads it ten times a second.
    """
    before = authors_seen()
    rival.connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    rival.execute("INSERT INTO testapp_author (name) VALUES ('new')")
    open_ = authors_seen()
    rival.connection.commit()
    rival.connection.set_autocommit(True)
    return [open_ - before, authors_seen() - before]


def authors_seen() -> int:
    with connection.connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM testapp_author")
        return int(cursor.fetchone()[0])


@pytest.mark.usefixtures("repeatable_read")
class TestRepeatableRead:
    def test_claimers_meet_without_an_error_and_without_harm(self, strategy: str) -> None:
        claimable_rows(Photo, 300)
        counted = workers(Photo, 4)
        assert (len(counted), max(counted.values())) == (300, 1)

    def test_claims_renewals_and_the_reaper_run_at_read_committed(
        self, strategy: str, rival: Rival
    ) -> None:
        make(Photo, 2)
        seen: list[list[int]] = []
        with transaction.atomic():
            assert seen_of_another_insert(rival) == [0, 0], "the trap is not set"
        with connection.execute_wrapper(partial(note_level, seen, rival)):
            rows = Photo.objects.claim_batch(2)
            Photo.objects.renew(rows)
            Photo.objects.complete(rows, update_fields=["note"])
            Photo.objects.reset(complete=True)
        assert len(seen) >= 3
        assert seen == [[0, 1]] * len(seen)

    def test_a_transaction_with_an_old_snapshot_still_finds_its_claim_lost(self) -> None:
        make(Photo)
        (row,) = Photo.objects.claim_batch(1)
        row.note = "late"
        with transaction.atomic():
            assert Photo.objects.get().status == "processing"
            elsewhere(lambda: Photo.objects.reset(running=True)).result(DEADLINE)
            # PostgreSQL refuses to look past an old snapshot: there the caller's transaction must be repeated.
            kind = OperationalError if connection.vendor == "postgresql" else ClaimLost
            with pytest.raises(kind):
                Photo.objects.complete([row], update_fields=["note"])
            transaction.set_rollback(True)
        assert (Photo.objects.get().status, Photo.objects.get().note) == ("open", "")
        with pytest.raises(ClaimLost):
            Photo.objects.complete([row])


# Starvation


@LOCKS
@pytest.mark.parametrize("rows", [60, 2000, 20000])
def test_a_second_worker_is_never_starved(rows: int) -> None:
    """The first one's claim transaction is still open: frozen, or just slow."""
    claimable_rows(Photo, rows)
    execute(f"ANALYZE {'' if connection.vendor == 'postgresql' else 'TABLE '}{table_of(Photo)}")
    with held_open(lambda: Photo.objects.claim_batch(20, durable=False)) as first:
        second = elsewhere(lambda: Photo.objects.claim_batch(20)).result(DEADLINE)
    assert (len(first), len(second)) == (20, 20)
    assert not {row.pk for row in first} & {row.pk for row in second}


@LOCKS
@pytest.mark.parametrize("order", [["-pk"], ["note", "pk"]])
def test_nor_by_an_order_that_no_index_serves(order: Any) -> None:
    claimable_rows(Photo, 200)
    ordered = Photo.objects.filter(country="").order_by(*order)
    with held_open(lambda: ordered.claim_batch(20, durable=False)) as first:
        second = elsewhere(lambda: ordered.claim_batch(20)).result(DEADLINE)
    assert (len(first), len(second)) == (20, 20)


@pytest.mark.skipif(connection.vendor != "mysql", reason="locks only the rows that it returns")
def test_the_trap_of_a_claim_that_sorts_is_set() -> None:
    """A claim that cannot read in order locks every candidate, and leaves the next worker nothing."""
    claimable_rows(Photo, 60)
    (index,) = [one.name for one in Photo._meta.indexes]
    naive = (
        f"SELECT id FROM testapp_photo IGNORE INDEX ({index}) WHERE status = 'open'"
        " ORDER BY priority DESC, not_before, id LIMIT 20 FOR UPDATE SKIP LOCKED"
    )
    with held_open(lambda: execute(naive)) as first:
        second = elsewhere(lambda: execute(naive)).result(DEADLINE)
        ours = elsewhere(lambda: Photo.objects.claim_batch(20)).result(DEADLINE)
    assert (first, second) == (20, 0)
    assert ours == []  # it locks them all, so nobody can help; but it is not how we claim


def test_rows_are_never_left_behind_by_a_claim_that_found_nothing_free(strategy: str) -> None:
    """What one claim wrote it returns: nothing is held by a holder whom nobody knows."""
    claimable_rows(Photo, 40)
    answers = at_once(*[lambda: [row.pk for row in Photo.objects.claim_batch(30)]] * 4)
    returned = {key for answer in answers for key in answer}
    held = set(Photo.objects.filter(status="processing").values_list("pk", flat=True))
    assert returned == held
