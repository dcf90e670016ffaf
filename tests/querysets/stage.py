"""What the rules of ``test_machine`` stand on: picking who acts, calling verbs, and comparing what they answer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from django.db import connection, models, transaction
from hypothesis.stateful import RuleBasedStateMachine

from django_taskclaim.exceptions import ClaimLost
from django_taskclaim.switch import resume
from tests.querysets.machine import Belief, Carrier, World
from tests.querysets.support import table_of, tables_of

ROWS = 4


@dataclass
class Block:
    """A transaction of the caller's, or a savepoint in one."""

    atomic: Any
    #: How many steps it still lasts, and whether it is undone then.
    steps: int
    undone: bool


class Stage(RuleBasedStateMachine):
    """One session does everything, so every answer can be foretold."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.world = World(model)
        self.blocks: list[Block] = []
        self.number = 0
        for each in tables_of(model):
            models.QuerySet(each)._raw_delete("default")  # type: ignore[attr-defined]
        resume(model, using="default")
        for _ in range(ROWS):
            self._insert()

    def teardown(self) -> None:
        while self.blocks:
            transaction.set_rollback(True)
            self.blocks.pop().atomic.__exit__(None, None, None)

    def _leave(self) -> None:
        block = self.blocks.pop()
        if block.undone:
            transaction.set_rollback(True)
        block.atomic.__exit__(None, None, None)
        if block.undone:
            self.world.roll_back()
        else:
            self.world.commit()

    # Who acts

    def _picked(self, pick: tuple[list[int], str]) -> list[Carrier]:
        """Return different instances; where somebody is to hold them and nobody does, a worker claims first."""
        numbers, whose = pick
        if whose == "standing" and not self._standing():
            self._let_claim()
        among = self._standing() if whose == "standing" else self.world.carriers
        if not among:
            return []
        # The last ones first: a story shrinks to the instances that were claimed last.
        return list(dict.fromkeys(among[-1 - number % len(among)] for number in numbers))

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

    def _beliefs(self, carriers: Iterable[Carrier]) -> list[Belief]:
        return [self.world.rows[key] for key in dict.fromkeys(one.key for one in carriers)]

    def _dump(self) -> list[Any]:
        """Return every byte of every table of the model."""
        dumped = []
        for each in tables_of(self.model):
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT * FROM {table_of(each)}")
                dumped.append(sorted(map(repr, cursor.fetchall())))
        return dumped

    def _insert(self) -> None:
        row = self.model.objects.create()
        user_columns = dict.fromkeys(self.world.user_columns, "")
        self.world.rows[row.pk] = Belief(row.pk, values=user_columns)

    # Verbs

    def _verb(
        self,
        carriers: list[Carrier],
        verb: Callable[[list[Any]], int],
        effect: Callable[[Belief], None],
        *,
        ends: bool = True,
    ) -> None:
        """Call *verb*; it must have *effect* on the rows that are still held, and name all the others."""
        world, first = self.world, _first_of_each_claim(carriers)
        standing = [one for one in first if world.stands(one)]
        lost = [one for one in first if one not in standing]
        before = None if standing else self._dump()
        if lost:
            with pytest.raises(ClaimLost) as caught:
                verb([one.row for one in carriers])
            assert same(caught.value.lost, [one.row for one in lost])
            assert same(caught.value.written, [one.row for one in standing])
        else:
            assert verb([one.row for one in carriers]) == len(first)
        for belief in self._beliefs(standing):
            effect(belief)
        for one in standing if ends else []:
            world.end(one)
        assert before is None or self._dump() == before

    def _wait(self, seconds: int | None) -> int | None:
        """A model without ``not_before`` cannot wait."""
        return seconds if self.world.has_tries else None

    # What Django's own methods write

    def _one_a_row(self, carriers: list[Carrier]) -> list[Carrier]:
        """Two instances of one row in one call would each bring a value of its own."""
        return list({one.key: one for one in carriers}.values())

    def _write_on(self, carriers: list[Carrier]) -> dict[Any, dict[str, str]]:
        """Give each instance new values of the user's, and return them by key."""
        for one in carriers:
            for name in self.world.user_columns:
                setattr(one.row, name, self._new())
        return {
            one.key: {name: getattr(one.row, name) for name in self.world.user_columns}
            for one in carriers
        }

    def _with_key(self, pick: Any) -> list[Carrier]:
        """Return instances that Django would still write: one that deleted its row has no key."""
        return [one for one in self._picked(pick) if not one.is_deleted]

    def _may_write(self, one: Carrier) -> bool:
        return self.world.stands(one) or (one.is_ordinary and one.key in self.world.rows)

    def _refused(self, write: Callable[[], Any]) -> ClaimLost:
        before = self._dump()
        # save() asks for a rollback, so it gets a savepoint to roll back to.
        with pytest.raises(ClaimLost) as lost, transaction.atomic():
            write()
        assert self._dump() == before
        return lost.value

    def _is_stale(self, one: Carrier) -> bool:
        return not one.is_ordinary and not self.world.stands(one)

    def _let_claim(self, who: str | None = None) -> None:
        """Claim, after any operator's act that this needs."""
        raise NotImplementedError


def _first_of_each_claim(carriers: list[Carrier]) -> list[Carrier]:
    """Return one instance of each claim, which counts for it; the others share the claim from now on."""
    groups: dict[Any, list[Carrier]] = {}
    for one in carriers:
        has_claim = one.token is not None and not one.ended
        groups.setdefault((one.key, one.token) if has_claim else id(one), []).append(one)
    for together in groups.values():
        known = {id(each): each for one in together for each in (one, *one.sharing)}
        for one in known.values() if len(together) > 1 else ():
            one.sharing = [each for each in known.values() if each is not one]
    return [together[0] for together in groups.values()]


def same(some: list[Any], others: list[Any]) -> bool:
    """Compare instances as such, for several may denote one row."""
    return sorted(map(id, some)) == sorted(map(id, others))
