"""What the workers wrote down: one record for each change of state, read while they run."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

PUT_BACKS = ("failed", "released", "expired")
REASONS = {"not started": "not started yet when claims were paused or the worker was stopped"}
ENDINGS = ("completed", *PUT_BACKS)


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the logger `django_taskclaim`, and whose it is."""

    worker: str
    event: str
    rows: int
    seconds: float | None
    keys: tuple[str, ...]
    reason: str
    final: bool

    @classmethod
    def parse(cls, worker: str, line: bytes) -> Self:
        """The record that a line of the file holds."""
        facts: dict[str, Any] = json.loads(line)
        return cls(
            worker=worker,
            event=facts.get("event", ""),
            rows=facts.get("rows", 0),
            seconds=facts.get("seconds"),
            keys=tuple(facts.get("keys", ())),
            reason=reason(facts),
            final=facts.get("final", False) or facts.get("fate") == "failed",
        )


def reason(facts: dict[str, Any]) -> str:
    """Why the rows were put back, in words that are the same for all rows it happens to."""
    if facts.get("event") == "expired":
        return "the lease ran out, its worker being dead"
    if facts.get("error"):
        return trouble(facts["error"], facts.get("told", ""))
    told = str(facts.get("reason") or facts["message"])
    return REASONS.get(told, told)


def trouble(error_class: str, text: str) -> str:
    """An error in a few words, without what differs from row to row."""
    return f"{error_class.rpartition('.')[2]}: {text.partition(' for ')[0]}".rstrip(": ")


@dataclass(slots=True)
class RecordFile:
    """One worker's file, read on from where the last look ended."""

    worker: str
    path: Path
    _read: int = 0

    def news(self) -> Iterator[Record]:
        """The records that came since the last call."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # still being written
                self._read += len(line)
                yield Record.parse(self.worker, line)


@dataclass(slots=True)
class Tally:
    """What one worker did."""

    claimed: int = 0
    done: int = 0
    failed: int = 0
    put_back: int = 0


@dataclass(slots=True)
class Ledger:
    """All records, added up."""

    tallies: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    reasons: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Why a row was put back, in order, by its key."""
    claim_seconds: list[float] = field(default_factory=list)
    release_seconds: list[float] = field(default_factory=list)

    def enter(self, record: Record) -> None:
        """Add one record."""
        tally = self.tallies[record.worker]
        match record.event:
            case "claimed":
                tally.claimed += record.rows
            case "completed":
                tally.done += record.rows
            case "failed" if record.final:
                tally.failed += record.rows
            case "failed" | "released":
                tally.put_back += record.rows
        if record.seconds is not None:
            if record.event == "claimed":
                self.claim_seconds.append(record.seconds)
            elif record.event in ENDINGS:
                self.release_seconds.append(record.seconds)
        if record.event in PUT_BACKS and not record.final:
            for key in record.keys:
                self.reasons[key].append(record.reason)
