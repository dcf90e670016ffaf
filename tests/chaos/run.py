"""One run: workers, faults by a plan that the seed decides, a drain, and the oracle's word."""

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from django.db import Error, connection, connections

from django_taskclaim.models import WorkerProcess
from tests import servers
from tests.chaos import history
from tests.chaos.app.models import Resource, Work
from tests.chaos.crew import Crew, Seat, Worker
from tests.chaos.faults import KINDS, REFERENCE, unpause
from tests.chaos.history import harm, leave
from tests.chaos.oracle import Offences, Rules, offences
from tests.chaos.proxy import ProxyProcess
from tests.chaos.servers import Server

#: What rows ask for, and how often in a thousand; the others just work.
ACTS = dict.fromkeys(["fail", "permanent", "sleep:0.5"], 0.5)
ACTS |= {"save": 50.0, "fail:1": 2.0, "later:2": 2.0, "deadlock": 1.0, "swallow": 1.0}
#: Rows that kill their worker, a minute.
POISON_A_MINUTE = 2
#: Rows kept waiting for the workers, in batches, and rows added at a time.
BACKLOG, FEED = 60, 20


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for."""

    seconds: float
    seed: int
    lease: float
    mode: str = "plain"
    #: Add no more rows than this, and end when they are done; None for as many as the time allows.
    rows: int | None = None
    batch_size: int = 50
    reaper: float = 0.5
    grace: float = 3.0
    #: Mean pause between two faults.
    every: float = 0.8
    drain: float = 300.0
    #: The kinds of faults, all that the surroundings allow where it is empty.
    only: tuple[str, ...] = ()
    #: How often a row's handler does something odd, against the usual share of them.
    oddity: float = 1.0


class Bounds(NamedTuple):
    """How long things may take, in seconds: what is promised after a kill."""

    kill: float
    freeze: float
    stop: float


class Stalls:
    """Counts by how many seconds a thread that only sleeps has overslept: the machine is to blame, not the workers."""

    def __init__(self) -> None:
        self.total = self._told = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def since_last_asked(self) -> float:
        before, self._told = self._told, self.total
        return self._told - before

    def _watch(self) -> None:
        while True:
            began = time.monotonic()
            time.sleep(0.05)
            overslept = time.monotonic() - began - 0.05
            # Less is usual.
            self.total += overslept if overslept > 0.25 else 0.0


class Later(NamedTuple):
    """An action to come; one that ends a fault may be done before."""

    moment: float
    ends: bool
    action: Callable[[], object]


@dataclass(slots=True)
class Run:
    """The workers and what is done to them."""

    plan: Plan
    crew: Crew
    rng: random.Random
    proxy: ProxyProcess | None
    server: Server | None
    faults: "Counter[str]" = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    paused: AbstractContextManager[None] | None = None
    stalls: Stalls = field(default_factory=Stalls)
    _due: list[Later] = field(default_factory=list)
    _next_fault: float = 0.0
    _looked: float = field(default_factory=time.monotonic)
    _added: int = 0

    @property
    def bounds(self) -> Bounds:
        plan = self.plan
        return Bounds(
            kill=1.25 * plan.lease + plan.reaper + 2,
            # Servers count idle time in whole seconds, and look only now and then.
            freeze=2.25 * plan.lease + plan.reaper + 4,
            stop=plan.grace + 10,
        )

    # What faults ask of it

    def after(self, seconds: float, action: Callable[[], object], *, ends: bool = True) -> None:
        """Do *action* so many seconds from now; if it *ends* something, when the run drains at the latest."""
        self._due.append(Later(time.monotonic() + seconds, ends, action))

    def calm_down(self, seconds: float) -> None:
        """Let the workers recover before the next fault."""
        self._next_fault = time.monotonic() + seconds

    def complain(self, worker: Worker, what: str) -> None:
        self.complaints.append(f"{worker.name} {what}")
        worker.tell_where_it_is()

    def connect_again(self) -> None:
        """Return when the database answers again."""
        end = time.monotonic() + 60
        while True:
            try:
                history.ask("SELECT 1")
                return
            except Error:
                connection.close()
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    # The run

    def go(self) -> None:
        """Let things go wrong for as long as the plan says, and then let everything that is left be done."""
        end = time.monotonic() + self.plan.seconds
        for _ in range(round(self.plan.seconds / 60 * POISON_A_MINUTE)):
            moment = self.plan.seconds * self.rng.random() / 2
            self.after(moment, lambda: Work.objects.bulk_create([Work(act="die")]))
        self.calm_down(3)
        fed = 0.0
        while time.monotonic() < end and not self._is_done():
            self._turn()
            if time.monotonic() > fed:
                self._feed()
                fed = time.monotonic() + 0.3
            if self._kinds and time.monotonic() > self._next_fault:
                self._fault()
            time.sleep(0.02)
        self._drain()

    def _turn(self) -> None:
        self.crew.fill()
        self._do_later(lambda one: one.moment <= time.monotonic())
        if (passed := time.monotonic() - self._looked) > 0.5:
            self._looked += passed
            self._do(lambda: self._leave_time(passed))
        if stood_still := self.stalls.since_last_asked():
            # The claims of the lately dead get as much more time as the machine has kept from the living.
            self._do(lambda: leave(stood_still))
            self._do(lambda: harm(seconds=2 * self.plan.lease))

    def _leave_time(self, passed: float) -> None:
        """Give the claims of the lately dead more time while no process is up: rows that kill may end all at once."""
        # Each has its own number in its name, and signs on once it has started.
        names = WorkerProcess.objects.values_list("name", flat=True)
        if self.crew.awake().isdisjoint(int(name.rpartition(":")[2]) for name in names):
            leave(passed)

    def _do_later(self, which: Callable[[Later], bool]) -> None:
        for one in sorted(filter(which, self._due), key=lambda one: one.moment):
            self._due.remove(one)
            self._do(one.action)

    def _do(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Error:
            # The server is away, or a fault has met our own session: again when it answers.
            self.connect_again()
            action()

    def _is_done(self) -> bool:
        return self.plan.rows is not None and self._added >= self.plan.rows and not waiting()

    def _feed(self) -> None:
        left = FEED * self.plan.batch_size
        if self.plan.rows is not None:
            left = min(left, self.plan.rows - self._added)
        if left <= 0 or waiting() > BACKLOG * self.plan.batch_size:
            return
        odd = [weight * self.plan.oddity for weight in ACTS.values()]
        acts = self.rng.choices([*ACTS, "work"], [*odd, 1000 - sum(odd)], k=left)
        rows = [Work(act=act, priority=self.rng.choice([0, 0, 0, 1])) for act in acts]
        # The last is not for the workers.
        Work.objects.bulk_create([*rows, Work(wanted=False)])
        self._added += left

    def _fault(self) -> None:
        name = self.rng.choices(self._kinds, [KINDS[kind].weight for kind in self._kinds])[0]
        self.calm_down(self.rng.expovariate(1 / self.plan.every))
        try:
            KINDS[name].fault(self)
        except (LookupError, ProcessLookupError, FileNotFoundError):
            # Nobody it could be done to; the next one comes soon.
            self.calm_down(0.05)
        else:
            self.faults[name] += 1

    @property
    def _kinds(self) -> list[str]:
        return [one for one in self.plan.only or KINDS if KINDS[one].needs not in self.lacks]

    @property
    def lacks(self) -> set[str]:
        """Return what these surroundings cannot do, so that the summary can say what was left out."""
        missing = {
            "sessions": connection.vendor == "sqlite",
            "row_locks": not connection.features.has_select_for_update,
            "proxy": self.proxy is None,
            "server": self.server is None,
            "silence": self.server is None and connection.vendor != "sqlite",
        }
        return {name for name, lacking in missing.items() if lacking}

    def _drain(self) -> None:
        """End every fault, let the workers do what is left, and stop them."""
        self._do_later(lambda one: one.ends)
        for worker in self.crew.workers:
            worker.signal_group(signal.SIGCONT)
        unpause(self)
        Work.objects.filter(wanted=True).resume_rows()
        end = time.monotonic() + self.plan.drain
        while time.monotonic() < end and (self._due or waiting()):
            self._turn()
            time.sleep(0.1)
        self.crew.stop()


def waiting() -> int:
    """Return how many rows are still to be done."""
    return Work.objects.filter(wanted=True, status__in=["open", "processing"]).count()


class Outcome(NamedTuple):
    """What a run ended with."""

    run: Run
    offences: Offences
    seconds: float


def carry_out(plan: Plan, server: Server | None, home: Path) -> Outcome:
    """Do the run on the database that Django is set up with."""
    began = time.monotonic()
    os.environ["TASKCLAIM_CHAOS_LEDGER"] = str(home / "ledger")
    Resource.objects.bulk_create([Resource(pk=1), Resource(pk=2), Resource(pk=REFERENCE)])
    history.watch()
    with ExitStack() as stack:
        settings = connections["default"].settings_dict
        proxy = None
        if connection.vendor != "sqlite":
            port = settings["PORT"] or {"postgresql": 5432, "mysql": 3306}[connection.vendor]
            host = settings["HOST"] or "127.0.0.1"
            proxy = stack.enter_context(ProxyProcess(host, int(port)))
        rng = random.Random(plan.seed)
        crew = _crew(plan, rng, proxy, home / "workers.log")
        stack.callback(crew.end)
        run = Run(plan, crew, rng, proxy, server)
        run.go()
        kind = {"atomic": plan.mode.startswith("atomic"), "batch": plan.mode.endswith("batch")}
        found = offences(Rules(plan.lease, plan.batch_size, **kind))
        return Outcome(run, found, time.monotonic() - began)


def _crew(plan: Plan, rng: random.Random, proxy: ProxyProcess | None, log: Path) -> Crew:
    settings = dict(connections["default"].settings_dict)
    url = proxied = servers.url_of(settings)
    seats = [Seat(calm=True), Seat(), Seat(threads=3), Seat(in_process=True)]
    if proxy is not None:
        # Encrypted, no answer could be told from another.
        plain = "?sslmode=disable" if connection.vendor == "postgresql" else ""
        through = settings | {"HOST": "127.0.0.1", "PORT": str(proxy.port)}
        proxied = servers.url_of(through) + plain
        seats += [Seat(proxied=True), Seat(proxied=True, in_process=True)]
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DATABASE_URL": url,
        "OTHER_DATABASE_URL": url,
        "TASKCLAIM_TEST_REAPER_INTERVAL": str(plan.reaper),
        "TASKCLAIM_CHAOS_MODE": plan.mode,
        "TASKCLAIM_CHAOS_TIMEOUT": str(plan.lease / 4 if connection.vendor == "sqlite" else 60),
    }
    options = ["--lease", str(plan.lease), "--grace", str(plan.grace), "--poll", "0.2"]
    options += ["--batch-size", str(plan.batch_size)]
    return Crew(seats, env, proxied, options, rng, log)
