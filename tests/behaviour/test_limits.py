"""Limits per key: at most so many rows of one customer at once, over all holders."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F

from django_taskclaim.handlers import handler
from django_taskclaim.policy import Policy
from django_taskclaim.querysets import limits
from django_taskclaim.switch import pause, resume
from tests.behaviour.support import (
    DEADLINE,
    ROW_LOCKS,
    at_once,
    elsewhere,
    execute,
    held_open,
    names,
)
from tests.factories import make
from tests.testapp.models import (
    Author,
    Child,
    ChildOwnsClaim,
    CompositeKey,
    OrderedByForeignKey,
    Photo,
    PhotoProxy,
)

pytestmark = pytest.mark.django_db

Rule = Callable[..., None]
Lapse = Callable[[Any], None]


def countries(rows: Any) -> dict[str, int]:
    return dict(Counter(row.country for row in rows))


def running(model: Any, column: str) -> Counter[Any]:
    """Count what is processing, as the database has it now."""
    held = model._base_manager.filter(**{names(model)["status"]: "processing"})
    return Counter(held.values_list(column, flat=True))


def limited(model: Any) -> str:
    """Return a column of the model's table with the claim columns that all of its rows have alike."""
    return "extra" if model is ChildOwnsClaim else "counter"


# What is exact


def test_a_batch_takes_no_more_of_a_key_than_its_limit(claimable: Any, rule: Rule) -> None:
    column = limited(claimable)
    rule(claimable, limit_per={column: 2})
    make(claimable, 7, **{column: lambda i: i // 3})
    first = claimable.objects.claim_batch(7)
    assert sorted(running(claimable, column).values()) == [1, 2, 2]
    assert claimable.objects.claim_batch(7) == []
    done = next(row for row in first if getattr(row, column) in (0, "0"))
    done.claim.complete()
    (again,) = claimable.objects.claim_batch(7)
    assert getattr(again, column) == getattr(done, column)


@pytest.mark.usefixtures("strategy")
def test_rows_come_in_claim_order_and_the_next_keys_follow(rule: Rule) -> None:
    rule(Photo, limit_per={"country": 2})
    rows = make(Photo, 8, country=lambda i: "AAAABBBC"[i], priority=lambda i: i == 3)
    claimed = Photo.objects.claim_batch(4)
    assert [rows.index(row) for row in claimed] == [3, 0, 4, 5]
    assert countries(Photo.objects.claim_batch(4)) == {"C": 1}


@pytest.mark.usefixtures("strategy")
def test_every_holder_counts_whoever_claimed_and_however(rule: Rule) -> None:
    make(Photo, 6, country="A")
    Photo.objects.claim_batch(1, claimed_by="user:17")
    Photo.objects.claim_batch(1)
    rule(Photo, limit_per={"country": 3})
    assert len(PhotoProxy.objects.claim_batch(6, claimed_by="user:18")) == 1
    assert Photo.objects.filter(country="A").order_by("-pk").claim_batch(6) == []


def test_what_a_dead_worker_held_counts_until_the_reaper_has_put_it_back(
    kind_of_table: Any, rule: Rule, let_lease_lapse: Lapse
) -> None:
    rule(kind_of_table, limit_per={limited(kind_of_table): 2})
    make(kind_of_table, 4)
    held = kind_of_table.objects.claim_batch(4)
    let_lease_lapse(held)
    assert kind_of_table.objects.claim_batch(4) == []
    assert kind_of_table.objects.release_expired() == 2
    assert len(kind_of_table.objects.claim_batch(4)) == 2


@pytest.mark.usefixtures("strategy")
def test_rows_without_a_key_are_not_limited(rule: Rule) -> None:
    rule(OrderedByForeignKey, limit_per={"author": 1})
    author = Author.objects.create(name="one")
    make(OrderedByForeignKey, 6, author=lambda i: author if i % 2 else None)
    claimed = OrderedByForeignKey.objects.claim_batch(6)
    assert Counter(row.author_id for row in claimed) == {None: 3, author.pk: 1}


def test_keys_that_a_collation_takes_for_one_are_counted_apart(rule: Rule) -> None:
    rule(Photo, limit_per={"country": 1})
    make(Photo, 6, country=lambda i: ["aa", "AA", "Aa"][i % 3])
    assert countries(Photo.objects.claim_batch(6)) == {"aa": 1, "AA": 1, "Aa": 1}
    assert Photo.objects.claim_batch(6) == []


@pytest.mark.usefixtures("strategy")
def test_several_limits_hold_together(rule: Rule) -> None:
    rule(Photo, limit_per={"country": 3, "counter": 2})
    make(Photo, 8, country=lambda i: "AAAAAABB"[i], counter=lambda i: i % 2)
    claimed = Photo.objects.claim_batch(8)
    assert countries(claimed) == {"A": 3, "B": 1}
    assert Counter(row.counter for row in claimed) == {0: 2, 1: 2}


@pytest.mark.usefixtures("strategy")
def test_a_part_of_a_composite_key_can_be_what_is_limited(rule: Rule) -> None:
    rule(CompositeKey, limit_per={"tenant": 2})
    make(CompositeKey, 9, tenant=lambda i: 1000 + i // 4)
    claimed = CompositeKey.objects.claim_batch(9)
    assert Counter(row.tenant for row in claimed) == {1000: 2, 1001: 2, 1002: 1}


def test_what_a_person_holds_comes_back_and_counts(rule: Rule) -> None:
    rule(Photo, limit_per={"country": 2})
    make(Photo, 8, country=lambda i: "AB"[i // 4])
    mine = {"claimed_by": "user:17", "include_held": True}
    first = Photo.objects.claim_batch(3, **mine)
    assert countries(first) == {"A": 2, "B": 1}
    assert Photo.objects.claim_batch(3, **mine) == first
    first[0].claim.complete()
    assert countries(Photo.objects.claim_batch(6, **mine)) == {"A": 2, "B": 2}


def test_a_limit_of_the_parent_binds_its_children_and_proxies(rule: Rule) -> None:
    rule(Child, limit_per={"note": 2})
    rule(Child.__mro__[1], limit_per={"counter": 1})
    make(Child, 4)
    assert len(Child.objects.claim_batch(4)) == 1


def test_nothing_is_taken_while_the_switch_is_off(rule: Rule) -> None:
    rule(Photo, limit_per={"country": 2})
    make(Photo, 4)
    pause(Photo, using="default")
    assert Photo.objects.claim_batch(4) == []
    resume(Photo, using="default")
    assert len(Photo.objects.claim_batch(4)) == 2


def test_an_order_and_a_filter_of_the_callers_are_kept(kind_of_table: Any, rule: Rule) -> None:
    rule(kind_of_table, limit_per={limited(kind_of_table): 3})
    rows = make(kind_of_table, 6, note=lambda i: ["yes", "no"][i % 2])
    wanted = kind_of_table.objects.filter(note="yes").order_by(F("pk").desc())
    if kind_of_table is CompositeKey:
        wanted = wanted.order_by("-tenant", "-number")
    claimed = wanted.claim_batch(6)
    assert [rows.index(row) for row in claimed] == [4, 2, 0]


# Who counts at once


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
@pytest.mark.usefixtures("strategy")
def test_claims_that_meet_count_each_other(rule: Rule) -> None:
    rule(Photo, limit_per={"country": 3})
    make(Photo, 24, country=lambda i: "AB"[i % 2])
    claimed = at_once(*[lambda: Photo.objects.claim_batch(2)] * 8)
    assert countries(row for rows in claimed for row in rows) == {"A": 3, "B": 3}


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
def test_a_claim_waits_for_one_that_is_not_committed(rule: Rule) -> None:
    rule(Photo, limit_per={"country": 2})
    make(Photo, 6, country="A")
    with held_open(lambda: Photo.objects.claim_batch(2, durable=False)) as provisional:
        waiting = elsewhere(Photo.objects.claim_batch, 2)
        assert len(provisional) == 2
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
    # It was rolled back, so there is room again.
    assert len(waiting.result(DEADLINE)) == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
def test_a_key_changed_between_the_look_and_the_claim_is_not_exceeded(
    rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule(Photo, limit_per={"country": 1})
    rows = make(Photo, 3, country=lambda i: "ABC"[i])
    choose = limits._Taking._choose

    def move() -> None:
        Photo._base_manager.filter(pk=rows[1].pk).update(country="A")

    def choose_and_change(taking: Any, found: Any) -> Any:
        chosen = choose(taking, found)
        if rows[1].pk in chosen:
            elsewhere(move).result(DEADLINE)
        return chosen

    monkeypatch.setattr(limits._Taking, "_choose", choose_and_change)
    assert countries(Photo.objects.claim_batch(3)) == {"A": 1, "C": 1}
    assert Photo.objects.open().get().pk == rows[1].pk


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not ROW_LOCKS, reason="needs row locks")
def test_rows_that_somebody_has_locked_are_passed_over(rule: Rule, rival: Any) -> None:
    rule(Photo, limit_per={"country": 2})
    rows = make(Photo, 4, country="A")
    rival.lock(rows[0])
    assert [row.pk for row in Photo.objects.claim_batch(2)] == [rows[1].pk, rows[2].pk]


def test_a_provisional_claim_counts_in_its_own_transaction(rule: Rule) -> None:
    rule(Photo, limit_per={"country": 2})
    make(Photo, 4)
    with transaction.atomic():
        assert len(Photo.objects.claim_batch(1, durable=False)) == 1
        assert len(Photo.objects.claim_batch(4, durable=False)) == 1
        assert Photo.objects.claim_batch(4, durable=False) == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not ROW_LOCKS, reason="its one writer sees all that is committed")
def test_a_transaction_that_does_not_see_new_commits_is_refused(
    rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule(Photo, limit_per={"country": 2})
    make(Photo, 2)
    with transaction.atomic():
        if connection.vendor == "postgresql":
            execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        else:
            monkeypatch.setattr(connection, "isolation_level", "repeatable read")
        with pytest.raises(RuntimeError, match=r"limit_per.*READ COMMITTED"):
            Photo.objects.claim_batch(1, durable=False)
    assert Photo.objects.open().count() == 2


# Keys in front that are full


def crowd(rows: int, others: str = "BCD") -> None:
    """Put a crowd of one country in front of a few rows of others."""
    make(Photo, country="A")
    table = connection.ops.quote_name(Photo._meta.db_table)
    columns = ", ".join(
        connection.ops.quote_name(field.column)
        for field in Photo._meta.concrete_fields
        if not field.primary_key
    )
    made = 1
    while made < rows:
        more = min(made, rows - made)
        made += execute(
            f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table} LIMIT {more}"
        )
    make(Photo, 3 * len(others), country=lambda i: others[i // 3])


@pytest.fixture(params=[True, False], ids=["index", "no index"])
def stepping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Let claims believe that the table has, or has not, an index to step over keys with; right with either."""
    monkeypatch.setattr(limits, "has_key_index", lambda desk, field: request.param)
    monkeypatch.setattr(limits, "_last_keys", {})
    return bool(request.param)


@pytest.mark.usefixtures("stepping", "strategy")
def test_what_stands_behind_a_crowd_without_room_is_reached(rule: Rule) -> None:
    rule(Photo, limit_per={"country": 2})
    crowd(450)
    assert countries(Photo.objects.claim_batch(5)) == {"A": 2, "B": 2, "C": 1}
    assert countries(Photo.objects.claim_batch(5)) == {"C": 1, "D": 2}
    assert Photo.objects.claim_batch(5) == []


@pytest.mark.usefixtures("stepping")
def test_rows_without_a_key_are_reached_behind_a_crowd(rule: Rule) -> None:
    rule(Photo, limit_per={"width": 2})
    crowd(300, others="")
    Photo._base_manager.update(width=1)
    make(Photo, 3)
    make(Photo, 3, width=2)
    claimed = Photo.objects.claim_batch(7)
    assert Counter(row.width for row in claimed) == {1: 2, None: 3, 2: 2}


def test_keys_take_turns_behind_a_crowd(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "has_key_index", lambda desk, field: True)
    monkeypatch.setattr(limits, "_last_keys", {})
    monkeypatch.setattr(limits, "HEADS", 2)
    rule(Photo, limit_per={"country": 1})
    crowd(300, others="BCDE")
    Photo.objects.claim_batch(1)
    turns = []
    for _ in range(4):
        (row,) = Photo.objects.claim_batch(1)
        turns.append(row.country)
        row.claim.complete()
    assert len(set(turns)) > 1
    assert countries(Photo.objects.claim_batch(9)) == {"B": 1, "C": 1, "D": 1, "E": 1}


# What models without limits pay, and what those with them do


def test_a_table_with_nothing_to_take_costs_one_question(
    rule: Rule, django_assert_max_num_queries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule(Photo, limit_per={"country": 2})
    # Whether limits of the fleet were stored meanwhile is asked now and then, beside that.
    monkeypatch.setattr("django_taskclaim.querysets.fleet.ASK_EVERY", float("inf"))
    Photo.objects.claim_batch(5)
    with django_assert_max_num_queries(4):
        assert Photo.objects.claim_batch(5) == []


# What is refused


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"country": 0}, ValueError, "whole number from 1"),
        ({"country": True}, ValueError, "whole number from 1"),
        ({"country": "3"}, ValueError, "whole number from 1"),
        (["country"], TypeError, "must map names"),
        ({3: "country"}, TypeError, "must map names"),
    ],
)
def test_a_wrong_limit_is_refused_in_a_sentence(given: Any, error: Any, told: str) -> None:
    with pytest.raises(error, match=told):
        Policy(own_limit_per=given)


@pytest.mark.parametrize(
    ("model", "column", "told"),
    [
        (Photo, "contry", "none of them"),
        (Photo, "author__name", "none of them"),
        (Child, "extra", "none of them"),
        (CompositeKey, "pk", "none of them"),
        (Photo, "claimed_by", "is a claim column"),
    ],
)
def test_a_column_that_cannot_be_counted_by_is_refused(
    model: Any, column: str, told: str, rule: Rule
) -> None:
    with pytest.raises(ValueError, match=f"{column}.*{told}"):
        handler(model, limit_per={column: 2})(lambda row: None)
    rule(model, limit_per={column: 2})
    with pytest.raises(ValueError, match=f"{column}.*{told}"):
        model.objects.claim_batch(1)
