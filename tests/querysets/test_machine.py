"""All verbs in any order, by several holders who forget no token: a Hypothesis state machine beside a plain model.

``TASKCLAIM_TEST_EXAMPLES`` is how many stories are made of each model (longer runs: 1000). With ``CI`` set they are the
same ones every time.
"""

import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import models, transaction
from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.policy import Policy, set_policy
from django_taskclaim.switch import pause, resume
from tests.querysets.machine import MAX_ATTEMPTS, Belief, Carrier
from tests.querysets.stage import Block, Stage, same
from tests.testapp.models import Child, ClaimOnly, Photo

EXAMPLES = int(os.environ.get("TASKCLAIM_TEST_EXAMPLES", 8))

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

MOST_ROWS = 6

anyone = st.integers(0, 40)
several = st.lists(anyone, min_size=1, max_size=4)
#: Whose turn it is: rather those whose claims stand, or anyone who ever had an instance.
pick = st.tuples(several, st.sampled_from(["standing", "standing", "anyone"]))
pick_anyone = st.tuples(several, st.sampled_from(["standing", "anyone", "anyone"]))
some_rows = st.one_of(st.none(), st.sets(st.integers(0, MOST_ROWS), min_size=1, max_size=3))


class Claims(Stage):
    """One session does everything, so every answer can be foretold."""

    @invariant()
    def every_row_is_as_foretold(self) -> None:
        self.world.compare()
        while self.blocks and self.blocks[-1].steps == 0:
            self._leave()
            self.world.compare()
        if self.blocks:
            self.blocks[-1].steps -= 1

    # Who acts

    def _let_claim(self, who: str | None = None) -> None:
        """Claim, and if that takes an operator's act before: most verbs would have nothing to do otherwise."""
        if self.world.paused:
            self.turn_the_switch()
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
        self.claim(limit=3, who=who, include_held=False, some=None)

    # Rows

    @precondition(lambda self: len(self.world.rows) < MOST_ROWS)
    @rule()
    def insert(self) -> None:
        self._insert()

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
        claimed = queryset.claim_batch(
            limit, claimed_by=who, include_held=include_held, durable=not self.blocks
        )
        world.check_answer([row.pk for row in claimed], limit, held, free)
        world.takes(claimed, who, held)

    # Ending and extending claims

    @rule(pick=pick)
    def complete(self, pick: Any) -> None:
        self._verb(self._picked(pick), self.model.objects.complete, Belief.completed)

    @rule(pick=pick)
    def complete_with_results(self, pick: Any) -> None:
        carriers = self._one_a_row(self._picked(pick))
        results = self._write_on(carriers)

        def completed(belief: Belief) -> None:
            belief.values |= results[belief.key]
            belief.completed()

        verb = partial(self.model.objects.complete, update_fields=self.world.user_columns)
        self._verb(carriers, verb, completed)

    @rule(pick=pick, retry=st.booleans(), wait=st.sampled_from([0, 3600]))
    def fail(self, pick: Any, retry: bool, wait: int) -> None:
        follows = Policy(
            own_max_attempts=MAX_ATTEMPTS, own_lease=LEASE, own_backoff=lambda failures: wait
        )
        set_policy(self.model, follows)
        error = self._new()

        def failed(belief: Belief) -> None:
            tried = self.world.tried(belief)
            belief.failed(error, retry=retry, wait=self._wait(wait) or 0, tried=tried)

        verb = partial(self.model.objects.fail, error=error, retry=retry)
        self._verb(self._picked(pick), verb, failed)

    @rule(pick=pick, delay=st.sampled_from([None, 0, 3600]))
    def release(self, pick: Any, delay: int | None) -> None:
        verb = partial(self.model.objects.release, delay=delay)
        self._verb(self._picked(pick), verb, lambda belief: belief.delayed(self._wait(delay)))

    @rule(pick=pick)
    def renew(self, pick: Any) -> None:
        carriers = self._one_a_row(self._picked(pick))
        self._verb(carriers, self.model.objects.renew, _renewed, ends=False)

    @rule(pick=pick)
    def check(self, pick: Any) -> None:
        for one in self._picked(pick):
            if self.world.stands(one):
                assert one.row.claim.check()
            else:
                with pytest.raises(ClaimLost):
                    one.row.claim.check()

    # What Django's own methods write

    @rule(pick=pick_anyone, fields=st.sampled_from([None, "first", "last"]))
    def save(self, pick: Any, fields: str | None) -> None:
        columns = self.world.user_columns
        written = columns if fields is None else [columns[0 if fields == "first" else -1]]
        options = {} if fields is None else {"update_fields": written}
        for one in self._with_key(pick):
            if one.key not in self.world.rows and (one.token is None or (one.ended and fields)):
                # Nobody's claim: Django would insert the row again, or say that nothing was updated.
                continue
            values = self._write_on([one])[one.key]
            if self._may_write(one):
                one.row.save(**options)
                self.world.rows[one.key].values |= {name: values[name] for name in written}
            else:
                self._refused(partial(one.row.save, **options))

    @rule(pick=pick, last=st.booleans())
    def bulk_update(self, pick: Any, last: bool) -> None:
        world = self.world
        carriers = self._one_a_row(self._with_key(pick))
        lost = [one for one in carriers if not one.is_ordinary and not world.stands(one)]
        values = self._write_on(carriers)
        name = world.user_columns[-1 if last else 0]
        write = partial(self.model.objects.bulk_update, [one.row for one in carriers], [name])
        if lost:
            error = self._refused(write)
            assert same(error.lost, [one.row for one in lost])
            return
        write()
        for one in carriers:
            if one.key in world.rows:
                world.rows[one.key].values[name] = values[one.key][name]

    @rule(pick=pick)
    def delete(self, pick: Any) -> None:
        for one in self._with_key(pick)[:1]:
            if self._is_stale(one):
                self._refused(one.row.delete)
            elif one.key in self.world.rows:
                if self.world.stands(one):
                    self.world.end(one)
                one.row.delete()
                del self.world.rows[one.key]

    @precondition(lambda self: any(self._is_stale(one) for one in self.world.carriers))
    @rule(number=anyone)
    def every_write_of_a_lost_claim(self, number: int) -> None:
        stale = [one for one in self.world.carriers if self._is_stale(one)]
        one = stale[-1 - number % len(stale)]
        self._write_on([one])
        rows, row = self.model.objects, one.row
        self._refused(lambda: rows.complete(row, update_fields=["note"]))
        self._refused(lambda: rows.fail(row, "late"))
        self._refused(lambda: rows.release(row, delay=60))
        self._refused(lambda: rows.renew(row))
        if not one.is_deleted:
            self._refused(row.save)
            self._refused(lambda: row.save(update_fields=["note"]))
            self._refused(lambda: rows.bulk_update([row], ["note"]))
            self._refused(row.delete)

    # What instances go through

    @rule(pick=pick)
    def refresh(self, pick: Any) -> None:
        for one in self._with_key(pick):
            with suppress(self.model.DoesNotExist):
                one.row.refresh_from_db()

    @rule(pick=pick)
    def pickle(self, pick: Any) -> None:
        """What has not been committed does not travel: the copy of an instance whose claim has only just ended."""
        for one in self._picked(pick):
            again = pickle.loads(pickle.dumps(one.row))
            ended = one.ended and not one.pending
            self.world.carriers.append(Carrier(again, one.key, one.token, ended))

    @rule(pick=pick)
    def with_token(self, pick: Any) -> None:
        for one in self._picked(pick):
            if one.token is None:
                continue
            spelled = f"{one.token[1]}:{one.token[0]}"
            if one.key in self.world.rows:
                row = self.model.objects.with_token(one.key, spelled)
                self.world.carriers.append(Carrier(row, one.key, one.token))
            else:
                with pytest.raises(self.model.DoesNotExist):
                    self.model.objects.with_token(one.key, spelled)

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

    @rule(who=st.sampled_from(HOLDERS), times=st.integers(1, MAX_ATTEMPTS + 1))
    def a_holder_dies_again_and_again(self, who: str | None, times: int) -> None:
        for _ in range(times):
            self.world.compare()
            if not self._standing():
                self._let_claim(who)
            self.let_leases_lapse(some=None, unknown=False)
            self.release_expired(some=None, limit=None)

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
            self.world.finished.pop(row.key, None)

    @rule(some=some_rows)
    def pause_rows(self, some: set[int] | None) -> None:
        for row in self._change(some, {"open"}, "pause_rows"):
            row.status = "paused"

    @rule(some=some_rows)
    def resume_rows(self, some: set[int] | None) -> None:
        for row in self._change(some, {"paused"}, "resume_rows"):
            row.opened()

    @rule()
    def turn_the_switch(self) -> None:
        turn = resume if self.world.paused else pause
        turn(self.model, using="default")
        self.world.paused = not self.world.paused
        self.claim(limit=2, who=None, include_held=False, some=None)

    # Transactions of the caller's

    @precondition(lambda self: len(self.blocks) < 2)
    @rule(steps=st.integers(1, 6), undone=st.booleans())
    def begin(self, steps: int, undone: bool) -> None:
        """Begin a transaction, or a savepoint in it, that is left after so many steps."""
        block = transaction.atomic()
        block.__enter__()
        self.blocks.append(Block(block, steps, undone))
        self.world.begin()


def _renewed(belief: Belief) -> None:
    belief.expired = False


@pytest.mark.promise(1, 2, 3, 4)
@pytest.mark.django_db(transaction=True)
@pytest.mark.timeout(120 + 3 * EXAMPLES)
@pytest.mark.parametrize("model", [Photo, ClaimOnly, Child])
def test_no_story_of_claims_ends_otherwise_than_the_states_say(
    model: Any, rule: Callable[..., None]
) -> None:
    rule(model, max_attempts=MAX_ATTEMPTS, lease=LEASE)
    run_state_machine_as_test(partial(Claims, model), settings=SETTINGS)
