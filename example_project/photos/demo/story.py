"""The demo from its first row to its account."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .account import Account, settle
from .census import Census, census, in_hands, make_rows, paused, rows
from .display import Display
from .fates import Fates
from .pictures import DISTINCT, PictureBook
from .records import Ledger, Record, RecordFile
from .scene import News, Pace, Scene, WorkerLine
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
    pace: Pace = field(default_factory=Pace)
    news: list[News] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    _mourned: set[str] = field(default_factory=set)
    _paused: str | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the workers were started."""
        return time.monotonic() - self.began

    @property
    def killed(self) -> bool:
        """Whether a worker was killed, by us or by the reader."""
        return any(worker.killed for worker in self.workers)

    def play(self, display: Display) -> float:
        """Look on until no row is left to do, and return the seconds that it took."""
        try:
            while (now := self.look(display)).unfinished:
                if self.plan.kill and not self.killed and self.is_half_way(now):
                    self.kill_one(now)
                self.notice_deaths()
                time.sleep(TICK)
            return self.elapsed
        finally:
            dismiss(self.workers)
            self.look(display)

    def look(self, display: Display) -> Census:
        """See how things are, and show it."""
        for file in self.files:
            for record in file.news():
                self.ledger.enter(record)
                self.notice(record)
        now = census()
        self.pace.note(self.elapsed, now.complete + now.failed)
        self.notice_pause()
        display.show(self.scene(now))
        return now

    def scene(self, now: Census) -> Scene:
        """This moment as the display wants it."""
        return Scene(
            elapsed=self.elapsed,
            complete=now.complete,
            failed=now.failed,
            held=now.held,
            waiting=now.waiting,
            open=now.due,
            pace=self.pace,
            workers=self.worker_lines(now),
            news=self.news,
            paused=self._paused,
        )

    def worker_lines(self, now: Census) -> list[WorkerLine]:
        """A line for each worker."""
        lines = []
        for worker in self.workers:
            tally = self.ledger.tallies[worker.name]
            lines.append(
                WorkerLine(
                    name=worker.name,
                    pid=worker.process.pid,
                    condition=worker.condition(
                        begun=tally.claimed > 0,
                        paused=self._paused is not None and not now.in_hands[worker.name],
                    ),
                    done=tally.done,
                    failed=tally.failed,
                    put_back=tally.put_back,
                    held=now.in_hands[worker.name],
                )
            )
        return lines

    def is_half_way(self, now: Census) -> bool:
        """Whether half of the rows are finished."""
        return now.complete + now.failed >= KILL_AT * self.plan.rows

    def kill_one(self, now: Census) -> None:
        """SIGKILL the worker that holds the most rows."""
        alive = [worker for worker in self.workers if worker.alive]
        if len(alive) > 1:  # the reader may have killed the others
            max(alive, key=lambda worker: now.in_hands[worker.name]).kill()

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

    def notice_pause(self) -> None:
        """Tell when the switch is turned."""
        now = paused()
        if now != self._paused:
            self.tell(f"paused {now}" if now else "resumed")
            self._paused = now

    def tell(self, text: str) -> None:
        """A line for the reader."""
        self.news.append(News(self.elapsed, text))

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
