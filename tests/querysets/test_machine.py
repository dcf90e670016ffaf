"""All verbs in any order, by several holders who forget no token: a Hypothesis state machine beside a plain model.

``TASKCLAIM_TEST_EXAMPLES`` is how many stories are made of each model (longer runs: 1000). With ``CI`` set they are the
same ones every time.
"""

import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, models
from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_taskclaim.exceptions import ClaimLost
from tests.querysets.machine import MAX_ATTEMPTS, Belief, Carrier, World
from tests.querysets.support import table_of, tables_of
from tests.testapp.models import Child, ClaimOnly, Photo

EXAMPLES = int(os.environ.get("TASKCLAIM_TEST_EXAMPLES", 5))

SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=50,
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

#: Holders that are people, one looking like the other; None is a worker's batch.
HOLDERS = [None, None, "user:ann", "user:Ann"]

#: No lease ends by itself, however long a busy machine takes for a story.
LEASE = timedelta(days=1)

FIRST_ROWS, MOST_ROWS = 4, 6

anyone = st.integers(0, 40)
several = st.lists(anyone, min_size=1, max_size=4)
#: Whose turn it is: rather those whose claims stand, or anyone who ever had an instance.
pick = st.tuples(several, st.sampled_from(["standing", "standing", "anyone"]))
some_rows = st.one_of(st.none(), st.sets(st.integers(0, MOST_ROWS), min_size=1, max_size=3))


class Claims(RuleBasedStateMachine):
    """One session does everything, so every answer can be foretold."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.world = World(model)
        self.number = 0
        for each in tables_of(model):
            models.QuerySet(each)._raw_delete("default")  # type: ignore[attr-defined]
        for _ in range(FIRST_ROWS):
            self.insert()

    @invariant()
    def every_row_is_as_foretold(self) -> None:
        self.world.compare()

    # Who acts

    def _picked(self, pick: tuple[list[int], str]) -> list[Carrier]:
        """Return instances of different rows; where somebody is to hold them and nobody does, a worker claims first."""
        numbers, whose = pick
        if whose == "standing" and not self._standing():
            self._let_claim()
        among = self._standing() if whose == "standing" else self.world.carriers
        # The last ones first: a story shrinks to the instances that were claimed last.
        picked = [among[-1 - number % len(among)] for number in numbers if among]
        return list({one.key: one for one in picked}.values())

    def _standing(self) -> list[Carrier]:
        return [one for one in self.world.carriers if self.world.stands(one)]

    def _chosen(self, numbers: set[int] | None) -> tuple[Any, set[Any]]:
        """Return a queryset of some rows, and their keys."""
        keys = list(self.world.rows)
        if numbers is None or not keys:
            return self.model.objects.all(), set(keys)
        chosen = {keys[number % len(keys)] for number in numbers}
        return self.model.objects.filter(pk__in=chosen), chosen

    def _new(self) -> str:
        self.number += 1
        return f"value {self.number}"

    def _dump(self) -> list[Any]:
        """Return every byte of every table of the model."""
        dumped = []
        for each in tables_of(self.model):
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT * FROM {table_of(each)}")
                dumped.append(sorted(map(repr, cursor.fetchall())))
        return dumped

    def _let_claim(self) -> None:
        """Claim, and if that takes an operator's act before: most verbs would have nothing to do otherwise."""
        acts: list[Callable[[], Any]] = [
            partial(self.resume_rows, some=None),
            partial(self.reset, some=None, complete=True, running=False),
        ]
        if self.world.has_tries:
            acts.insert(1, self.let_rows_become_due)
        for act in acts:
            if not self.world.claimable(set(self.world.rows)):
                act()
                self.world.compare()
        self.claim(limit=3, who=None, include_held=False, some=None)

    # Rows

    @precondition(lambda self: len(self.world.rows) < MOST_ROWS)
    @rule()
    def insert(self) -> None:
        row = self.model.objects.create()
        user_columns = dict.fromkeys(self.world.user_columns, "")
        self.world.rows[row.pk] = Belief(row.pk, values=user_columns)

    @precondition(lambda self: self.world.rows)
    @rule(number=anyone)
    def read(self, number: int) -> None:
        """Somebody loads a row the ordinary way, and keeps the instance."""
        keys = list(self.world.rows)
        row = self.model.objects.get(pk=keys[number % len(keys)])
        self.world.carriers.append(Carrier(row, row.pk))

    # Claiming

    @rule(
        limit=st.integers(1, 4),
        who=st.sampled_from(HOLDERS),
        include_held=st.booleans(),
        some=some_rows,
    )
    def claim(self, limit: int, who: str | None, include_held: bool, some: set[int] | None) -> None:
        world = self.world
        queryset, keys = self._chosen(some)
        include_held = include_held and who is not None
        held = world.held_by(str(who), keys) if include_held else set()
        free = world.claimable(keys)
        claimed = queryset.claim_batch(limit, claimed_by=who, include_held=include_held)
        world.check_answer([row.pk for row in claimed], limit, held, free)
        world.takes(claimed, who, held)

    # Ending and extending claims

    def _verb(
        self,
        carriers: list[Carrier],
        verb: Callable[[list[Any]], int],
        effect: Callable[[Belief], None],
        *,
        ends: bool = True,
    ) -> None:
        """Call *verb*; it must have *effect* on the rows that are still held, and name all the others."""
        standing = [one for one in carriers if self.world.stands(one)]
        lost = [one for one in carriers if one not in standing]
        before = None if standing else self._dump()
        if lost:
            with pytest.raises(ClaimLost) as caught:
                verb([one.row for one in carriers])
            assert same(caught.value.lost, lost)
            assert same(caught.value.written, standing)
        else:
            assert verb([one.row for one in carriers]) == len(carriers)
        for one in standing:
            effect(self.world.rows[one.key])
            one.ended = ends
        assert before is None or self._dump() == before

    @rule(pick=pick)
    def complete(self, pick: Any) -> None:
        self._verb(self._picked(pick), self.model.objects.complete, Belief.completed)

    @rule(pick=pick)
    def complete_with_results(self, pick: Any) -> None:
        carriers = self._picked(pick)
        results = self._write_on(carriers)

        def completed(belief: Belief) -> None:
            belief.values |= results[belief.key]
            belief.completed()

        verb = partial(self.model.objects.complete, update_fields=self.world.user_columns)
        self._verb(carriers, verb, completed)

    @rule(pick=pick, retry=st.booleans())
    def fail(self, pick: Any, retry: bool) -> None:
        error, world = self._new(), self.world

        def failed(belief: Belief) -> None:
            belief.failed(error, retry=retry, waits=world.has_tries, tried=world.tried(belief))

        verb = partial(self.model.objects.fail, error=error, retry=retry)
        self._verb(self._picked(pick), verb, failed)

    @rule(pick=pick, delay=st.sampled_from([None, 0, 3600]))
    def release(self, pick: Any, delay: int | None) -> None:
        # A model without ``not_before`` cannot wait.
        wait = delay if self.world.has_tries else None
        verb = partial(self.model.objects.release, delay=delay)
        self._verb(self._picked(pick), verb, lambda belief: belief.delayed(wait))

    @rule(pick=pick)
    def renew(self, pick: Any) -> None:
        self._verb(self._picked(pick), self.model.objects.renew, Belief.renewed, ends=False)

    def _write_on(self, carriers: Iterable[Carrier]) -> dict[Any, dict[str, str]]:
        """Give each instance new values of the user's, and return them by key."""
        for one in carriers:
            for name in self.world.user_columns:
                setattr(one.row, name, self._new())
        return {
            one.key: {name: getattr(one.row, name) for name in self.world.user_columns}
            for one in carriers
        }

    # Time

    @rule(some=some_rows, unknown=st.booleans())
    def let_leases_lapse(self, some: set[int] | None, unknown: bool) -> None:
        moment = None if unknown else timezone.now() - timedelta(days=1)
        _, keys = self._chosen(some)
        running = [key for key in keys if self.world.rows[key].status == "processing"]
        models.QuerySet(self.model).filter(pk__in=running).update(expires_at=moment)
        for key in running:
            self.world.rows[key].expired = True

    @precondition(lambda self: self.world.has_tries)
    @rule()
    def let_rows_become_due(self) -> None:
        waiting = [row for row in self.world.rows.values() if row.waiting]
        moment = timezone.now() - timedelta(minutes=1)
        rows = models.QuerySet(self.model).filter(pk__in=[row.key for row in waiting])
        rows.update(not_before=moment)
        for row in waiting:
            row.waiting = False

    # Acts on many rows

    @rule(some=some_rows, limit=st.one_of(st.none(), st.integers(1, 3)))
    def release_expired(self, some: set[int] | None, limit: int | None) -> None:
        queryset, keys = self._chosen(some)
        beliefs = self.world.rows
        expired = [key for key in keys if beliefs[key].expired]
        running = models.QuerySet(self.model).filter(status="processing", pk__in=expired)
        assert queryset.release_expired(limit) == min(len(expired), limit or len(expired))
        # Which ones come first is the database's own affair.
        for key in set(expired) - set(running.values_list("pk", flat=True)):
            beliefs[key].reaped(self.world.tried(beliefs[key]), marks=self.world.has_tries)

    def _change(self, some: set[int] | None, states: set[str], verb: str, **options: Any) -> Any:
        queryset, keys = self._chosen(some)
        changed = [self.world.rows[key] for key in keys if self.world.rows[key].status in states]
        assert getattr(queryset, verb)(**options) == len(changed)
        return changed

    @rule(some=some_rows, complete=st.booleans(), running=st.booleans())
    def reset(self, some: set[int] | None, complete: bool, running: bool) -> None:
        states = {"failed"} | ({"complete"} if complete else set())
        states |= {"processing"} if running else set()
        for row in self._change(some, states, "reset", complete=complete, running=running):
            row.reset()

    @rule(some=some_rows)
    def pause_rows(self, some: set[int] | None) -> None:
        for row in self._change(some, {"open"}, "pause_rows"):
            row.status = "paused"

    @rule(some=some_rows)
    def resume_rows(self, some: set[int] | None) -> None:
        for row in self._change(some, {"paused"}, "resume_rows"):
            row.opened()


def same(rows: list[Any], carriers: list[Carrier]) -> bool:
    """Compare instances as such, for several may denote one row."""
    return sorted(map(id, rows)) == sorted(id(one.row) for one in carriers)


@pytest.mark.promise(1, 2, 3, 4)
@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(600 + 3 * EXAMPLES)
@pytest.mark.parametrize("model", [Photo, ClaimOnly, Child])
def test_every_story_ends_as_the_states_say(model: Any, rule: Callable[..., None]) -> None:
    rule(model, max_attempts=MAX_ATTEMPTS, lease=LEASE, backoff=lambda failures: 3600)
    run_state_machine_as_test(partial(Claims, model), settings=SETTINGS)
