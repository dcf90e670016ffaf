"""The demo from its first row to its account."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .account import Account, settle
from .census import in_hands, make_rows, rows, unfinished
from .fates import Fates
from .pictures import DISTINCT, PictureBook
from .records import Ledger, Record, RecordFile
from .server import PictureServer, serving
from .workers import Worker, crew, dismiss

TICK = 0.25
KILL_AT = 0.5
THREADS = 4


class StoryBroken(Exception):
    """The demo cannot go on: no worker is left, and nobody killed it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the reader asked for."""

    rows: int
    workers: int
    kill: bool
    seed: int
    folder: Path

    @property
    def book(self) -> PictureBook:
        """The pictures to serve."""
        return PictureBook(
            self.folder / f"pictures-{self.seed}", self.seed, min(self.rows, DISTINCT)
        )

    @property
    def records(self) -> Path:
        """Where the workers write."""
        return self.folder / "workers"


@dataclass(slots=True)
class Story:
    """One run: workers get through the rows while this looks on, and once interferes."""

    plan: Plan
    server: PictureServer
    workers: list[Worker]
    files: list[RecordFile]
    ledger: Ledger = field(default_factory=Ledger)
    began: float = field(default_factory=time.monotonic)
    _mourned: set[str] = field(default_factory=set)

    @property
    def elapsed(self) -> float:
        """Seconds since the workers were started."""
        return time.monotonic() - self.began

    @property
    def killed(self) -> bool:
        """Whether a worker was killed, by us or by the reader."""
        return any(worker.killed for worker in self.workers)

    def play(self) -> float:
        """Look on until no row is left to do, and return the seconds that it took."""
        try:
            while left := unfinished():
                self.read_records()
                if self.plan.kill and not self.killed and left <= KILL_AT * self.plan.rows:
                    self.kill_one()
                self.notice_deaths()
                time.sleep(TICK)
            return self.elapsed
        finally:
            dismiss(self.workers)
            self.read_records()

    def read_records(self) -> None:
        """Take in what the workers wrote."""
        for file in self.files:
            for record in file.news():
                self.ledger.enter(record)
                self.notice(record)

    def kill_one(self) -> None:
        """SIGKILL the worker that holds the most rows."""
        alive = [worker for worker in self.workers if worker.alive]
        if len(alive) > 1:  # the reader may have killed the others
            held = in_hands()
            max(alive, key=lambda worker: held[worker.name]).kill()

    def notice_deaths(self) -> None:
        """Tell of workers that are no more; StoryBroken where none is left."""
        dead = [worker for worker in self.workers if not worker.alive]
        for worker in dead:
            if worker.name not in self._mourned:
                self._mourned.add(worker.name)
                held = plural(in_hands()[worker.name])
                self.tell(f"{worker.name} {worker.cause_of_death}, {held} in its hands")
        if len(dead) == len(self.workers):
            raise StoryBroken(f"No worker is left. {dead[-1].name} said:\n{dead[-1].last_words()}")

    def notice(self, record: Record) -> None:
        """Tell of what the reader waits for: rows that come back from a dead worker."""
        if record.event == "expired":
            self.tell(f"{record.worker} put back {plural(record.rows)} whose lease had run out")

    def tell(self, text: str) -> None:
        """A line for the reader."""
        print(f"{clock(self.elapsed)}  {text}", flush=True)

    def account(self) -> Account:
        """Where every row went."""
        account = settle(
            self.plan.rows,
            rows(),
            self.ledger,
            self.server.requests(),
            self.plan.book,
            killed=self.killed,
        )
        account.ended_badly = tuple(worker.name for worker in self.workers if worker.ended_badly)
        return account


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def plural(rows: int) -> str:
    """So many rows, in words."""
    return "1 row" if rows == 1 else f"{rows:,} rows"


@contextmanager
def staged(plan: Plan) -> Iterator[Story]:
    """The pictures served, the rows made and the workers started, all until the block ends."""
    with ExitStack() as stack:
        server = stack.enter_context(serving(plan.book, Fates(plan.seed)))
        make_rows(server.url(number) for number in range(plan.rows))
        plan.records.mkdir(parents=True, exist_ok=True)
        for old in plan.records.iterdir():
            old.unlink()
        workers = stack.enter_context(crew(plan.workers, plan.records, threads=THREADS))
        files = [RecordFile(worker.name, worker.records) for worker in workers]
        yield Story(plan, server, workers, files)
