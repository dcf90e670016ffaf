"""The account at the end: where every row went, why some went twice, and whether it adds up.

Three witnesses are heard: the table, the workers' records and the server that was asked for pictures.
"""

import csv
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from django_taskclaim.states import Status

from ..imaging import describe
from .pictures import PictureBook
from .records import Ledger

SAMPLE = 200
UNWRITTEN = "put back by the killed worker, which was gone before it wrote why"


class Row(NamedTuple):
    """What the account wants to know about a row."""

    key: int
    number: int
    status: str
    iteration: int
    error: str
    width: int | None
    height: int | None
    average_colour: str | None
    perceptual_hash: str | None
    thumbnail: bytes | None


@dataclass(frozen=True, slots=True)
class ClaimedAgain:
    """A row that was claimed more than once, and why each claim but the last came to nothing."""

    key: int
    claims: int
    reasons: tuple[str, ...]

    @property
    def explained(self) -> bool:
        """Whether there is a reason for each further claim."""
        return len(self.reasons) == self.claims - 1


@dataclass(frozen=True, slots=True)
class Times:
    """How long one kind of statement took, in seconds."""

    seconds: Sequence[float]

    def percentile(self, share: float) -> float:
        """The smallest time that `share` (0 to 1) of all do not exceed; 0 where there is none."""
        if not self.seconds:
            return 0.0
        return sorted(self.seconds)[math.ceil(share * len(self.seconds)) - 1]


@dataclass(slots=True)
class Account:
    """Where every row went."""

    made: int
    claims: Times
    releases: Times
    kept: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    again: list[ClaimedAgain] = field(default_factory=list)
    asked_too_often: int = 0
    """Rows whose picture was downloaded more often than the row was claimed."""
    without_result: int = 0
    """Rows that are complete although a column was not written."""
    ended_badly: tuple[str, ...] = ()
    """Workers that were asked to stop and did not end with exit code 0."""
    compared: int = 0
    different: int = 0
    """Of the compared rows, those that hold something else than their picture says."""

    @property
    def complete(self) -> int:
        """Rows done well."""
        return self.statuses[Status.COMPLETE]

    @property
    def failed(self) -> int:
        """Rows given up."""
        return self.statuses[Status.FAILED]

    @property
    def missing(self) -> int:
        """Rows that were made and are neither complete nor failed."""
        return self.made - self.complete - self.failed

    @property
    def put_back(self) -> int:
        """How often a row was put back, all rows together."""
        return sum(row.claims - 1 for row in self.again)

    @property
    def reasons(self) -> Counter[str]:
        """How often each reason put a row back."""
        return Counter(reason for row in self.again for reason in row.reasons)

    @property
    def unexplained(self) -> int:
        """Rows that were claimed again and no record says why."""
        return sum(not row.explained for row in self.again)

    def problems(self) -> list[str]:
        """What does not add up, a sentence each; none is as it should be."""
        counts = {
            f"{self.missing:,} rows are missing.": self.missing,
            f"{self.unexplained:,} rows were claimed again for no known reason.": self.unexplained,
            f"{self.asked_too_often:,} rows were worked on twice at once.": self.asked_too_often,
            f"{self.without_result:,} complete rows have no result.": self.without_result,
            f"{self.different:,} rows hold another picture's result.": self.different,
        }
        return [
            *(sentence for sentence, count in counts.items() if count),
            *(f"{worker} did not stop cleanly." for worker in self.ended_badly),
        ]

    def write_again(self, path: Path) -> None:
        """Write the rows claimed more than once, one a line, with the reasons of each."""
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["photo", "claims", "why it was put back, in order"])
            for row in self.again:
                writer.writerow([row.key, row.claims, *row.reasons])


def settle(
    made: int,
    rows: Iterable[Row],
    ledger: Ledger,
    requests: Mapping[int, int],
    book: PictureBook,
    *,
    killed: bool,
) -> Account:
    """Hear all witnesses; `killed` tells whether one of them was silenced."""
    account = Account(made, Times(ledger.claim_seconds), Times(ledger.release_seconds))
    sample = set(random.Random(book.seed).sample(range(made), min(SAMPLE, made)))
    for row in rows:
        account.statuses[row.status] += 1
        if row.status == Status.FAILED:
            account.failures[row.error] += 1
        if row.iteration:
            account.again.append(claimed_again(row, ledger, killed=killed))
        account.asked_too_often += requests.get(row.number, 0) > row.iteration + 1
        if row.status == Status.COMPLETE:
            judge_result(row, account, book, compare=row.number in sample)
    return account


def claimed_again(row: Row, ledger: Ledger, *, killed: bool) -> ClaimedAgain:
    """The claims of a row, and what is known of why there was more than one."""
    reasons = list(ledger.reasons.get(str(row.key), ()))
    if killed and len(reasons) == row.iteration - 1:
        reasons.append(UNWRITTEN)
    return ClaimedAgain(row.key, row.iteration + 1, tuple(reasons))


def judge_result(row: Row, account: Account, book: PictureBook, *, compare: bool) -> None:
    """Is the result there, and is it this picture's?"""
    account.without_result += None in row
    if compare:
        facts = describe(book.path(row.number).read_bytes())
        wanted = (facts.width, facts.height, facts.average_colour, facts.perceptual_hash)
        written = (row.width, row.height, row.average_colour, row.perceptual_hash)
        account.compared += 1
        account.different += (written, row.thumbnail) != (wanted, facts.thumbnail)
