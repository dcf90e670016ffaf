"""What the state machine of ``test_machine`` believes of each row, without a database: the table of states.

``World`` predicts; the machine acts and compares.
"""

from dataclasses import dataclass, field
from typing import Any

from django.db import models

from django_taskclaim.fields import QUARANTINED
from django_taskclaim.states import WORKER_MARK
from tests.querysets.support import names

MAX_ATTEMPTS = 2


@dataclass
class Belief:
    """One row as it should be stored."""

    key: Any
    status: str = "open"
    holder: str | None = None
    iteration: int = 0
    attempts: int = 0
    #: Open, but not yet due.
    waiting: bool = False
    #: Processing, and the lease has run out.
    expired: bool = False
    #: Put back after its last try ended by expiry.
    quarantined: bool = False
    error: str = ""
    #: The user's own columns.
    values: dict[str, str] = field(default_factory=dict)

    @property
    def token(self) -> tuple[str, int] | None:
        """The token that stands on the row."""
        return (str(self.holder), self.iteration) if self.status == "processing" else None

    # What verbs make of it

    def claimed(self, holder: str) -> None:
        self.status, self.holder, self.expired = "processing", holder, False

    def opened(self) -> None:
        self.status, self.holder, self.expired = "open", None, False
        self.iteration += 1

    def renewed(self) -> None:
        self.expired = False

    def completed(self) -> None:
        self.status, self.expired = "complete", False

    def delayed(self, wait: float | None) -> None:
        """Give back; without a delay the row keeps its place, its mark included."""
        if wait is not None:
            self.waiting, self.quarantined = wait > 0, False
        self.opened()

    def failed(self, error: str, *, retry: bool, waits: bool, tried: int) -> None:
        self.attempts, self.error = self.attempts + 1, error
        if not retry or tried + 1 >= MAX_ATTEMPTS:
            self.status, self.expired = "failed", False
        else:
            self.waiting, self.quarantined = waits, False
            self.opened()

    def reset(self) -> None:
        self.attempts, self.error, self.waiting, self.quarantined = 0, "", False, False
        self.opened()

    def reaped(self, tried: int, *, marks: bool) -> None:
        """A worker's row is charged; on its last try it is marked first, and only then failed; a person's never is."""
        if WORKER_MARK not in str(self.holder):
            self.opened()
        elif tried + 1 < MAX_ATTEMPTS:
            self.attempts += 1
            self.opened()
        elif marks and not self.quarantined:
            self.quarantined = True
            self.opened()
        else:
            self.attempts += 1
            self.status, self.expired, self.error = "failed", False, "lease ran out"


@dataclass(eq=False)
class Carrier:
    """An instance in somebody's hands, kept for ever; ``token`` is None for one that was only read."""

    row: Any
    key: Any
    token: tuple[str, int] | None = None
    #: A verb of its own has ended the claim.
    ended: bool = False


class World:
    """All rows of one model, and everyone who holds an instance."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.columns = names(model)
        self.has_tries = "attempts" in self.columns
        self.user_columns = ["note", "extra"] if hasattr(model, "extra") else ["note"]
        self.rows: dict[Any, Belief] = {}
        self.carriers: list[Carrier] = []
        self.issued: set[tuple[Any, tuple[str, int]]] = set()

    # Who holds what

    def stands(self, one: Carrier) -> bool:
        row = self.rows.get(one.key)
        return (
            one.token is not None and not one.ended and row is not None and row.token == one.token
        )

    def tried(self, row: Belief) -> int:
        return row.attempts if self.has_tries else row.iteration

    def takes(self, claimed: list[Any], who: str | None, held: set[Any]) -> None:
        """Note that *claimed* instances came from one call of ``claim_batch``."""
        for one in claimed:
            row, token = self.rows[one.pk], tuple(one.claim.token)
            assert token == (who or token[0], row.iteration)
            assert (WORKER_MARK in token[0]) is (who is None)
            if one.pk in held:
                row.expired = False
            else:
                assert (one.pk, token) not in self.issued, "a token was issued twice"
                self.issued.add((one.pk, token))
                row.claimed(token[0])
            self.carriers.append(Carrier(one, one.pk, token))

    # What a claim may return

    def claimable(self, keys: set[Any]) -> set[Any]:
        rows = [self.rows[key] for key in keys]
        return {row.key for row in rows if row.status == "open" and not row.waiting}

    def held_by(self, who: str, keys: set[Any]) -> set[Any]:
        return {key for key in keys if self.rows[key].token and self.rows[key].holder == who}

    def check_answer(self, found: list[Any], limit: int, held: set[Any], free: set[Any]) -> None:
        """Held rows come first, then free ones; what may have killed its worker comes alone."""
        again = min(limit, len(held))
        assert len(found) == len(set(found)) <= limit
        assert set(found[:again]) <= held
        new, most = set(found[again:]), min(limit - again, len(free))
        assert new <= free
        if any(self.rows[key].quarantined for key in new):
            assert len(new) == 1
        elif not any(self.rows[key].quarantined for key in free):
            assert len(new) == most
        else:
            assert bool(new) is bool(most)

    # The rows as they are stored

    def compare(self) -> None:
        """Compare all rows with what they should be."""
        stored = {row.pk: row for row in models.QuerySet(self.model)}
        assert stored.keys() == self.rows.keys()
        for key, row in stored.items():
            found = {role: getattr(row, name) for role, name in self.columns.items()}
            self._check(self.rows[key], found)
            values = {name: getattr(row, name) for name in self.user_columns}
            assert values == self.rows[key].values

    def _check(self, row: Belief, found: dict[str, Any]) -> None:
        running, finished = row.status == "processing", row.status in ("complete", "failed")
        assert (found["status"], found["iteration"]) == (row.status, row.iteration), row
        assert found["claimed_by"] == (row.holder if running or finished else None), row
        assert (found["claimed_at"] is not None) is (running or finished), row
        assert running or found["expires_at"] is None, row
        if self.has_tries:
            assert found["attempts"] == row.attempts, row
            assert (found["completed_at"] is not None) is (row.status == "complete"), row
            assert (found["not_before"] == QUARANTINED) is row.quarantined, row
            assert row.error in found["last_error"], row
            assert bool(row.error) is bool(found["last_error"]), row
