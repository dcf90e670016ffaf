"""The stored rows of named leases: one winner whatever happens at once, and a count that never decreases."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from django_taskclaim.dialects import dialect_for
from django_taskclaim.exceptions import LeaseUnavailable
from django_taskclaim.leases import LeaseRows, named_lease
from django_taskclaim.models import NamedLease
from django_taskclaim.states import Token
from django_taskclaim.worker import heartbeat
from tests.behaviour.support import DEADLINE, at_once, clock, elsewhere, execute
from tests.leases.support import TABLE, is_held, set_expiry, stored
from tests.testapp.models import Photo

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE = timedelta(minutes=1)


def take(name: str, holder: str = "1@host#1") -> Token | None:
    try:
        return LeaseRows.on("default").take(name, holder, MINUTE)[0]
    except LeaseUnavailable:
        return None


def winners(name: str) -> list[Token]:
    """Let eight sessions ask at once, and return the tokens of those who got it."""
    asking = [lambda n=n: take(name, f"{n}@host#{n}") for n in range(8)]
    return [token for token in at_once(*asking) if token is not None]


def test_the_first_use_of_a_name_has_one_winner() -> None:
    for number in range(5):
        assert len(winners(f"new:{number}")) == 1


def test_an_expired_lease_has_one_next_holder() -> None:
    first = take("report")
    assert first is not None
    for turn in range(1, 6):
        set_expiry("report", "-1 SECOND")
        (winner,) = winners("report")
        assert winner.iteration == first.iteration + turn
        assert stored("report").claimed_by == winner.holder


def test_a_look_that_is_outdated_takes_nothing() -> None:
    """Between the look and the statement that takes, somebody else may have come and gone."""
    rows = LeaseRows.on("default")
    first = take("report")
    assert first is not None
    rows.give_back("report", first)
    second = take("report", "2@host#2")
    assert second is not None
    rows.give_back("report", second)
    assert not rows._swap("report", first.iteration, "3@host#3", MINUTE)
    assert stored("report").claimed_by is None
    assert stored("report").iteration == second.iteration


@pytest.mark.parametrize("verb", ["renew", "give_back"])
def test_an_old_token_writes_nothing(verb: str) -> None:
    """Neither holder nor iteration alone opens the fence."""
    current = take("report")
    assert current is not None
    before = NamedLease.objects.values().get(name="report")
    rows = LeaseRows.on("default")
    for token in (
        Token(current.holder, current.iteration - 1),
        Token("2@host#2", current.iteration),
        Token(current.holder.upper(), current.iteration),
    ):
        arguments: Any = (token, MINUTE) if verb == "renew" else (token,)
        assert not getattr(rows, verb)("report", *arguments)
    assert NamedLease.objects.values().get(name="report") == before


# Forgetting

RETENTION = timedelta(hours=1)


def forget() -> int:
    return LeaseRows.on("default").forget(RETENTION, 100)


def used(name: str, offset: str) -> Token:
    """Make a lease that was held, and given back, a while ago."""
    token = take(name)
    assert token is not None
    LeaseRows.on("default").give_back(name, token)
    age(name, offset)
    return token


def age(name: str, offset: str) -> None:
    """Let a lease have been taken a while ago, and its count have begun when it may have."""
    moment = clock(offset)
    hours = int(offset.split()[0])
    execute(
        f"UPDATE {TABLE} SET claimed_at = {moment}, iteration = iteration + %s WHERE name = %s",
        [hours * 3600, name],
    )


def test_names_are_forgotten_after_a_while_unused() -> None:
    used("old", "-2 HOUR")
    used("young", "-0 HOUR")
    used("held", "-2 HOUR")
    assert take("held", "2@host#2")
    execute(f"UPDATE {TABLE} SET claimed_at = {clock('-2 HOUR')} WHERE name = 'held'")
    used("ended just now", "-2 HOUR")
    assert take("ended just now")
    execute(f"UPDATE {TABLE} SET claimed_at = {clock('-2 HOUR')} WHERE name = 'ended just now'")
    set_expiry("ended just now", "-1 MINUTE")
    used("dead holder", "-3 HOUR")
    assert take("dead holder")
    execute(f"UPDATE {TABLE} SET claimed_at = {clock('-2 HOUR')} WHERE name = 'dead holder'")
    set_expiry("dead holder", "-2 HOUR")
    assert forget() == 2
    left = set(NamedLease.objects.values_list("name", flat=True))
    assert left == {"young", "held", "ended just now"}


def test_a_forgotten_name_goes_on_above_every_count_it_had() -> None:
    before = used("report", "-2 HOUR")
    highest = stored("report").iteration
    assert forget() == 1
    with named_lease("report") as held:
        assert held.token.iteration > highest
        assert held.token.holder != before.holder


def test_a_name_whose_count_is_ahead_of_the_clock_is_not_forgotten() -> None:
    """It changed hands more than once a second; forgotten now, it would begin again below its old tokens."""
    used("busy", "-2 HOUR")
    execute(f"UPDATE {TABLE} SET iteration = iteration + 7200")
    assert forget() == 0
    with named_lease("busy") as held:
        assert held.token.iteration == stored("busy").iteration


def test_what_is_taken_while_it_is_being_forgotten_stays() -> None:
    used("report", "-2 HOUR")

    def take_it(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("DELETE"):
            assert elsewhere(take, "report").result(DEADLINE)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(take_it):
        assert forget() == 0
    assert is_held("report")


def test_workers_forget_in_chunks_until_all_is_done() -> None:
    """Each call forgets a piece and says whether that was the last, so that leases can be renewed in between."""
    for number in range(7):
        used(f"report:{number}", "-2 HOUR")
    with named_lease("held"):
        with override_settings(TASKCLAIM={"WORKER_RETENTION": 3600, "CHUNK_SIZE": 3}):
            assert [heartbeat.prune("default") for _ in range(3)] == [False, False, True]
        assert is_held("held")
        assert NamedLease.objects.count() == 1


def test_the_queues_of_holders_are_forgotten_too() -> None:
    """MySQL and MariaDB keep a row for each holder who asks by name."""
    Photo.objects.claim_batch(1, claimed_by="user:17", include_held=True)
    queues = NamedLease.objects.count()
    execute(f"UPDATE {TABLE} SET claimed_at = {clock('-2 HOUR')}")
    assert forget() == queues
    assert queues == (1 if connection.vendor == "mysql" else 0)


def test_the_count_begins_at_the_clock_of_the_database() -> None:
    token = take("report")
    assert token is not None
    said = dialect_for(connection).current_time().timestamp() - 1_577_836_800
    assert abs(token.iteration - 1 - said) < 60
